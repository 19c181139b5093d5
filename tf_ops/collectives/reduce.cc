#include "tf_ops/collectives/reduce.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HVD_MULTIVERSION 1
#include <immintrin.h>
#endif

namespace hvd {
namespace {

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

float FromFloat16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {  // inf, NaN
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {  // zero, subnormal: exact in float32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounds to nearest even.
uint16_t ToFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) {  // rounds to 2^16 or more
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) {  // subnormal: let the FPU round at 2^-24
    float absolute;
    std::memcpy(&absolute, &magnitude, sizeof(absolute));
    const float shifted = absolute + 0.5f;  // one unit is now 2^-24
    uint32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, sizeof(shifted_bits));
    return static_cast<uint16_t>(sign | (shifted_bits - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t rounded = magnitude + 0xfffu + odd - (112u << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// value * factor / divisor.
struct Scale {
  double factor = 1.0;
  double divisor = 1.0;
  bool identity = true;
};
struct Scales {
  Scale pre;
  Scale post;
};

// The nearest integer of type `Acc` toward zero.
template <typename Acc>
Acc Saturate(double value) {
  // 2^63 and 2^64 are doubles, the largest integers below them are not.
  const double limit = std::numeric_limits<Acc>::is_signed ? 0x1p63 : 0x1p64;
  if (value != value) return 0;
  if (value >= limit) return std::numeric_limits<Acc>::max();
  const double lowest = static_cast<double>(std::numeric_limits<Acc>::lowest());
  if (value <= lowest) return std::numeric_limits<Acc>::lowest();
  return static_cast<Acc>(value);
}

template <typename Acc>
Acc ScaleOne(Acc value, const Scale& scale) {
  if (scale.factor == 1.0) return value / static_cast<Acc>(scale.divisor);
  return Saturate<Acc>(static_cast<double>(value) * scale.factor /
                       scale.divisor);
}

bool IsPowerOfTwo(int n) { return (n & (n - 1)) == 0; }

Scales MakeScales(const ReduceSpec& spec) {
  Scales scales;
  scales.pre.factor = spec.prescale;
  scales.pre.identity = spec.prescale == 1.0;
  scales.post.factor = spec.postscale;
  if (spec.op == ReduceOp::kAverage) {
    // Multiplying is faster, and the same, where 1 / num_ranks is exact.
    if (IsFloating(spec.dtype) && IsPowerOfTwo(spec.num_ranks)) {
      scales.post.factor /= spec.num_ranks;
    } else {
      scales.post.divisor = spec.num_ranks;
    }
  }
  scales.post.identity =
      scales.post.factor == 1.0 && scales.post.divisor == 1.0;
  return scales;
}

#define HVD_F16C 0
namespace baseline {
#include "tf_ops/collectives/reduce_kernels.inc"
}  // namespace baseline
#undef HVD_F16C

#if HVD_MULTIVERSION
#define HVD_F16C 1
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace v3 {
#include "tf_ops/collectives/reduce_kernels.inc"
}  // namespace v3
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
namespace v4 {
#include "tf_ops/collectives/reduce_kernels.inc"
}  // namespace v4
#pragma GCC pop_options
#undef HVD_F16C
#endif

using DispatchFunction = void (*)(DataType, ReduceOp, const Scales&,
                                  const void* const*, int, void*, size_t);

DispatchFunction ChooseDispatch() {
#if HVD_MULTIVERSION
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd")) {
    return v4::ReduceDispatch;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    return v3::ReduceDispatch;
  }
#endif
  return baseline::ReduceDispatch;
}

}  // namespace

Status CheckReduce(DataType dtype, ReduceOp op) {
  if (dtype != DataType::kBool || op == ReduceOp::kMin ||
      op == ReduceOp::kMax) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      std::string("an allreduce of bool must be Min (all) or Max (any); "
                  "received op=") +
      ReduceOpName(op) + ": cast to an integer type to count");
}

void Reduce(const ReduceSpec& spec, const void* const* sources, int num_sources,
            void* out, size_t num_elements) {
  static const DispatchFunction dispatch = ChooseDispatch();
  dispatch(spec.dtype, spec.op, MakeScales(spec), sources, num_sources, out,
           num_elements);
}

}  // namespace hvd
