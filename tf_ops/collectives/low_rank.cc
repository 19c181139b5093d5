#include "tf_ops/collectives/low_rank.h"

#include <algorithm>
#include <cmath>

#include "tf_ops/collectives/multiversion.h"
#include "tf_ops/collectives/vectors.h"

namespace hvd {
namespace {

constexpr size_t kDotLanes = 16;
// A vector that has lost all but so much of its length depends on others.
constexpr double kDependent = 1e-5;
constexpr double kTinyLength = 1e-30;

namespace baseline {
#include "tf_ops/collectives/low_rank_kernels.inc"
}  // namespace baseline

#if HVD_MULTIVERSION
HVD_BEGIN_TARGET(HVD_V3)
namespace v3 {
#include "tf_ops/collectives/low_rank_kernels.inc"
}  // namespace v3
HVD_END_TARGET
HVD_BEGIN_TARGET(HVD_V4 HVD_WIDE)
namespace v4 {
#include "tf_ops/collectives/low_rank_kernels.inc"
}  // namespace v4
HVD_END_TARGET
#endif

// The functions of low_rank_kernels.inc for one instruction set.
struct LowRankKernels {
  decltype(&baseline::TimesRight) times_right;
  decltype(&baseline::TimesLeft) times_left;
  decltype(&baseline::ExpandRow) expand_row;
};

LowRankKernels ChooseLowRankKernels() {
  switch (FindVectors()) {
#if HVD_MULTIVERSION
    case Vectors::kV4:
      return {v4::TimesRight, v4::TimesLeft, v4::ExpandRow};
    case Vectors::kV3:
      return {v3::TimesRight, v3::TimesLeft, v3::ExpandRow};
#endif
    default:
      return {baseline::TimesRight, baseline::TimesLeft, baseline::ExpandRow};
  }
}

const LowRankKernels& ChosenLowRankKernels() {
  static const LowRankKernels kernels = ChooseLowRankKernels();
  return kernels;
}

double DotOf(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

// Removes from `vector` what it has of the `count` vectors before it. Returns
// the length that is left.
double Project(size_t count, size_t length, const float* vectors,
               float* vector) {
  for (size_t k = 0; k < count; ++k) {
    const float* const other = vectors + k * length;
    const auto factor = static_cast<float>(DotOf(other, vector, length));
    for (size_t i = 0; i < length; ++i) vector[i] -= factor * other[i];
  }
  return std::sqrt(DotOf(vector, vector, length));
}

}  // namespace

MatrixShape MatrixOf(const Shape& shape) {
  size_t num_elements = 1;
  for (int64_t n : shape) num_elements *= static_cast<size_t>(n);
  MatrixShape best{1, num_elements};
  if (num_elements == 0) return best;
  size_t rows = 1;
  for (int64_t n : shape) {
    rows *= static_cast<size_t>(n);
    const MatrixShape one{rows, num_elements / rows};
    if (one.rows + one.columns < best.rows + best.columns) best = one;
  }
  return best;
}

bool IsWorthLowRank(const MatrixShape& matrix, size_t rank) {
  return rank <= std::min(matrix.rows, matrix.columns) &&
         2 * rank * (matrix.rows + matrix.columns) <= matrix.num_elements();
}

void MultiplyRight(const float* matrix, const MatrixShape& shape, size_t rank,
                   const float* right, float* left) {
  ChosenLowRankKernels().times_right(matrix, shape, rank, right, left);
}

void MultiplyLeft(const float* matrix, const MatrixShape& shape, size_t rank,
                  const float* left, float* right) {
  std::fill_n(right, rank * shape.columns, 0.0f);
  ChosenLowRankKernels().times_left(matrix, shape, rank, left, right);
}

void Draw(uint64_t seed, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    // SplitMix64, https://prng.di.unimi.it/splitmix64.c
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    const auto bits = static_cast<int32_t>((z ^ (z >> 31)) >> 40);  // 24
    to[i] = static_cast<float>(bits) * 0x1p-23f - 1.0f;
  }
}

void Orthonormalize(size_t rank, size_t length, uint64_t seed, float* vectors) {
  for (size_t k = 0; k < rank; ++k) {
    float* const vector = vectors + k * length;
    double before = std::sqrt(DotOf(vector, vector, length));
    double after = Project(k, length, vectors, vector);
    if (!(after > kDependent * before) || !(before > kTinyLength)) {
      Draw(seed + k, length, vector);
      Project(k, length, vectors, vector);
      after = Project(k, length, vectors, vector);
    }
    const auto inverse = static_cast<float>(1.0 / after);
    for (size_t i = 0; i < length; ++i) vector[i] *= inverse;
  }
}

void Expand(const float* left, const float* right, const MatrixShape& shape,
            size_t rank, size_t begin, size_t end, float share, float* residual,
            float* out) {
  for (size_t at = begin; at < end;) {
    const size_t row = at / shape.columns;
    const size_t column = at % shape.columns;
    const size_t count = std::min(end - at, shape.columns - column);
    ChosenLowRankKernels().expand_row(left, right, shape, rank, row, column,
                                      count, share, residual + at,
                                      out + (at - begin));
    at += count;
  }
}

bool AllFinite(const float* values, size_t count) {
  return std::all_of(values, values + count,
                     [](float value) { return std::isfinite(value); });
}

}  // namespace hvd
