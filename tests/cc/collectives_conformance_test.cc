// The collectives over each kind of host group, and over several hosts: on 1 to
// 6 ranks, with 0 to a million elements, in lists cut anywhere, one after the
// other without a barrier in between.
#include <cstdint>
#include <vector>

#include "tests/cc/hosts.h"
#include "tests/cc/test_util.h"
#include "tf_ops/collectives/adasum.h"
#include "tf_ops/collectives/collectives.h"
#include "tf_ops/collectives/host/host_collectives.h"

namespace hvd {
namespace {

#if HVD_SANITIZED
constexpr size_t kMost = 100000;  // sanitizers are slow
#else
constexpr size_t kMost = 1000000;
#endif
constexpr size_t kCounts[] = {0, 1, 7, 1000, kMost};

float ValueOf(size_t i, int rank) {
  return static_cast<float>(i % 13) + static_cast<float>(rank);
}

// Over `size` ranks.
float SumOfValues(size_t i, int size) {
  return static_cast<float>(i % 13) * static_cast<float>(size) +
         static_cast<float>(size * (size - 1) / 2);
}

// Cuts `values` into tensors of 1, 2, 4, ... elements and the rest, an empty
// one among them.
TensorList Cut(const std::vector<float>& in, std::vector<float>* out) {
  std::vector<ListTensor> list;
  list.push_back(ListTensor{in.data(), out->data(), 0});
  size_t begin = 0;
  for (size_t n = 1; begin < in.size(); n *= 2) {
    const size_t count =
        n > 1000 ? in.size() - begin : std::min(n, in.size() - begin);
    list.push_back(ListTensor{in.data() + begin, out->data() + begin,
                              count * sizeof(float)});
    begin += count;
  }
  return TensorList(list);
}

std::vector<float> InputOf(size_t count, int rank) {
  std::vector<float> input(count);
  for (size_t i = 0; i < count; ++i) input[i] = ValueOf(i, rank);
  return input;
}

ReduceSpec SumOf(Collectives* t) {
  ReduceSpec spec;
  spec.num_ranks = t->size();
  return spec;
}

void TestAllreduce(Collectives* t, size_t count, bool in_place) {
  std::vector<float> input = InputOf(count, t->rank());
  std::vector<float> output(count, -1.0f);
  std::vector<float>* to = in_place ? &input : &output;
  REQUIRE_OK(t->Allreduce(Cut(input, to), SumOf(t)));
  const int n = t->size();
  CHECK(Differences(*to, [n](size_t i) { return SumOfValues(i, n); }) == "");
}

void TestBroadcast(Collectives* t, size_t count, int root_rank) {
  const std::vector<float> input = InputOf(count, t->rank());
  std::vector<float> output(count, -1.0f);
  REQUIRE_OK(t->Broadcast(Cut(input, &output), root_rank));
  CHECK(Differences(output, [root_rank](size_t i) {
          return ValueOf(i, root_rank);
        }) == "");
}

// Rank r gives (r % 3) * count elements: some give none.
void TestAllgather(Collectives* t, size_t count) {
  const std::vector<float> input =
      InputOf(count * static_cast<size_t>(t->rank() % 3), t->rank());
  size_t total = 0;
  for (int r = 0; r < t->size(); ++r) total += count * size_t(r % 3);
  std::vector<float> output(total, -1.0f);
  std::vector<TensorList> by_rank;
  float* next = output.data();
  for (int r = 0; r < t->size(); ++r) {
    const size_t n = count * static_cast<size_t>(r % 3);
    by_rank.emplace_back(std::vector<ListTensor>{
        ListTensor{input.data(), next, n * sizeof(float)}});
    next += n;
  }
  REQUIRE_OK(t->Allgather(by_rank));
  std::vector<float> expected;
  for (int r = 0; r < t->size(); ++r) {
    const std::vector<float> part = InputOf(count * size_t(r % 3), r);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  CHECK(Differences(output, [&](size_t i) { return expected[i]; }) == "");
}

// Rank r gives rank p (r + p) % 3 * count elements.
void TestAlltoall(Collectives* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  const size_t rank = static_cast<size_t>(t->rank());
  const auto sent = [count](int from, int to) {
    return static_cast<size_t>((from + to) % 3) * count * sizeof(float);
  };
  const std::vector<float> input = InputOf(2 * count, t->rank());
  std::vector<std::vector<float>> received(size);
  AlltoallLists lists;
  for (size_t r = 0; r < size; ++r) {
    lists.send.emplace_back(std::vector<ListTensor>{ListTensor{
        input.data(), nullptr, sent(t->rank(), static_cast<int>(r))}});
    received[r].assign((r + rank) % 3 * count, -1.0f);
    lists.recv.push_back(Cut(received[r], &received[r]));
  }
  REQUIRE_OK(t->Alltoall(lists, AlltoallBytesOf(*t, sent)));
  for (size_t r = 0; r < size; ++r) {
    CHECK(Differences(received[r], [r](size_t i) {
            return ValueOf(i, static_cast<int>(r));
          }) == "");
  }
}

// Reduces, in place, r % 3 * count elements for each rank r.
void TestReducescatter(Collectives* t, size_t count) {
  const int n = t->size();
  std::vector<std::vector<float>> values;
  std::vector<TensorList> by_rank;
  for (int r = 0; r < n; ++r) {
    values.push_back(InputOf(count * static_cast<size_t>(r % 3), t->rank()));
  }
  for (std::vector<float>& part : values) by_rank.push_back(Cut(part, &part));
  REQUIRE_OK(t->Reducescatter(by_rank, SumOf(t)));
  for (int r = 0; r < n; ++r) {
    CHECK(Differences(values[static_cast<size_t>(r)], [&](size_t i) {
            return r == t->rank() ? SumOfValues(i, n) : ValueOf(i, t->rank());
          }) == "");
  }
}

// Rank r has its rank + 1 where i % size is r, else 0: orthogonal vectors,
// which are added.
void TestAdasum(Collectives* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  std::vector<float> values(count, 0.0f);
  for (size_t i = static_cast<size_t>(t->rank()); i < count; i += size) {
    values[i] = static_cast<float>(t->rank() + 1);
  }
  REQUIRE_OK(AdasumAllreduce(
      t, {ListTensor{values.data(), values.data(), count * sizeof(float)}},
      SumOf(t)));
  CHECK(Differences(values, [size](size_t i) {
          return static_cast<float>(i % size + 1);
        }) == "");
}

void TestCollectives(Collectives* t) {
  for (size_t count : kCounts) {
    TestAllreduce(t, count, /*in_place=*/false);
    TestAllreduce(t, count, /*in_place=*/true);
    for (int root = 0; root < t->size(); ++root) TestBroadcast(t, count, root);
    TestAllgather(t, count);
    TestAlltoall(t, count);
    TestReducescatter(t, count);
    TestAdasum(t, count);
  }
  // Kinds and sizes in turn, so that the slots of one are still being read
  // when the next one begins.
  for (uint32_t i = 0; i < 120; ++i) {
    const size_t count = kCounts[(i * 7 + 3) % 5] / (1 + i % 4);
    const uint32_t kind = (i ^ i / 8) % 6;
    if (kind == 0) TestAllreduce(t, count, i % 4 == 0);
    if (kind == 1) TestBroadcast(t, count, static_cast<int>(i) % t->size());
    if (kind == 2) TestAllgather(t, count);
    if (kind == 3) TestAlltoall(t, count);
    if (kind == 4) TestReducescatter(t, count);
    if (kind == 5) TestAdasum(t, count);
  }
}

// Runs before any test that begins a thread.
TEST_CASE("processes: collectives of all kinds and sizes in turn") {
  for (int size = 1; size <= 5; ++size) {
    CheckAllExitedWell(RunProcesses(size, [](std::unique_ptr<HostGroup> group) {
      HostCollectives collectives(group->slabs());
      TestCollectives(&collectives);
    }));
  }
}
TEST_CASE("threads: collectives of all kinds and sizes in turn") {
  RunThreadsUpTo(5, TestCollectives);
}
TEST_CASE("hosts: collectives of all kinds and sizes in turn") {
  const std::vector<std::vector<int>> layouts[] = {
      {{0}, {1}}, {{0, 1}, {2, 3}}, {{0, 2}, {1}}, {{0}, {3, 1}, {2, 4, 5}}};
  for (const auto& ranks : layouts) RunHosts(ranks, TestCollectives);
}

}  // namespace
}  // namespace hvd
