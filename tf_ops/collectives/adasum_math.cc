#include "tf_ops/collectives/adasum_math.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tf_ops/collectives/reduce.h"

namespace hvd {
namespace {

// Each lane sums every kLanes-th element. So the compiler can use vectors, and
// the bits do not depend on their width.
constexpr size_t kLanes = 8;

template <typename Acc>
AdasumDots Dots(const Acc* a, const Acc* b, size_t n) {
  double aa[kLanes] = {}, bb[kLanes] = {}, ab[kLanes] = {};
  const size_t even = n / kLanes * kLanes;
  for (size_t i = 0; i < even; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double x = a[i + lane];
      const double y = b[i + lane];
      aa[lane] += x * x;
      bb[lane] += y * y;
      ab[lane] += x * y;
    }
  }
  for (size_t i = even; i < n; ++i) {
    const double x = a[i];
    const double y = b[i];
    aa[i - even] += x * x;
    bb[i - even] += y * y;
    ab[i - even] += x * y;
  }
  AdasumDots dots;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    dots.aa += aa[lane];
    dots.bb += bb[lane];
    dots.ab += ab[lane];
  }
  return dots;
}

// 1 - a.b / (2 a.a). A zero vector adds nothing, whatever its factor.
double FactorOf(double own, double ab) {
  return own == 0 ? 1.0 : 1.0 - ab / (2.0 * own);
}

template <typename Acc>
void Combine(const AdasumDots& dots, Acc* a, const Acc* b, size_t n) {
  const double factor_a = FactorOf(dots.aa, dots.ab);
  const double factor_b = FactorOf(dots.bb, dots.ab);
  for (size_t i = 0; i < n; ++i) {
    a[i] = static_cast<Acc>(factor_a * static_cast<double>(a[i]) +
                            factor_b * static_cast<double>(b[i]));
  }
}

template <typename Acc>
void ScaleInPlace(double scale, Acc* values, size_t n) {
  if (scale == 1.0) return;
  const Acc factor = static_cast<Acc>(scale);
  for (size_t i = 0; i < n; ++i) values[i] *= factor;
}

template <typename Acc>
void CopyScaled(double scale, const Acc* from, void* to, size_t n) {
  Acc* values = static_cast<Acc*>(to);
  const Acc factor = static_cast<Acc>(scale);
  for (size_t i = 0; i < n; ++i) values[i] = from[i] * factor;
}

constexpr size_t kBlock = 1024;  // elements

// Goes block by block from the front: accumulators overwrite only values of
// their own block, which has been read, or of earlier ones.
void WidenHalvesInPlace(DataType dtype, double scale, void* accumulators,
                        size_t n) {
  float* to = static_cast<float*>(accumulators);
  const std::byte* from =
      static_cast<const std::byte*>(accumulators) + n * sizeof(uint16_t);
  uint16_t block[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    std::memcpy(block, from + begin * sizeof(uint16_t),
                count * sizeof(uint16_t));
    WidenHalves(dtype, block, to + begin, count);
    ScaleInPlace(scale, to + begin, count);
  }
}

void CopyScaledToHalves(DataType dtype, double scale, const void* accumulators,
                        void* values, size_t n) {
  const float* from = static_cast<const float*>(accumulators);
  uint16_t* to = static_cast<uint16_t*>(values);
  float block[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    CopyScaled(scale, from + begin, block, count);
    NarrowToHalves(dtype, block, to + begin, count);
  }
}

}  // namespace

std::vector<std::vector<AdasumPair>> AdasumLevels(int size) {
  std::vector<std::vector<AdasumPair>> levels;
  int power = 1;
  while (2 * power <= size) power *= 2;
  if (power < size) {
    levels.emplace_back();
    for (int rank = power; rank < size; ++rank) {
      levels.back().push_back(AdasumPair{rank - power, rank});
    }
  }
  for (int distance = 1; distance < power; distance *= 2) {
    levels.emplace_back();
    for (int rank = 0; rank < power; rank += 2 * distance) {
      levels.back().push_back(AdasumPair{rank, rank + distance});
    }
  }
  return levels;
}

size_t AccumulatorBytes(DataType dtype) {
  return dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float);
}

AdasumDots DotsOf(DataType dtype, const void* a, const void* b,
                  size_t num_elements) {
  if (dtype == DataType::kFloat64) {
    return Dots(static_cast<const double*>(a), static_cast<const double*>(b),
                num_elements);
  }
  return Dots(static_cast<const float*>(a), static_cast<const float*>(b),
              num_elements);
}

void CombineInto(DataType dtype, const AdasumDots& dots, void* a, const void* b,
                 size_t num_elements) {
  if (dtype == DataType::kFloat64) {
    return Combine(dots, static_cast<double*>(a), static_cast<const double*>(b),
                   num_elements);
  }
  return Combine(dots, static_cast<float*>(a), static_cast<const float*>(b),
                 num_elements);
}

void WidenInPlace(DataType dtype, double scale, void* accumulators,
                  size_t num_elements) {
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return WidenHalvesInPlace(dtype, scale, accumulators, num_elements);
    case DataType::kFloat64:
      return ScaleInPlace(scale, static_cast<double*>(accumulators),
                          num_elements);
    default:
      return ScaleInPlace(scale, static_cast<float*>(accumulators),
                          num_elements);
  }
}

void NarrowTo(DataType dtype, double scale, const void* accumulators,
              void* values, size_t num_elements) {
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return CopyScaledToHalves(dtype, scale, accumulators, values,
                                num_elements);
    case DataType::kFloat64:
      return CopyScaled(scale, static_cast<const double*>(accumulators), values,
                        num_elements);
    default:
      return CopyScaled(scale, static_cast<const float*>(accumulators), values,
                        num_elements);
  }
}

}  // namespace hvd
