// The source of the kernels that scale on a GPU, run on the host.
#include "tf_ops/gpu/scale_kernel.h"

#include <cmath>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/reduce.h"
#include "tf_ops/engine/gpu_reduction.h"

namespace hvd {
namespace {

constexpr float kFactors[] = {1.0f / 3, 4.0f / 3, 1.0f / 7, 0.5f, 3e-6f, 1e6f};

// All numbers of 16 bits give what the CPU's reductions give.
template <typename Type>
int NumWrongHalves(DataType dtype, float factor) {
  int num_wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float wide = 0;
    WidenHalves(dtype, &half, &wide, 1);
    wide *= factor;
    uint16_t expected = 0;
    NarrowToHalves(dtype, &wide, &expected, 1);
    const uint16_t found = Type::Times(half, factor);
    float value = 0;
    WidenHalves(dtype, &found, &value, 1);
    const bool is_right =
        std::isnan(wide) ? std::isnan(value) : found == expected;
    num_wrong += is_right ? 0 : 1;
  }
  return num_wrong;
}

TEST_CASE("numbers of 16 bits are scaled as on the CPU") {
  for (float factor : kFactors) {
    CAPTURE(factor);
    CHECK(NumWrongHalves<hvd_scale::Bfloat16>(DataType::kBfloat16, factor) ==
          0);
    CHECK(NumWrongHalves<hvd_scale::Float16>(DataType::kFloat16, factor) == 0);
  }
}

// Looks for a nearer number than the result.
template <typename Type>
void TestBytes(float largest) {
  using Format = typename Type::Format;
  for (float factor : kFactors) {
    for (uint32_t bits = 0; bits < 256; ++bits) {
      const float wide = Format::Widen(bits) * factor;
      const uint32_t found = Type::Times(static_cast<uint8_t>(bits), factor);
      const float value = Format::Widen(found);
      CAPTURE(bits);
      CAPTURE(factor);
      if (std::isnan(wide)) {
        CHECK(std::isnan(value));
        continue;
      }
      CHECK(std::signbit(value) == std::signbit(wide));
      if (std::fabs(wide) > largest) {
        CHECK(std::fabs(value) >= largest);
        continue;
      }
      for (uint32_t other = 0; other < 256; ++other) {
        const float candidate = Format::Widen(other);
        if (!std::isfinite(candidate)) continue;
        const float gain =
            std::fabs(value - wide) - std::fabs(candidate - wide);
        REQUIRE(gain <= 0);
        if (gain == 0 && candidate != value) REQUIRE(found % 2 == 0);
      }
    }
  }
}

TEST_CASE("bytes are scaled to the nearest") {
  TestBytes<hvd_scale::Float8E4m3fn>(448.0f);
  TestBytes<hvd_scale::Float8E5m2>(57344.0f);
}

// NCCL multiplies by the factor as the dtype has it, a kernel by the scale.
template <typename Type>
void TestAverages(DataType dtype) {
  Request request;
  request.op = ReduceOp::kAverage;
  for (int size = 2; size <= 2000; ++size) {
    CAPTURE(size);
    const GpuReduction r = ReductionOf(request, dtype, size, size, false);
    const double factor = r.op == kNcclAvg ? 1.0 / size : r.factor;
    uint8_t bits = 0;
    StoreScalar(factor, dtype, &bits);
    const double used = Type::Format::Widen(bits) * r.scale;
    REQUIRE(used * size == doctest::Approx(1.0));
  }
}

TEST_CASE("an average of bytes divides by any number of ranks") {
  TestAverages<hvd_scale::Float8E4m3fn>(DataType::kFloat8E4m3fn);
  TestAverages<hvd_scale::Float8E5m2>(DataType::kFloat8E5m2);
}

TEST_CASE("on one rank nothing is multiplied") {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    Request request;
    request.op = op;
    for (DataType dtype : {DataType::kFloat32, DataType::kFloat8E4m3fn}) {
      const GpuReduction r = ReductionOf(request, dtype, 1, 1, false);
      CHECK(r.op == kNcclSum);
      CHECK(r.factor == 1.0);
      CHECK(r.scale == 1.0);
    }
  }
}

TEST_CASE("threads share the numbers, aligned or not") {
  for (size_t offset : {0, 1}) {
    for (unsigned long long count : {0, 1, 3, 4, 1000}) {
      std::vector<float> numbers(count + 2, 3.0f);
      for (unsigned long long thread = 0; thread < 7; ++thread) {
        hvd_scale::Scale<hvd_scale::Float32>(numbers.data() + offset, count,
                                             2.0f, thread, 7);
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        const bool is_in = i >= offset && i < offset + count;
        CHECK(numbers[i] == (is_in ? 6.0f : 3.0f));
      }
    }
  }
}

}  // namespace
}  // namespace hvd
