// An allreduce gives the bits of a reduction in the order of the ranks, on all
// ranks and in every run, whatever the algorithm, the cut of the list and the
// rank that comes late.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/host/allreduce.h"

namespace hvd {
namespace {

#if HVD_SANITIZED
constexpr size_t kCounts[] = {1, 1000, 40001};
#else
constexpr size_t kCounts[] = {1, 7, 1000, 40001, 300001};
#endif
constexpr DataType kDtypes[] = {DataType::kFloat16, DataType::kBfloat16,
                                DataType::kFloat32, DataType::kFloat64};
constexpr int kTurns = 3;

using Bytes = std::vector<std::byte>;

// Values of many magnitudes and signs, whose sum depends on the order.
Bytes InputOf(DataType dtype, int rank, size_t count) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-8, 8);
  Bytes bytes(count * ElementBytes(dtype));
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(mantissa(generator), exponent(generator));
  }
  if (dtype == DataType::kFloat32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else if (dtype == DataType::kFloat64) {
    std::vector<double> doubles(values.begin(), values.end());
    for (double& value : doubles) value *= 1.1;  // so that all bits count
    std::memcpy(bytes.data(), doubles.data(), bytes.size());
  } else {
    NarrowToHalves(dtype, values.data(), bytes.data(), count);
  }
  return bytes;
}

Bytes Expected(const ReduceSpec& spec, int size, size_t count) {
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(InputOf(spec.dtype, rank, count));
    sources.push_back(inputs.back().data());
  }
  Bytes result(count * ElementBytes(spec.dtype));
  Reduce(spec, sources.data(), size, result.data(), count);
  return result;
}

// Cuts values into `num_parts` tensors of about equal length.
TensorList Cut(const Bytes& in, Bytes* out, size_t num_parts, size_t unit) {
  std::vector<ListTensor> list;
  const size_t num_elements = in.size() / unit;
  size_t begin = 0;
  for (size_t part = 1; part <= num_parts; ++part) {
    const size_t end = num_elements * part / num_parts * unit;
    list.push_back(
        ListTensor{in.data() + begin, out->data() + begin, end - begin});
    begin = end;
  }
  return TensorList(std::move(list));
}

void TestCount(HostSlabs* t, const ReduceSpec& spec, size_t count) {
  const Bytes expected = Expected(spec, t->size(), count);
  std::mt19937 late(static_cast<unsigned>(t->rank()) * 31 + 7);
  for (int turn = 0; turn < kTurns; ++turn) {
    Bytes in = InputOf(spec.dtype, t->rank(), count);
    Bytes out(in.size());
    Bytes* target = turn % 2 == 0 ? &in : &out;
    const size_t num_parts = turn == 2 ? 7 : 1;
    std::this_thread::sleep_for(std::chrono::microseconds(late() % 300));
    REQUIRE_OK(Allreduce(
        t, Cut(in, target, num_parts, ElementBytes(spec.dtype)), spec));
    CHECK(std::memcmp(target->data(), expected.data(), expected.size()) == 0);
  }
}

TEST_CASE("an allreduce has the bits of a reduction in the order of ranks") {
  RunThreadsUpTo(4, [](HostSlabs* t) {
    for (DataType dtype : kDtypes) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        ReduceSpec spec;
        spec.dtype = dtype;
        spec.op = op;
        spec.num_ranks = t->size();
        for (size_t count : kCounts) TestCount(t, spec, count);
      }
    }
  });
}

}  // namespace
}  // namespace hvd
