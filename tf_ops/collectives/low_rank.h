// Matrices as products of two thin ones: PowerSGD (Vogels et al., 2019,
// https://arxiv.org/abs/1905.13727) and ACP-SGD (Zhang et al., 2023,
// https://arxiv.org/abs/2306.08881).
//
// A matrix of `rows` x `columns` is row-major. A factor has `rank` vectors, one
// after the other, as long as the matrix has rows (left) or columns (right).
// The same values give the same bits on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/types.h"

namespace hvd {

struct MatrixShape {
  size_t rows = 0;
  size_t columns = 0;
  size_t num_elements() const { return rows * columns; }
};

// `shape` as a matrix: cut where rows + columns is least. Of one row if it has
// fewer than two dimensions.
MatrixShape MatrixOf(const Shape& shape);
// Whether matrices of this type may become factors, which are float32.
constexpr bool IsLowRankType(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32;
}
// Whether two factors of this rank have at most half of its elements.
bool IsWorthLowRank(const MatrixShape& matrix, size_t rank);

// left = matrix * right, and right = matrix^T * left.
void MultiplyRight(const float* matrix, const MatrixShape& shape, size_t rank,
                   const float* right, float* left);
void MultiplyLeft(const float* matrix, const MatrixShape& shape, size_t rank,
                  const float* left, float* right);
// Makes the vectors orthogonal to each other, and 1 long. One that depends on
// those before it is replaced by one drawn with `seed`. rank <= length.
void Orthonormalize(size_t rank, size_t length, uint64_t seed, float* vectors);
// Draws vectors from [-1, 1), each time the same for `seed`.
void Draw(uint64_t seed, size_t count, float* to);
// The elements [begin, end) of the product of two factors. Subtracts
// `share` of each from `residual`, which is the whole matrix.
void Expand(const float* left, const float* right, const MatrixShape& shape,
            size_t rank, size_t begin, size_t end, float share, float* residual,
            float* out);
bool AllFinite(const float* values, size_t count);

}  // namespace hvd
