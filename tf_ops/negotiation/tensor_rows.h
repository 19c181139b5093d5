// Sizes of tensors, whole and by rows of the first dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tf_ops/negotiation/request.h"

namespace hvd {

inline size_t NumBytes(const RequestTensor& tensor) {
  return static_cast<size_t>(NumElements(tensor.shape)) *
         ElementBytes(tensor.dtype);
}

inline size_t NumBytes(const Request& request) {
  size_t num_bytes = 0;
  for (const RequestTensor& t : request.tensors) num_bytes += NumBytes(t);
  return num_bytes;
}

// The shape must have at least one dimension.
inline size_t RowBytes(const RequestTensor& tensor) {
  const Shape row(tensor.shape.begin() + 1, tensor.shape.end());
  return static_cast<size_t>(NumElements(row)) * ElementBytes(tensor.dtype);
}

inline Shape WithRows(Shape shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

// Reducescatter: if the rows do not divide evenly, the first ranks have one
// more.
inline int64_t RowsOfRank(int64_t num_rows, int64_t size, int64_t rank) {
  return num_rows / size + (rank < num_rows % size ? 1 : 0);
}

}  // namespace hvd
