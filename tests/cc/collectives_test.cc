// Alltoall and reducescatter on 1 to 9 ranks: any dtype, uneven and empty
// parts, lists cut anywhere, in turn with the other collectives on the same
// slabs.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/half.h"
#include "tf_ops/collectives/host/allgather.h"
#include "tf_ops/collectives/host/allreduce.h"
#include "tf_ops/collectives/host/alltoall.h"
#include "tf_ops/collectives/host/broadcast.h"
#include "tf_ops/collectives/host/reducescatter.h"

namespace hvd {
namespace {

#if HVD_SANITIZED
constexpr size_t kMost = 100000;  // sanitizers are slow
constexpr int kNumTurns = 40;
#else
constexpr size_t kMost = 1000000;
constexpr int kNumTurns = 300;
#endif

using Bytes = std::vector<uint8_t>;

// Cuts `num_bytes` into tensors of 0, 1, 3, 9, ... times `unit` bytes and the
// rest. `input` and `output` may be null.
TensorList Cut(const void* input, void* output, size_t num_bytes, size_t unit) {
  std::vector<ListTensor> list;
  const auto add = [&](size_t begin, size_t count) {
    const auto* in = static_cast<const uint8_t*>(input);
    auto* out = static_cast<uint8_t*>(output);
    list.push_back(ListTensor{in == nullptr ? nullptr : in + begin,
                              out == nullptr ? nullptr : out + begin, count});
  };
  add(0, 0);
  size_t begin = 0;
  for (size_t n = unit; begin < num_bytes; n *= 3) {
    const size_t left = num_bytes - begin;
    const size_t count = n > 100000 ? left : std::min(n, left);
    add(begin, count);
    begin += count;
  }
  add(num_bytes, 0);
  return TensorList(std::move(list));
}

// ---- Alltoall ----

uint8_t ByteOf(size_t i, size_t from, size_t to, size_t salt) {
  return static_cast<uint8_t>(i * 31 + (i >> 8) * 7 + from * 5 + to * 11 +
                              salt);
}

// From `from` to `to` go count * ((from + 2 * to) % 4) bytes: some get none.
ByteMatrix UnevenMatrix(size_t size, size_t count) {
  ByteMatrix num_bytes(size, std::vector<size_t>(size));
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      num_bytes[from][to] = count * ((from + 2 * to) % 4);
    }
  }
  return num_bytes;
}

void CheckAlltoall(HostSlabs* t, const ByteMatrix& num_bytes, size_t salt) {
  const size_t rank = static_cast<size_t>(t->rank());
  const size_t size = static_cast<size_t>(t->size());
  std::vector<Bytes> sent(size), received(size);
  AlltoallLists lists;
  for (size_t peer = 0; peer < size; ++peer) {
    Bytes& mine = sent[peer];
    mine.resize(num_bytes[rank][peer]);
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i] = ByteOf(i, rank, peer, salt);
    }
    received[peer].assign(num_bytes[peer][rank], 0);
    // Sent in one cut, received in another.
    lists.send.push_back(Cut(mine.data(), nullptr, mine.size(), 1 + peer));
    lists.recv.push_back(
        Cut(nullptr, received[peer].data(), received[peer].size(), 5));
  }
  REQUIRE_OK(Alltoall(t, lists, num_bytes));
  for (size_t peer = 0; peer < size; ++peer) {
    CHECK(Differences(received[peer], [&](size_t i) {
            return ByteOf(i, peer, rank, salt);
          }) == "");
  }
}

void TestAlltoallOneSender(HostSlabs* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  for (size_t from = 0; from < size; ++from) {
    ByteMatrix num_bytes(size, std::vector<size_t>(size, 0));
    num_bytes[from][(from + 1) % size] = count;
    CheckAlltoall(t, num_bytes, from);
  }
}

void TestAlltoallRefusesListsOfOtherLengths(HostSlabs* t) {
  const size_t size = static_cast<size_t>(t->size());
  AlltoallLists lists;
  for (size_t peer = 0; peer < size; ++peer) {
    lists.send.emplace_back(std::vector<ListTensor>());
    lists.recv.emplace_back(std::vector<ListTensor>());
  }
  const ByteMatrix one(size, std::vector<size_t>(size, 1));
  CHECK(Alltoall(t, lists, one).code() == StatusCode::kInternal);
}

// ---- Reducescatter ----

void Store(DataType dtype, double value, uint8_t* to) {
  const auto store = [to](auto x) { std::memcpy(to, &x, sizeof(x)); };
  switch (dtype) {
    case DataType::kFloat16:
      return store(ToFloat16(static_cast<float>(value)));
    case DataType::kBfloat16:
      return store(ToBfloat16(static_cast<float>(value)));
    case DataType::kFloat32:
      return store(static_cast<float>(value));
    case DataType::kFloat64:
      return store(value);
    case DataType::kInt64:
      return store(static_cast<int64_t>(value * 100));
    case DataType::kInt32:
      return store(static_cast<int32_t>(value * 100));
    default:  // one byte
      return store(static_cast<uint8_t>(value * 10));
  }
}

// Values whose sums round, so that their order shows.
Bytes RoughValues(DataType dtype, size_t count, int rank, uint32_t seed) {
  std::mt19937 generator(seed * 1000 + static_cast<uint32_t>(rank));
  const size_t element_bytes = ElementBytes(dtype);
  Bytes values(count * element_bytes);
  for (size_t i = 0; i < count; ++i) {
    const double value = 0.1 + static_cast<double>(generator() % 10007) / 1001;
    Store(dtype, value, values.data() + i * element_bytes);
  }
  return values;
}

// Elements that each rank ends up with.
using Parts = std::vector<size_t>;

Parts EvenParts(size_t size, size_t count) {
  Parts parts(size, count / size);
  for (size_t r = 0; r < count % size; ++r) ++parts[r];
  return parts;
}

Parts UnevenParts(size_t size, size_t count) {
  Parts parts(size);
  for (size_t r = 0; r < size; ++r) parts[r] = count * (r % 3) / 2;
  return parts;
}

void TestReducescatter(HostSlabs* t, const ReduceSpec& spec, const Parts& parts,
                       uint32_t seed, bool in_place = false) {
  const size_t rank = static_cast<size_t>(t->rank());
  const size_t unit = ElementBytes(spec.dtype);
  size_t total = 0;
  for (size_t count : parts) total += count;
  const Bytes input = RoughValues(spec.dtype, total, t->rank(), seed);
  Bytes expected(input.size());
  REQUIRE_OK(Allreduce(
      t, Cut(input.data(), expected.data(), input.size(), unit), spec));

  Bytes own = input;
  Bytes output(parts[rank] * unit, 0xee);
  std::vector<TensorList> by_rank;
  size_t begin = 0, own_begin = 0;
  for (size_t r = 0; r < parts.size(); ++r) {
    const size_t num_bytes = parts[r] * unit;
    void* out = in_place ? own.data() + begin : output.data();
    by_rank.push_back(
        Cut(own.data() + begin, r == rank ? out : nullptr, num_bytes, unit));
    if (r == rank) own_begin = begin;
    begin += num_bytes;
  }
  REQUIRE_OK(Reducescatter(t, by_rank, spec));
  const uint8_t* result = in_place ? own.data() + own_begin : output.data();
  CHECK(
      std::equal(result, result + output.size(), expected.data() + own_begin));
  if (in_place) return;
  CHECK(own == input);  // nothing else was written
}

ReduceSpec SpecOf(const HostSlabs& t, DataType dtype, ReduceOp op) {
  ReduceSpec spec;
  spec.dtype = dtype;
  spec.op = op;
  spec.num_ranks = t.size();
  return spec;
}

void TestReducescatters(HostSlabs* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  uint32_t seed = 0;
  for (DataType dtype : {DataType::kUint8, DataType::kInt32, DataType::kInt64,
                         DataType::kFloat16, DataType::kBfloat16,
                         DataType::kFloat32, DataType::kFloat64}) {
    const ReduceSpec sum = SpecOf(*t, dtype, ReduceOp::kSum);
    TestReducescatter(t, sum, EvenParts(size, count), ++seed);
    if (count == kMost && dtype != DataType::kFloat32) continue;
    TestReducescatter(t, sum, UnevenParts(size, count), ++seed);
    TestReducescatter(t, sum, EvenParts(size, count), ++seed,
                      /*in_place=*/true);
    ReduceSpec average = SpecOf(*t, dtype, ReduceOp::kAverage);
    average.prescale = 0.5;
    average.postscale = 3.0;
    TestReducescatter(t, average, UnevenParts(size, count), ++seed);
    TestReducescatter(t, SpecOf(*t, dtype, ReduceOp::kMax),
                      EvenParts(size, count), ++seed);
  }
}

// The sum itself, not only what Allreduce says.
void TestReducescatterSums(HostSlabs* t) {
  const size_t size = static_cast<size_t>(t->size());
  constexpr size_t kCount = 1000;
  std::vector<float> input(kCount * size), output(kCount);
  for (size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<float>(i + static_cast<size_t>(t->rank()));
  }
  std::vector<TensorList> by_rank;
  for (size_t r = 0; r < size; ++r) {
    by_rank.push_back(Cut(input.data() + r * kCount, output.data(),
                          kCount * sizeof(float), sizeof(float)));
  }
  REQUIRE_OK(Reducescatter(t, by_rank,
                           SpecOf(*t, DataType::kFloat32, ReduceOp::kSum)));
  const size_t first = static_cast<size_t>(t->rank()) * kCount;
  CHECK(Differences(output, [&](size_t i) {
          return static_cast<float>((first + i) * size + size * (size - 1) / 2);
        }) == "");
}

// ---- All in turn ----

void TestAllreduce(HostSlabs* t, size_t count) {
  std::vector<double> values(count, static_cast<double>(t->rank()) + 1);
  REQUIRE_OK(Allreduce(
      t,
      Cut(values.data(), values.data(), count * sizeof(double), sizeof(double)),
      SpecOf(*t, DataType::kFloat64, ReduceOp::kSum)));
  const double expected = static_cast<double>(t->size() * (t->size() + 1) / 2);
  CHECK(Differences(values, [&](size_t) { return expected; }) == "");
}

void TestBroadcast(HostSlabs* t, size_t count, size_t root) {
  Bytes values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = ByteOf(i, static_cast<size_t>(t->rank()), 0, 1);
  }
  REQUIRE_OK(Broadcast(t, Cut(values.data(), values.data(), count, 1),
                       static_cast<int>(root)));
  CHECK(Differences(values,
                    [root](size_t i) { return ByteOf(i, root, 0, 1); }) == "");
}

void TestAllgather(HostSlabs* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  const size_t rank = static_cast<size_t>(t->rank());
  std::vector<Bytes> values(size);
  std::vector<TensorList> by_rank;
  for (size_t r = 0; r < size; ++r) {
    values[r].assign(count * (r % 3), 0);
    for (size_t i = 0; r == rank && i < values[r].size(); ++i) {
      values[r][i] = ByteOf(i, r, 0, 2);
    }
    by_rank.push_back(
        Cut(values[r].data(), values[r].data(), values[r].size(), 1));
  }
  REQUIRE_OK(Allgather(t, by_rank));
  for (size_t r = 0; r < size; ++r) {
    CHECK(Differences(values[r],
                      [r](size_t i) { return ByteOf(i, r, 0, 2); }) == "");
  }
}

// Kinds and sizes in a random order, the same on all ranks, without a barrier
// in between: the slots of one are still being read when the next one begins.
void TestInTurn(HostSlabs* t, uint32_t seed) {
  std::mt19937 generator(seed);
  const size_t size = static_cast<size_t>(t->size());
  const size_t counts[] = {0, 1, 7, 1000, 40000, kSlotBytes, 3 * kSlotBytes};
  for (int turn = 0; turn < kNumTurns; ++turn) {
    const uint32_t kind = generator() % 6;
    const size_t root = generator() % size;
    const uint32_t which = generator() % 7;
    const size_t count = counts[which] / (kind == 3 ? 8 : 1);
    if (kind == 0) TestAllreduce(t, count / 8);
    if (kind == 1) TestBroadcast(t, count, root);
    if (kind == 2) TestAllgather(t, count);
    if (kind == 3) {
      TestReducescatter(t, SpecOf(*t, DataType::kFloat32, ReduceOp::kSum),
                        UnevenParts(size, count), which);
    }
    if (kind == 4) CheckAlltoall(t, UnevenMatrix(size, count / size), root);
    if (kind == 5) TestAlltoallOneSender(t, count);
  }
}

// Numbers of elements up to `kMost`; the large ones on few ranks only.
void RunWithCounts(void (*test)(HostSlabs*, size_t)) {
  RunThreadsUpTo(9, [test](HostSlabs* t) {
    for (size_t count : {0, 1, 7, 1000}) test(t, count);
    if (t->size() <= 4) test(t, kMost);
  });
}

TEST_CASE("alltoall of uneven parts") {
  RunWithCounts([](HostSlabs* t, size_t count) {
    const size_t size = static_cast<size_t>(t->size());
    CheckAlltoall(t, UnevenMatrix(size, count), count);
  });
}
TEST_CASE("alltoall with one rank that sends") {
  RunThreadsUpTo(
      9, [](HostSlabs* t) { TestAlltoallOneSender(t, 5 * kSlotBytes + 3); });
}
TEST_CASE("alltoall refuses lists of other lengths than it was told") {
  RunThreadsUpTo(9, TestAlltoallRefusesListsOfOtherLengths);
}
TEST_CASE("reducescatter has the bits of allreduce, for any dtype and parts") {
  RunWithCounts(TestReducescatters);
}
TEST_CASE("reducescatter sums") { RunThreadsUpTo(9, TestReducescatterSums); }
TEST_CASE("all kinds in turn on the same slabs") {
  RunThreadsUpTo(
      9, [](HostSlabs* t) { TestInTurn(t, static_cast<uint32_t>(t->size())); });
}

}  // namespace
}  // namespace hvd
