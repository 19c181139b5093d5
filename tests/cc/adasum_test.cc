// Adasum against a plain recursion in double, on 1 to 9 ranks: every floating
// dtype, vectors in special positions, lists of tensors, in turn with other
// collectives on the same slabs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/adasum.h"
#include "tf_ops/collectives/half.h"

namespace hvd {
namespace {

#if HVD_SANITIZED
constexpr size_t kMost = 30000;  // sanitizers are slow
constexpr int kNumTurns = 10;
constexpr int kMaxSize = 5;
#else
constexpr size_t kMost = 1000000;
constexpr int kNumTurns = 60;
constexpr int kMaxSize = 9;
#endif

using Vector = std::vector<double>;

// ---- The reference ----

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Adasum(const Vector& a, const Vector& b) {
  const double aa = Dot(a, a);
  const double bb = Dot(b, b);
  if (aa == 0) return b;
  if (bb == 0) return a;
  const double ab = Dot(a, b);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i];
  }
  return sum;
}

// The result of ranks [begin, begin + count); `count` is a power of two.
Vector AdasumTree(const std::vector<Vector>& by_rank, size_t begin,
                  size_t count) {
  if (count == 1) return by_rank[begin];
  return Adasum(AdasumTree(by_rank, begin, count / 2),
                AdasumTree(by_rank, begin + count / 2, count / 2));
}

Vector AdasumOf(std::vector<Vector> by_rank) {
  size_t power = 1;
  while (power * 2 <= by_rank.size()) power *= 2;
  for (size_t r = power; r < by_rank.size(); ++r) {
    by_rank[r - power] = Adasum(by_rank[r - power], by_rank[r]);
  }
  return AdasumTree(by_rank, 0, power);
}

// ---- Values as dtypes ----

std::vector<uint8_t> Encode(DataType dtype, const Vector& values) {
  const size_t element_bytes = ElementBytes(dtype);
  std::vector<uint8_t> bytes(values.size() * element_bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto store = [&](auto x) {
      if (i == 0) CHECK(sizeof(x) == element_bytes);
      std::memcpy(bytes.data() + i * element_bytes, &x, sizeof(x));
    };
    const float single = static_cast<float>(values[i]);
    if (dtype == DataType::kFloat64) store(values[i]);
    if (dtype == DataType::kFloat32) store(single);
    if (dtype == DataType::kFloat16) store(ToFloat16(single));
    if (dtype == DataType::kBfloat16) store(ToBfloat16(single));
  }
  return bytes;
}

template <typename T>
T Load(const std::vector<uint8_t>& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

Vector Decode(DataType dtype, const std::vector<uint8_t>& bytes) {
  Vector values(bytes.size() / ElementBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DataType::kFloat64) values[i] = Load<double>(bytes, i);
    if (dtype == DataType::kFloat32) values[i] = Load<float>(bytes, i);
    if (dtype == DataType::kFloat16) {
      values[i] = FromFloat16(Load<uint16_t>(bytes, i));
    }
    if (dtype == DataType::kBfloat16) {
      values[i] = FromBfloat16(Load<uint16_t>(bytes, i));
    }
  }
  return values;
}

// The error that the dtype may cause, relative to the largest value: float32
// roundings on the way and one rounding to the dtype at the end.
double ToleranceOf(DataType dtype) {
  if (dtype == DataType::kFloat64) return 1e-13;
  if (dtype == DataType::kFloat32) return 1e-6;
  return dtype == DataType::kFloat16 ? 0x1p-11 + 1e-6 : 0x1p-8 + 1e-6;
}

void CheckNear(DataType dtype, const Vector& values, const Vector& expected) {
  double largest = 0;
  for (double value : expected) largest = std::max(largest, std::fabs(value));
  const double tolerance = largest * ToleranceOf(dtype);
  CHECK(Differences(values, [&](size_t i) {
          // Not `>`: NaN must fail.
          const bool is_near = std::fabs(values[i] - expected[i]) <= tolerance;
          return is_near ? values[i] : expected[i];
        }) == "");
}

// ---- One call ----

// By tensor, then by rank: every rank makes up the inputs of all.
using Inputs = std::vector<std::vector<Vector>>;

ReduceSpec SpecOf(const Collectives& t, DataType dtype) {
  ReduceSpec spec;
  spec.dtype = dtype;
  spec.op = ReduceOp::kAdasum;
  spec.num_ranks = t.size();
  return spec;
}

void CheckSameBits(Collectives* t, const std::vector<uint8_t>& bytes) {
  std::vector<uint8_t> of_root = bytes;
  REQUIRE_OK(t->Broadcast(
      TensorList({ListTensor{of_root.data(), of_root.data(), bytes.size()}}),
      t->size() - 1));
  CHECK(of_root == bytes);
}

// Returns the results, by tensor.
std::vector<Vector> RunAdasum(Collectives* t, const ReduceSpec& spec,
                              const Inputs& inputs, bool in_place) {
  std::vector<std::vector<uint8_t>> in, out;
  for (const std::vector<Vector>& by_rank : inputs) {
    in.push_back(Encode(spec.dtype, by_rank[static_cast<size_t>(t->rank())]));
    out.emplace_back(in.back().size(), 0xee);
  }
  const auto before = in;
  std::vector<ListTensor> list;
  for (size_t i = 0; i < in.size(); ++i) {
    list.push_back(ListTensor{
        in[i].data(), in_place ? in[i].data() : out[i].data(), in[i].size()});
  }
  REQUIRE_OK(AdasumAllreduce(t, list, spec));
  if (!in_place) CHECK(in == before);
  std::vector<Vector> results;
  for (const auto& bytes : in_place ? in : out) {
    CheckSameBits(t, bytes);
    results.push_back(Decode(spec.dtype, bytes));
  }
  return results;
}

void TestAgainstReference(Collectives* t, const ReduceSpec& spec,
                          const Inputs& inputs, bool in_place) {
  const auto results = RunAdasum(t, spec, inputs, in_place);
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Vector> by_rank;
    for (const Vector& values : inputs[i]) {
      by_rank.push_back(Decode(spec.dtype, Encode(spec.dtype, values)));
      for (double& value : by_rank.back()) value *= spec.prescale;
    }
    Vector expected = AdasumOf(std::move(by_rank));
    for (double& value : expected) value *= spec.postscale;
    CheckNear(spec.dtype, results[i], expected);
  }
}

Inputs RandomInputs(size_t size, const std::vector<size_t>& counts,
                    uint32_t seed) {
  std::mt19937 generator(seed);
  // Not around zero: random vectors of high dimension are all but orthogonal.
  std::uniform_real_distribution<double> distribution(-0.5, 1.0);
  Inputs inputs(counts.size(), std::vector<Vector>(size));
  for (size_t i = 0; i < counts.size(); ++i) {
    for (Vector& values : inputs[i]) {
      values.resize(counts[i]);
      for (double& value : values) value = distribution(generator);
    }
  }
  return inputs;
}

// ---- The tests ----

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBfloat16,
                                DataType::kFloat32, DataType::kFloat64};

void TestRandom(Collectives* t) {
  const size_t size = static_cast<size_t>(t->size());
  const std::vector<std::vector<size_t>> lists = {
      {}, {0}, {1}, {7}, {1000}, {0, 3, 1, 0, 1000, 7, 129, 0}, {1, 30001, 64}};
  uint32_t seed = 0;
  for (DataType dtype : kFloats) {
    for (const auto& counts : lists) {
      const ReduceSpec spec = SpecOf(*t, dtype);
      const Inputs inputs = RandomInputs(size, counts, ++seed);
      TestAgainstReference(t, spec, inputs, /*in_place=*/false);
      TestAgainstReference(t, spec, inputs, /*in_place=*/true);
      if (counts.size() != 3) continue;
      ReduceSpec scaled = spec;
      scaled.prescale = 0.25;
      scaled.postscale = 6.0;
      TestAgainstReference(t, scaled, inputs, /*in_place=*/false);
    }
  }
}

void TestLarge(Collectives* t, DataType dtype) {
  TestAgainstReference(
      t, SpecOf(*t, dtype),
      RandomInputs(static_cast<size_t>(t->size()), {kMost, kMost / 3}, 5),
      /*in_place=*/false);
}

void TestOrthogonalAreAdded(Collectives* t, DataType dtype) {
  const size_t size = static_cast<size_t>(t->size());
  Inputs inputs(1, std::vector<Vector>(size, Vector(5 * size + 100, 0.0)));
  for (size_t r = 0; r < size; ++r) {
    for (size_t i = 0; i < 5; ++i) inputs[0][r][5 * r + i] = double(r + i + 1);
  }
  const Vector sum = RunAdasum(t, SpecOf(*t, dtype), inputs, false)[0];
  CHECK(Differences(sum, [size](size_t i) {
          return i < 5 * size ? double(i / 5 + i % 5 + 1) : 0.0;
        }) == "");
}

void TestEqualAreAveraged(Collectives* t, DataType dtype) {
  const size_t size = static_cast<size_t>(t->size());
  Vector values(333);
  for (size_t i = 0; i < values.size(); ++i) values[i] = double(i % 17) - 8;
  const Inputs inputs(1, std::vector<Vector>(size, values));
  CHECK(RunAdasum(t, SpecOf(*t, dtype), inputs, true)[0] == values);
}

// Parallel vectors of different lengths, x and k x, give their average.
void TestParallelAreAveraged(Collectives* t, DataType dtype) {
  if (t->size() != 2) return;
  const Inputs inputs = {{Vector(99, 1.0), Vector(99, 3.0)},
                         {Vector(7, 2.0), Vector(7, -6.0)}};
  const auto averages = RunAdasum(t, SpecOf(*t, dtype), inputs, true);
  CHECK(averages[0] == Vector(99, 2.0));
  CHECK(averages[1] == Vector(7, -2.0));
}

// If only one rank has values that are not 0, the result has its bits.
void TestZeroVectorsDoNotCount(Collectives* t, DataType dtype) {
  const size_t size = static_cast<size_t>(t->size());
  for (size_t only = 0; only < size; ++only) {
    Inputs inputs = RandomInputs(size, {77}, 8);
    for (size_t r = 0; r < size; ++r) {
      if (r != only) inputs[0][r].assign(77, 0.0);
    }
    CHECK(RunAdasum(t, SpecOf(*t, dtype), inputs, true)[0] ==
          Decode(dtype, Encode(dtype, inputs[0][only])));
  }
  const Inputs zeros(2, std::vector<Vector>(size, Vector(9, 0.0)));
  CHECK(RunAdasum(t, SpecOf(*t, dtype), zeros, false)[1] == Vector(9, 0.0));
}

// Two opposite vectors cancel to exactly zero, which then does not count.
void TestOppositesCancel(Collectives* t, DataType dtype) {
  if (t->size() < 2) return;
  const size_t size = static_cast<size_t>(t->size());
  Inputs inputs(1, std::vector<Vector>(size, Vector(50, 0.0)));
  inputs[0][0].assign(50, 3.0);
  // The rank that meets rank 0 first.
  const size_t partner = size == 2 || size == 4 || size == 8 ? 1
                         : size < 4                          ? 2
                         : size < 8                          ? 4
                                                             : 8;
  inputs[0][partner].assign(50, -3.0);
  CHECK(RunAdasum(t, SpecOf(*t, dtype), inputs, true)[0] == Vector(50, 0.0));
}

// A tensor's result does not depend on its neighbours.
void TestTensorsAreIndependent(Collectives* t) {
  const size_t size = static_cast<size_t>(t->size());
  const ReduceSpec spec = SpecOf(*t, DataType::kFloat64);
  const Inputs both = RandomInputs(size, {500, 900}, 9);
  const auto together = RunAdasum(t, spec, both, false);
  CheckNear(spec.dtype, RunAdasum(t, spec, {both[0]}, false)[0], together[0]);
  CheckNear(spec.dtype, RunAdasum(t, spec, {both[1]}, false)[0], together[1]);
}

void TestNanSpreads(Collectives* t) {
  const size_t size = static_cast<size_t>(t->size());
  Inputs inputs(2, std::vector<Vector>(size, Vector(40, 1.0)));
  inputs[0][size - 1][39] = std::nan("");
  const auto results =
      RunAdasum(t, SpecOf(*t, DataType::kBfloat16), inputs, false);
  CHECK(std::isnan(results[0][39]));
  CHECK(results[1] == Vector(40, 1.0));
}

void TestInTurn(Collectives* t) {
  const size_t size = static_cast<size_t>(t->size());
  std::mt19937 generator(static_cast<uint32_t>(size));
  for (int turn = 0; turn < kNumTurns; ++turn) {
    const uint32_t which = generator() % 4;
    const size_t count = (which == 0) ? 3 : (which == 1) ? 900 : 20000;
    const DataType dtype = kFloats[generator() % 4];
    TestAgainstReference(t, SpecOf(*t, dtype),
                         RandomInputs(size, {count, count / 7, 1}, generator()),
                         turn % 2 == 0);
    std::vector<double> values(count, 1.0);
    ReduceSpec sum = SpecOf(*t, DataType::kFloat64);
    sum.op = ReduceOp::kSum;
    const ListTensor one{values.data(), values.data(), count * sizeof(double)};
    REQUIRE_OK(t->Allreduce(TensorList({one}), sum));
    CHECK(Differences(values, [size](size_t) { return double(size); }) == "");
  }
}

// Runs a test with each dtype, on 1 to kMaxSize ranks.
void RunWithFloats(void (*test)(Collectives*, DataType)) {
  RunThreadsUpTo(kMaxSize, [test](Collectives* t) {
    for (DataType dtype : kFloats) test(t, dtype);
  });
}

TEST_CASE("random tensors, scaled or not, in place or not") {
  RunThreadsUpTo(kMaxSize, TestRandom);
}
TEST_CASE("orthogonal vectors are added") {
  RunWithFloats(TestOrthogonalAreAdded);
}
TEST_CASE("equal vectors are averaged") { RunWithFloats(TestEqualAreAveraged); }
TEST_CASE("parallel vectors are averaged") {
  RunWithFloats(TestParallelAreAveraged);
}
TEST_CASE("zero vectors do not count") {
  RunWithFloats(TestZeroVectorsDoNotCount);
}
TEST_CASE("opposite vectors cancel to zero, which then does not count") {
  RunWithFloats(TestOppositesCancel);
}
TEST_CASE("tensors of a million elements") {
  RunThreadsUpTo(4, [](Collectives* t) {
    for (DataType dtype : kFloats) TestLarge(t, dtype);
  });
}
TEST_CASE("a tensor's result does not depend on its neighbours") {
  RunThreadsUpTo(kMaxSize, TestTensorsAreIndependent);
}
TEST_CASE("NaN spreads within its tensor alone") {
  RunThreadsUpTo(kMaxSize, TestNanSpreads);
}
TEST_CASE("in turn with allreduces on the same slabs") {
  RunThreadsUpTo(kMaxSize, TestInTurn);
}
#if !HVD_SANITIZED
TEST_CASE("more than a batch, with a tensor that is larger than one") {
  RunThreads(3, [](Collectives* t) {
    // Small tensors after a large one, and in the middle one that is too large
    // for a batch.
    const size_t batch = kAdasumBatchBytes / sizeof(float);
    const std::vector<size_t> counts = {batch / 2,  batch / 2, 5,
                                        batch + 17, 0,         3};
    TestAgainstReference(
        t, SpecOf(*t, DataType::kFloat32),
        RandomInputs(static_cast<size_t>(t->size()), counts, 6),
        /*in_place=*/true);
  });
}
#endif

}  // namespace
}  // namespace hvd
