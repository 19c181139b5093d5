#include "tf_ops/collectives/reduce.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "tf_ops/collectives/half.h"
#include "tf_ops/collectives/multiversion.h"
#include "tf_ops/collectives/vectors.h"

#if HVD_MULTIVERSION
#include <immintrin.h>
#endif

namespace hvd {
namespace {

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

// Truncates toward zero and saturates at the limits of `Acc`; NaN gives 0.
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
HVD_BEGIN_TARGET(HVD_V3)
namespace v3 {
#include "tf_ops/collectives/reduce_kernels.inc"
}  // namespace v3
HVD_END_TARGET
HVD_BEGIN_TARGET(HVD_V4 HVD_WIDE)
namespace v4 {
#include "tf_ops/collectives/reduce_kernels.inc"
}  // namespace v4
HVD_END_TARGET
#undef HVD_F16C
#endif

// The functions of reduce_kernels.inc for one instruction set.
struct Kernels {
  void (*reduce)(DataType, ReduceOp, const Scales&, const void* const*, int,
                 void*, size_t);
  void (*widen)(DataType, const void*, float*, size_t);
  void (*narrow)(DataType, const float*, void*, size_t);
};

Kernels ChooseKernels() {
  switch (FindVectors()) {
#if HVD_MULTIVERSION
    case Vectors::kV4:
      return {v4::ReduceDispatch, v4::WidenDispatch, v4::NarrowDispatch};
    case Vectors::kV3:
      return {v3::ReduceDispatch, v3::WidenDispatch, v3::NarrowDispatch};
#endif
    default:
      return {baseline::ReduceDispatch, baseline::WidenDispatch,
              baseline::NarrowDispatch};
  }
}

const Kernels& ChosenKernels() {
  static const Kernels kernels = ChooseKernels();
  return kernels;
}

template <typename T>
T NeutralOf(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kAdasum:
      return T(0);
    case ReduceOp::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::kProduct:
      return T(1);
  }
  return T(0);
}

// The bits of a float8; the highest one is the sign.
uint8_t NeutralFloat8(ReduceOp op, uint8_t largest, uint8_t one) {
  switch (op) {
    case ReduceOp::kMin:
      return largest;
    case ReduceOp::kMax:
      return largest | 0x80;
    case ReduceOp::kProduct:
      return one;
    default:
      return 0;
  }
}

template <typename T>
void FillWith(void* to, size_t num_elements, T value) {
  std::fill_n(static_cast<T*>(to), num_elements, value);
}

}  // namespace

void Reduce(const ReduceSpec& spec, const void* const* sources, int num_sources,
            void* out, size_t num_elements) {
  ChosenKernels().reduce(spec.dtype, spec.op, MakeScales(spec), sources,
                         num_sources, out, num_elements);
}

void WidenHalves(DataType dtype, const void* from, float* to,
                 size_t num_elements) {
  ChosenKernels().widen(dtype, from, to, num_elements);
}

void NarrowToHalves(DataType dtype, const float* from, void* to,
                    size_t num_elements) {
  ChosenKernels().narrow(dtype, from, to, num_elements);
}

void FillNeutral(DataType dtype, ReduceOp op, void* to, size_t num_elements) {
  switch (dtype) {
    case DataType::kBool:
      return FillWith(to, num_elements, NeutralOf<bool>(op));
    case DataType::kUint8:
      return FillWith(to, num_elements, NeutralOf<uint8_t>(op));
    case DataType::kInt8:
      return FillWith(to, num_elements, NeutralOf<int8_t>(op));
    case DataType::kUint16:
      return FillWith(to, num_elements, NeutralOf<uint16_t>(op));
    case DataType::kInt16:
      return FillWith(to, num_elements, NeutralOf<int16_t>(op));
    case DataType::kUint32:
      return FillWith(to, num_elements, NeutralOf<uint32_t>(op));
    case DataType::kInt32:
      return FillWith(to, num_elements, NeutralOf<int32_t>(op));
    case DataType::kUint64:
      return FillWith(to, num_elements, NeutralOf<uint64_t>(op));
    case DataType::kInt64:
      return FillWith(to, num_elements, NeutralOf<int64_t>(op));
    case DataType::kFloat16:
      return FillWith(to, num_elements, ToFloat16(NeutralOf<float>(op)));
    case DataType::kBfloat16:
      return FillWith(to, num_elements, ToBfloat16(NeutralOf<float>(op)));
    case DataType::kFloat32:
      return FillWith(to, num_elements, NeutralOf<float>(op));
    case DataType::kFloat64:
      return FillWith(to, num_elements, NeutralOf<double>(op));
    case DataType::kFloat8E4m3fn:
      return FillWith(to, num_elements, NeutralFloat8(op, 0x7e, 0x38));
    case DataType::kFloat8E5m2:
      return FillWith(to, num_elements, NeutralFloat8(op, 0x7c, 0x3c));
  }
}

}  // namespace hvd
