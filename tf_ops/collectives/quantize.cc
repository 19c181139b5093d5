#include "tf_ops/collectives/quantize.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "tf_ops/collectives/multiversion.h"
#include "tf_ops/collectives/vectors.h"

namespace hvd {
namespace {

template <typename Real>
struct PackFormat;
// kShift: a number so large that the unit of its last bit is 1, and its last 8
// bits are 0.
template <>
struct PackFormat<float> {
  using Bits = int32_t;
  static constexpr float kShift = 0x1.8p23f;
  static constexpr float kTiny = 0x1p-100f;
};
template <>
struct PackFormat<double> {
  using Bits = int64_t;
  static constexpr double kShift = 0x1.8p52;
  static constexpr double kTiny = 0x1p-1000;
};

namespace baseline {
#include "tf_ops/collectives/quantize_kernels.inc"
}  // namespace baseline

#if HVD_MULTIVERSION
HVD_BEGIN_TARGET(HVD_V3)
namespace v3 {
#include "tf_ops/collectives/quantize_kernels.inc"
}  // namespace v3
HVD_END_TARGET
HVD_BEGIN_TARGET(HVD_V4 HVD_WIDE)
namespace v4 {
#include "tf_ops/collectives/quantize_kernels.inc"
}  // namespace v4
HVD_END_TARGET
#endif

// The functions of quantize_kernels.inc for one instruction set.
template <typename Real>
struct PackKernels {
  void (*pack)(const Real*, size_t, std::byte*);
  void (*unpack)(const std::byte*, size_t, Real*);
  void (*add)(const Real*, const Real*, size_t, Real*);
  void (*keep_lost)(const Real*, const Real*, size_t, Real*);
};

#define HVD_PACK_KERNELS(set)                                          \
  format == WireFormat::kInt4                                          \
      ? PackKernels<Real>{set::PackInt4<Real>, set::UnpackInt4<Real>,  \
                          set::AddReals<Real>, set::KeepLost<Real>}    \
      : PackKernels<Real> {                                            \
    set::PackReals<Real>, set::UnpackReals<Real>, set::AddReals<Real>, \
        set::KeepLost<Real>                                            \
  }

template <typename Real>
PackKernels<Real> ChoosePackKernels(WireFormat format) {
  switch (FindVectors()) {
#if HVD_MULTIVERSION
    case Vectors::kV4:
      return HVD_PACK_KERNELS(v4);
    case Vectors::kV3:
      return HVD_PACK_KERNELS(v3);
#endif
    default:
      return HVD_PACK_KERNELS(baseline);
  }
}
#undef HVD_PACK_KERNELS

template <typename Real>
const PackKernels<Real>& ChosenPackKernels(WireFormat format) {
  static const PackKernels<Real> int8 =
      ChoosePackKernels<Real>(WireFormat::kInt8);
  static const PackKernels<Real> int4 =
      ChoosePackKernels<Real>(WireFormat::kInt4);
  return format == WireFormat::kInt4 ? int4 : int8;
}

bool IsHalf(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
}

// Calls f(Real()) for the type in which `dtype` is packed.
template <typename F>
void WithReal(DataType dtype, F f) {
  if (dtype == DataType::kFloat64) return f(double());
  f(float());
}

// Calls f(first block, number of blocks) for runs that stay in the L1 cache.
constexpr size_t kRunBlocks = 16;
template <typename F>
void ForEachRun(size_t num_blocks, F f) {
  for (size_t begin = 0; begin < num_blocks; begin += kRunBlocks) {
    f(begin, std::min(kRunBlocks, num_blocks - begin));
  }
}
constexpr size_t kRunElements = kRunBlocks * kPackedElements;

// `n` elements of `dtype` as reals: where they are, or widened into `memory`.
template <typename Real>
const Real* AsReals(DataType dtype, const std::byte* from, size_t n,
                    Real* memory) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (IsHalf(dtype)) {
      WidenHalves(dtype, from, memory, n);
      return memory;
    }
  }
  return reinterpret_cast<const Real*>(from);
}

template <typename Real>
void UnpackRun(WireFormat format, DataType dtype, const std::byte* from,
               size_t num_blocks, std::byte* to) {
  const PackKernels<Real>& kernels = ChosenPackKernels<Real>(format);
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (IsHalf(dtype)) {
      alignas(64) Real reals[kRunElements];
      kernels.unpack(from, num_blocks, reals);
      return NarrowToHalves(dtype, reals, to, num_blocks * kPackedElements);
    }
  }
  kernels.unpack(from, num_blocks, reinterpret_cast<Real*>(to));
}

// `residual` may be null.
template <typename Real>
void PackRun(WireFormat format, const Real* reals, size_t num_blocks,
             std::byte* to, Real* residual) {
  const PackKernels<Real>& kernels = ChosenPackKernels<Real>(format);
  if (residual == nullptr) return kernels.pack(reals, num_blocks, to);
  const size_t n = num_blocks * kPackedElements;
  alignas(64) Real whole[kRunElements];
  alignas(64) Real sent[kRunElements];
  kernels.add(reals, residual, n, whole);
  kernels.pack(whole, num_blocks, to);
  kernels.unpack(to, num_blocks, sent);
  kernels.keep_lost(whole, sent, n, residual);
}

template <typename Real>
Real* RunOf(void* residual, size_t begin) {
  return residual == nullptr
             ? nullptr
             : static_cast<Real*>(residual) + begin * kPackedElements;
}

}  // namespace

void Pack(WireFormat format, DataType dtype, const void* from,
          size_t num_blocks, std::byte* to, void* residual) {
  const size_t stride = kPackedElements * ElementBytes(dtype);
  const auto* const source = static_cast<const std::byte*>(from);
  WithReal(dtype, [&](auto real) {
    using Real = decltype(real);
    ForEachRun(num_blocks, [&](size_t begin, size_t n) {
      alignas(64) Real memory[kRunElements];
      PackRun<Real>(format,
                    AsReals<Real>(dtype, source + begin * stride,
                                  n * kPackedElements, memory),
                    n, to + begin * PackedBytes(format, dtype),
                    RunOf<Real>(residual, begin));
    });
  });
}

void Unpack(WireFormat format, DataType dtype, const std::byte* from,
            size_t num_blocks, void* to) {
  const size_t stride = kPackedElements * ElementBytes(dtype);
  WithReal(dtype, [&](auto real) {
    ForEachRun(num_blocks, [&](size_t begin, size_t n) {
      UnpackRun<decltype(real)>(format, dtype,
                                from + begin * PackedBytes(format, dtype), n,
                                static_cast<std::byte*>(to) + begin * stride);
    });
  });
}

void ReducePacked(const ReduceSpec& spec, const void* const* sources,
                  int num_sources, int own, size_t num_blocks, void* out,
                  std::byte* packed, void* residual) {
  const DataType dtype = spec.dtype;
  const WireFormat format = spec.wire_format;
  const size_t stride = kPackedElements * ElementBytes(dtype);
  const size_t packed_stride = PackedBytes(format, dtype);
  ReduceSpec of_reals = spec;
  if (IsHalf(dtype)) of_reals.dtype = DataType::kFloat32;
  WithReal(dtype, [&](auto real) {
    using Real = decltype(real);
    const PackKernels<Real>& kernels = ChosenPackKernels<Real>(format);
    const std::unique_ptr<Real[]> memory(
        new Real[kRunElements * static_cast<size_t>(num_sources)]);
    std::vector<const void*> reals(static_cast<size_t>(num_sources));
    alignas(64) Real sum[kRunElements];
    ForEachRun(num_blocks, [&](size_t begin, size_t n) {
      const size_t num_elements = n * kPackedElements;
      for (size_t k = 0; k < reals.size(); ++k) {
        const auto* const source = static_cast<const std::byte*>(sources[k]);
        Real* const unpacked = memory.get() + k * kRunElements;
        reals[k] = unpacked;
        if (k == static_cast<size_t>(own)) {
          reals[k] = AsReals<Real>(dtype, source + begin * stride, num_elements,
                                   unpacked);
        } else {
          kernels.unpack(source + begin * packed_stride, n, unpacked);
        }
      }
      Reduce(of_reals, reals.data(), num_sources, sum, num_elements);
      std::byte* const to = packed + begin * packed_stride;
      PackRun<Real>(format, sum, n, to, RunOf<Real>(residual, begin));
      UnpackRun<Real>(format, dtype, to, n,
                      static_cast<std::byte*>(out) + begin * stride);
    });
  });
}

}  // namespace hvd
