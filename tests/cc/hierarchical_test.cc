// Reductions over several hosts: every dtype and reduction has the values of
// one host, equal bits on all ranks, and equal bits in every run.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/cc/host_values.h"
#include "tests/cc/hosts.h"
#include "tests/cc/test_util.h"
#include "tf_ops/collectives/reduce.h"

namespace hvd {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kProduct};

// Three numbers, over and over: copied, as the thread sanitizer watches each
// access of a loop.
Bytes InputOf(DataType dtype, int rank, size_t count, double scale) {
  Bytes period;
  for (int i = 0; i < 3; ++i) {
    Append(dtype, scale * ((i + rank) % 3 + 1), &period);
  }
  Bytes bytes(count * ElementBytes(dtype));
  for (size_t done = 0; done < bytes.size(); done += period.size()) {
    std::memcpy(bytes.data() + done, period.data(),
                std::min(period.size(), bytes.size() - done));
  }
  return bytes;
}

// What one host computes.
Bytes Expected(const ReduceSpec& spec, int size, size_t count, double scale) {
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(InputOf(spec.dtype, rank, count, scale));
  }
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes result(count * ElementBytes(spec.dtype));
  Reduce(spec, sources.data(), size, result.data(), count);
  return result;
}

void TestAllreduce(Collectives* t, const ReduceSpec& spec, size_t count,
                   double scale = 1.0) {
  CAPTURE(DataTypeName(spec.dtype));
  CAPTURE(ReduceOpName(spec.op));
  CAPTURE(count);
  const Bytes expected = Expected(spec, t->size(), count, scale);
  Bytes values = InputOf(spec.dtype, t->rank(), count, scale);
  REQUIRE_OK(t->Allreduce(
      TensorList({ListTensor{values.data(), values.data(), values.size()}}),
      spec));
  CHECK(std::memcmp(values.data(), expected.data(), expected.size()) == 0);
}

// The rows of rank r are those from r * count / size on.
void TestReducescatter(Collectives* t, const ReduceSpec& spec, size_t count) {
  const size_t unit = ElementBytes(spec.dtype);
  const size_t size = static_cast<size_t>(t->size());
  const Bytes expected = Expected(spec, t->size(), count, 1.0);
  Bytes values = InputOf(spec.dtype, t->rank(), count, 1.0);
  std::vector<TensorList> by_rank;
  for (size_t rank = 0; rank < size; ++rank) {
    std::byte* const begin = values.data() + rank * count / size * unit;
    std::byte* const end = values.data() + (rank + 1) * count / size * unit;
    by_rank.emplace_back(std::vector<ListTensor>{
        ListTensor{begin, begin, static_cast<size_t>(end - begin)}});
  }
  REQUIRE_OK(t->Reducescatter(by_rank, spec));
  const size_t own = static_cast<size_t>(t->rank());
  const size_t begin = own * count / size * unit;
  const size_t end = (own + 1) * count / size * unit;
  CHECK(std::memcmp(values.data() + begin, expected.data() + begin,
                    end - begin) == 0);
}

TEST_CASE("every dtype and reduction, scaled or not, is as on one host") {
  for (const Layout& layout : kLayouts) {
    RunHosts(layout, [](Collectives* t) {
      for (int i = 0; i <= static_cast<int>(DataType::kFloat64); ++i) {
        for (ReduceOp op : kOps) {
          ReduceSpec spec;
          spec.dtype = static_cast<DataType>(i);
          spec.op = op;
          spec.num_ranks = t->size();
          if (!CheckReduce(spec.dtype, op).ok()) continue;
          for (size_t count : {1, 5, 40001}) {
            TestAllreduce(t, spec, count);
            TestReducescatter(t, spec, count);
          }
          spec.prescale = 0.5;
          spec.postscale = 4.0;
          TestAllreduce(t, spec, 1000);
          TestReducescatter(t, spec, 1000);
        }
      }
    });
  }
}

TEST_CASE("an average fits where the sum of a host does not") {
  RunHosts(kLayouts[0], [](Collectives* t) {
    ReduceSpec spec;
    spec.op = ReduceOp::kAverage;
    spec.num_ranks = t->size();
    spec.dtype = DataType::kFloat16;
    TestAllreduce(t, spec, 3000, 20000.0);
    spec.dtype = DataType::kInt8;
    TestAllreduce(t, spec, 3000, 42.0);
  });
}

TEST_CASE("sums of many magnitudes have equal bits on all ranks, every time") {
  constexpr size_t kCount = 300001;
  std::vector<float> first;
  for (int turn = 0; turn < 2; ++turn) {
    RunHosts(kLayouts[1], [&](Collectives* t) {
      std::mt19937 generator(static_cast<unsigned>(t->rank()) + 1);
      std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
      std::uniform_int_distribution<int> exponent(-8, 8);
      std::vector<float> values(kCount);
      for (float& value : values) {
        value = std::ldexp(mantissa(generator), exponent(generator));
      }
      ReduceSpec spec;
      spec.num_ranks = t->size();
      const size_t num_bytes = kCount * sizeof(float);
      REQUIRE_OK(t->Allreduce(
          TensorList({ListTensor{values.data(), values.data(), num_bytes}}),
          spec));
      std::vector<float> of_root = values;
      REQUIRE_OK(t->Broadcast(
          TensorList({ListTensor{of_root.data(), of_root.data(), num_bytes}}),
          t->size() - 1));
      CHECK(std::memcmp(of_root.data(), values.data(), num_bytes) == 0);
      if (t->rank() != 0) return;
      if (first.empty()) first = values;
      CHECK(std::memcmp(first.data(), values.data(), num_bytes) == 0);
    });
  }
}

TEST_CASE("as int8: other reductions and integers stay exact") {
  RunHosts(kLayouts[0], [](Collectives* t) {
    ReduceSpec spec;
    spec.num_ranks = t->size();
    spec.wire_format = WireFormat::kInt8;
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      spec.op = op;
      TestAllreduce(t, spec, 40001);
    }
    for (DataType dtype : {DataType::kInt8, DataType::kInt64}) {
      spec.dtype = dtype;
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        spec.op = op;
        TestAllreduce(t, spec, 40001);
      }
    }
  });
}

}  // namespace
}  // namespace hvd
