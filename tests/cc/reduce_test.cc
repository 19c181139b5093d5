// Every dtype and reduction against a plain loop in double, and the corners:
// NaN, rounding of 16-bit floats, wrapping, truncation, saturation.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/reduce.h"

namespace hvd {
namespace {

constexpr size_t kCount = 4099;  // two blocks and a tail

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kAdasum:  // adasum_test.cc
      break;
  }
  return 0;
}

template <typename T>
void TestType(DataType dtype) {
  for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                        ReduceOp::kMax, ReduceOp::kProduct}) {
      std::vector<std::vector<T>> inputs;
      std::vector<const void*> sources;
      for (int rank = 0; rank < num_ranks; ++rank) {
        inputs.emplace_back(kCount);
        for (size_t i = 0; i < kCount; ++i) {
          inputs.back()[i] =
              static_cast<T>((i + static_cast<size_t>(rank)) % 3 + 1);
        }
      }
      for (const auto& input : inputs) sources.push_back(input.data());
      ReduceSpec spec;
      spec.dtype = dtype;
      spec.op = op;
      spec.num_ranks = num_ranks;
      std::vector<double> expected(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        expected[i] = static_cast<double>(inputs[0][i]);
        for (size_t r = 1; r < inputs.size(); ++r) {
          expected[i] =
              Combine(op, expected[i], static_cast<double>(inputs[r][i]));
        }
        if (op == ReduceOp::kAverage) expected[i] /= num_ranks;
      }
      // Into the last source: the contract allows it.
      T* out = inputs.back().data();
      Reduce(spec, sources.data(), num_ranks, out, kCount);
      CHECK(Differences(inputs.back(), [&](size_t i) {
              return static_cast<T>(expected[i]);
            }) == "");
    }
  }
}

template <typename T>
T ReduceOne(ReduceSpec spec, const std::vector<T>& values) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  spec.num_ranks = static_cast<int>(values.size());
  T result{};
  Reduce(spec, sources.data(), spec.num_ranks, &result, 1);
  return result;
}

TEST_CASE("NaN in one input is NaN in the result") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum,
                      ReduceOp::kProduct, ReduceOp::kAverage}) {
    ReduceSpec spec;
    spec.op = op;
    CHECK(std::isnan(ReduceOne<float>(spec, {nan, 1.0f, 2.0f})));
    CHECK(std::isnan(ReduceOne<float>(spec, {1.0f, nan})));
  }
}

TEST_CASE("integers wrap in sums, and saturate where they are scaled") {
  ReduceSpec spec;
  spec.dtype = DataType::kInt8;
  CHECK(ReduceOne<int8_t>(spec, {127, 1}) == -128);  // wraps
  spec.op = ReduceOp::kAverage;
  CHECK(ReduceOne<int8_t>(spec, {127, 127}) == 127);  // does not
  CHECK(ReduceOne<int8_t>(spec, {-1, -2}) == -1);     // toward zero
  spec.dtype = DataType::kInt64;
  spec.op = ReduceOp::kSum;
  const int64_t max = std::numeric_limits<int64_t>::max();
  CHECK(ReduceOne<int64_t>(spec, {max, 1}) ==
        std::numeric_limits<int64_t>::lowest());
  spec.postscale = 1e30;
  CHECK(ReduceOne<int64_t>(spec, {1, 1}) == max);  // saturates
  spec.dtype = DataType::kInt32;
  ReduceSpec scaled;
  scaled.dtype = DataType::kInt8;
  scaled.postscale = 10;
  CHECK(ReduceOne<int8_t>(scaled, {60, 40}) == 127);  // saturates
  CHECK(ReduceOne<int8_t>(scaled, {-60, -40}) == -128);
  spec.prescale = 0.5;
  spec.postscale = 1.0;
  CHECK(ReduceOne<int32_t>(spec, {3, 3}) == 2);  // 1 + 1
}

TEST_CASE("prescale, postscale and the divisor of an average") {
  ReduceSpec spec;
  spec.prescale = 2.0;
  spec.postscale = 0.5;
  CHECK(ReduceOne<float>(spec, {1.0f, 2.0f, 4.0f}) == 7.0f);
  spec.op = ReduceOp::kProduct;
  CHECK(ReduceOne<float>(spec, {1.0f, 2.0f, 4.0f}) == 32.0f);
  spec.op = ReduceOp::kMax;
  spec.prescale = -1.0;
  CHECK(ReduceOne<float>(spec, {1.0f, 2.0f}) == -0.5f);
  // Average of three is a division, not a product with a rounded third.
  spec = ReduceSpec();
  spec.op = ReduceOp::kAverage;
  CHECK(ReduceOne<float>(spec, {5.0f, 5.0f, 7.0f}) == 17.0f / 3.0f);
}

float WidenBfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// All 65,536 values, alone: the vector path and the tail must both return
// them, and a sum with zero must not change them.
void TestSixteenBitFloats(DataType dtype, uint16_t inf, uint16_t one,
                          uint16_t next_after_one) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<uint16_t> zeros(all.size(), 0);
  for (size_t length : {all.size(), size_t{1}}) {
    std::vector<uint16_t> out(all.size());
    for (size_t begin = 0; begin < all.size(); begin += length) {
      const void* sources[] = {all.data() + begin, zeros.data() + begin};
      ReduceSpec spec;
      spec.dtype = dtype;
      spec.num_ranks = 2;
      Reduce(spec, sources, 2, out.data() + begin, length);
    }
    const auto is_nan = [inf](uint16_t bits) { return (bits & 0x7fff) > inf; };
    CHECK(Differences(out, [&](size_t i) {
            if (is_nan(all[i])) return is_nan(out[i]) ? out[i] : all[i];
            return all[i] == 0x8000 ? uint16_t{0} : all[i];  // -0
          }) == "");
  }
  // Sums are made in float32: many small ones do not vanish beside a one.
  ReduceSpec spec;
  spec.dtype = dtype;
  const uint16_t half_ulp = dtype == DataType::kBfloat16 ? 0x3b80 : 0x1000;
  CHECK(ReduceOne<uint16_t>(spec, {one, half_ulp, half_ulp}) == next_after_one);
  // Exactly between two values: to the even one.
  CHECK(ReduceOne<uint16_t>(spec, {one, half_ulp}) == one);
  // Too large: infinity.
  const uint16_t largest = static_cast<uint16_t>(inf - 1);
  CHECK(ReduceOne<uint16_t>(spec, {largest, largest}) == inf);
}

// Averages of few and many arrays, in whole vectors and in the tail, are summed
// in the order of the arrays, in float32, divided and then rounded once.
void TestAveragesOfSixteenBitFloats(DataType dtype) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> value(-100.0f, 100.0f);
  for (size_t num_sources = 1; num_sources <= 6; ++num_sources) {
    for (int num_ranks : {1, 2, 3}) {
      std::vector<std::vector<uint16_t>> narrow(num_sources);
      std::vector<float> sums(kCount, 0.0f);
      std::vector<const void*> sources;
      for (std::vector<uint16_t>& source : narrow) {
        std::vector<float> wide(kCount);
        for (float& v : wide) v = value(generator);
        source.resize(kCount);
        NarrowToHalves(dtype, wide.data(), source.data(), kCount);
        WidenHalves(dtype, source.data(), wide.data(), kCount);
        for (size_t i = 0; i < kCount; ++i) sums[i] += wide[i];
        sources.push_back(source.data());
      }
      for (float& sum : sums) sum /= static_cast<float>(num_ranks);
      std::vector<uint16_t> expected(kCount), out(kCount);
      NarrowToHalves(dtype, sums.data(), expected.data(), kCount);
      ReduceSpec spec;
      spec.dtype = dtype;
      spec.op = ReduceOp::kAverage;
      spec.num_ranks = num_ranks;
      Reduce(spec, sources.data(), static_cast<int>(num_sources), out.data(),
             kCount);
      CHECK(out == expected);
    }
  }
}

TEST_CASE("bools have a minimum and a maximum alone") {
  CHECK(CheckReduce(DataType::kBool, ReduceOp::kMin).ok());
  CHECK(!CheckReduce(DataType::kBool, ReduceOp::kSum).ok());
  ReduceSpec spec;
  spec.dtype = DataType::kBool;
  spec.op = ReduceOp::kMax;
  CHECK(ReduceOne<uint8_t>(spec, {0, 1, 0}) == 1);
  spec.op = ReduceOp::kMin;
  CHECK(ReduceOne<uint8_t>(spec, {1, 1, 0}) == 0);
}

TEST_CASE("adasum needs floats") {
  for (int i = 0; i < kNumDataTypes; ++i) {
    const DataType dtype = static_cast<DataType>(i);
    const Status status = CheckReduce(dtype, ReduceOp::kAdasum);
    CHECK(status.ok() == (IsFloating(dtype) && !IsFloat8(dtype)));
    if (!status.ok()) CHECK(Contains(status.message(), DataTypeName(dtype)));
  }
}

// A neutral source, before or after the others, changes no bit.
template <typename T>
void TestNeutral(DataType dtype, const std::vector<T>& values) {
  for (ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    if (!CheckReduce(dtype, op).ok()) continue;
    std::vector<T> neutral(values.size() + 1, T(42));
    FillNeutral(dtype, op, neutral.data(), values.size());
    CHECK(neutral.back() == T(42));
    const void* sources[] = {neutral.data(), values.data(), neutral.data()};
    std::vector<T> out(values.size());
    ReduceSpec spec;
    spec.dtype = dtype;
    spec.op = op;
    Reduce(spec, sources, 3, out.data(), values.size());
    CHECK(out == values);
  }
}

template <typename T>
void TestNeutralOf(DataType dtype) {
  using Limits = std::numeric_limits<T>;
  TestNeutral<T>(dtype, {Limits::lowest(), Limits::max(), T(0), T(1), T(5)});
  if (!Limits::has_infinity) return;
  TestNeutral<T>(dtype, {Limits::infinity(), -Limits::infinity()});
}

TEST_CASE("a neutral input changes no bit") {
  TestNeutral<uint8_t>(DataType::kBool, {0, 1, 1});
  TestNeutralOf<uint8_t>(DataType::kUint8);
  TestNeutralOf<int8_t>(DataType::kInt8);
  TestNeutralOf<uint16_t>(DataType::kUint16);
  TestNeutralOf<int16_t>(DataType::kInt16);
  TestNeutralOf<uint32_t>(DataType::kUint32);
  TestNeutralOf<int32_t>(DataType::kInt32);
  TestNeutralOf<uint64_t>(DataType::kUint64);
  TestNeutralOf<int64_t>(DataType::kInt64);
  TestNeutralOf<float>(DataType::kFloat32);
  TestNeutralOf<double>(DataType::kFloat64);
  // As bits: 1, -1, the largest, the infinities.
  TestNeutral<uint16_t>(DataType::kFloat16,
                        {0x3c00, 0xbc00, 0x7bff, 0x7c00, 0xfc00});
  TestNeutral<uint16_t>(DataType::kBfloat16,
                        {0x3f80, 0xbf80, 0x7f7f, 0x7f80, 0xff80});
  float zero = 1.0f;
  FillNeutral(DataType::kFloat32, ReduceOp::kAdasum, &zero, 1);
  CHECK(zero == 0.0f);
}

TEST_CASE("every reduction of up to five inputs, of every type") {
  TestType<uint8_t>(DataType::kUint8);
  TestType<int8_t>(DataType::kInt8);
  TestType<uint16_t>(DataType::kUint16);
  TestType<int16_t>(DataType::kInt16);
  TestType<uint32_t>(DataType::kUint32);
  TestType<int32_t>(DataType::kInt32);
  TestType<uint64_t>(DataType::kUint64);
  TestType<int64_t>(DataType::kInt64);
  TestType<float>(DataType::kFloat32);
  TestType<double>(DataType::kFloat64);
}
TEST_CASE("all values of the floats of 16 bits, and how sums of them round") {
  CHECK(WidenBfloat16(0x3f80) == 1.0f);
  TestSixteenBitFloats(DataType::kBfloat16, 0x7f80, 0x3f80, 0x3f81);
  TestSixteenBitFloats(DataType::kFloat16, 0x7c00, 0x3c00, 0x3c01);
}
TEST_CASE("averages of floats of 16 bits round once") {
  TestAveragesOfSixteenBitFloats(DataType::kBfloat16);
  TestAveragesOfSixteenBitFloats(DataType::kFloat16);
}

}  // namespace
}  // namespace hvd
