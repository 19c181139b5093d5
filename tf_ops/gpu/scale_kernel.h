// Multiplies numbers on a GPU: the source of the PTX in scale.ptx, in CUDA's
// C++ and in the host's, where tests run it. tools/make_scale_ptx.py compiles
// it; it needs NVRTC, but no GPU.
//
// float16 and narrower numbers are widened to float32, multiplied there and
// rounded to the nearest, ties to even.
#pragma once

#ifdef __CUDACC__
#define HVD_DEVICE __device__ __forceinline__
#else
#include <cstring>
#define HVD_DEVICE inline
#endif

namespace hvd_scale {

using Byte = unsigned char;
using Half = unsigned short;
using Bits = unsigned;
using Count = unsigned long long;

HVD_DEVICE float FromBits(Bits bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

HVD_DEVICE Bits ToBits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  Bits bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

// 2 to the power of `exponent`, which a normal float32 has.
HVD_DEVICE float PowerOfTwo(int exponent) {
  return FromBits(static_cast<Bits>(exponent + 127) << 23);
}

// A small float: a sign, kExponent bits, kMantissa bits. Without kHasInfinity
// all ones alone are no number (e4m3fn).
template <int kExponent, int kMantissa, bool kHasInfinity>
struct Small {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr Bits kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  static constexpr Bits kInfinity = ((1u << kExponent) - 1) << kMantissa;
  // The largest finite one.
  static constexpr Bits kLargest =
      kHasInfinity ? kInfinity - 1 : kMagnitude - 1;

  static HVD_DEVICE float Widen(Bits bits) {
    const Bits magnitude = bits & kMagnitude;
    const Bits sign = (bits & (kMagnitude + 1)) << (31 - kExponent - kMantissa);
    const bool is_special =
        kHasInfinity ? magnitude >= kInfinity : magnitude == kMagnitude;
    if (is_special) {
      const bool is_infinity = kHasInfinity && magnitude == kInfinity;
      return FromBits(sign | (is_infinity ? 0x7f800000u : 0x7fc00000u));
    }
    // Small ones become subnormal for a moment.
    const float value =
        FromBits(magnitude << (23 - kMantissa)) * PowerOfTwo(127 - kBias);
    return FromBits(ToBits(value) | sign);
  }

  // What is too large becomes infinite, or the largest where there is none.
  static HVD_DEVICE Bits Narrow(float wide) {
    const Bits bits = ToBits(wide);
    const Bits sign = (bits >> 31) << (kExponent + kMantissa);
    const float value = FromBits(bits & 0x7fffffffu);
    if (value != value) return sign | kMagnitude;
    const float largest = Widen(kLargest);
    const int top = static_cast<int>(kLargest >> kMantissa) - kBias;
    const float half_step = PowerOfTwo(top - kMantissa - 1);
    if (value >= largest + half_step) {
      return sign | (kHasInfinity ? kInfinity : kLargest);
    }
    // Adds a number so large that the sum has the bits we want at its end.
    int exponent = static_cast<int>(ToBits(value) >> 23) - 127;
    if (exponent < 1 - kBias) exponent = 1 - kBias;
    const float magic = PowerOfTwo(exponent + 23 - kMantissa);
    const float rounded = (value + magic) - magic;
    const float scaled = rounded * PowerOfTwo(kBias - 127);
    return sign | (ToBits(scaled) >> (23 - kMantissa));
  }
};

struct Float32 {
  using Element = float;
  using Factor = float;
  static HVD_DEVICE float Times(float a, float b) { return a * b; }
};
struct Float64 {
  using Element = double;
  using Factor = double;
  static HVD_DEVICE double Times(double a, double b) { return a * b; }
};
struct Bfloat16 {
  using Element = Half;
  using Factor = float;
  static HVD_DEVICE Half Times(Half a, float b) {
    const Bits bits = ToBits(FromBits(static_cast<Bits>(a) << 16) * b);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      return static_cast<Half>(bits >> 16 | 0x40);  // no number
    }
    return static_cast<Half>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
};
struct Float16 {
  using Element = Half;
  using Factor = float;
  static HVD_DEVICE Half Times(Half a, float b) {
#ifdef __CUDACC__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(a));
    Half result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(wide * b));
    return result;
#else
    using Format = Small<5, 10, true>;
    return static_cast<Half>(Format::Narrow(Format::Widen(a) * b));
#endif
  }
};
template <typename OfBits>
struct Float8 {
  using Format = OfBits;
  using Element = Byte;
  using Factor = float;
  static HVD_DEVICE Byte Times(Byte a, float b) {
    return static_cast<Byte>(Format::Narrow(Format::Widen(a) * b));
  }
};
using Float8E4m3fn = Float8<Small<4, 3, false>>;
using Float8E5m2 = Float8<Small<5, 2, true>>;

// Thread `thread` of `num_threads` multiplies its part of `count` elements, a
// block at a time where `data` is aligned to that.
template <typename Type>
HVD_DEVICE void Scale(void* data, Count count, typename Type::Factor factor,
                      Count thread, Count num_threads) {
  using Element = typename Type::Element;
  // Bytes take much code each.
  constexpr int kBlockBytes = sizeof(Element) == 1 ? 4 : 16;
  constexpr int kNumTogether = kBlockBytes / sizeof(Element);
  struct alignas(kBlockBytes) Block {
    Element elements[kNumTogether];
  };
  auto* const elements = static_cast<Element*>(data);
  const bool is_aligned = reinterpret_cast<Count>(data) % kBlockBytes == 0;
  const Count num_blocks = is_aligned ? count / kNumTogether : 0;
  auto* const blocks = static_cast<Block*>(data);
  for (Count i = thread; i < num_blocks; i += num_threads) {
    Block block = blocks[i];
    for (int k = 0; k < kNumTogether; ++k) {
      block.elements[k] = Type::Times(block.elements[k], factor);
    }
    blocks[i] = block;
  }
  for (Count i = num_blocks * kNumTogether + thread; i < count;
       i += num_threads) {
    elements[i] = Type::Times(elements[i], factor);
  }
}

}  // namespace hvd_scale

#ifdef __CUDACC__
#define HVD_SCALE_KERNEL(name, Type)                                    \
  extern "C" __global__ void name(void* data, unsigned long long count, \
                                  hvd_scale::Type::Factor factor) {     \
    const unsigned long long thread =                                   \
        blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;      \
    hvd_scale::Scale<hvd_scale::Type>(                                  \
        data, count, factor, thread,                                    \
        gridDim.x * (unsigned long long)blockDim.x);                    \
  }
HVD_SCALE_KERNEL(hvd_scale_float32, Float32)
HVD_SCALE_KERNEL(hvd_scale_float64, Float64)
HVD_SCALE_KERNEL(hvd_scale_bfloat16, Bfloat16)
HVD_SCALE_KERNEL(hvd_scale_float16, Float16)
HVD_SCALE_KERNEL(hvd_scale_float8_e4m3fn, Float8E4m3fn)
HVD_SCALE_KERNEL(hvd_scale_float8_e5m2, Float8E5m2)
#endif
