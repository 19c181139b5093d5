// Reduces arrays of several ranks into one, element by element.
#pragma once

#include <cstddef>

#include "tf_ops/common/types.h"

namespace hvd {

struct ReduceSpec {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;   // factor of every input
  double postscale = 1.0;  // factor of the result
  // Ranks that Average divides by.
  int num_ranks = 1;
};

// out[i] = postscale * (prescale * sources[0][i] op prescale *
// sources[1][i] op ...), in this order, for `num_elements` elements.
//
// `out` may be any of the sources, but may not overlap one in another way.
// float16, bfloat16 and float32 accumulate in float32, float64 in float64;
// integers in 64 bits, a sum wraps. Average divides; integers truncate toward
// zero, as do scaled integers, which saturate. Min and Max propagate NaN.
// Not for Adasum, which is not made element by element: see adasum.h.
void Reduce(const ReduceSpec& spec, const void* const* sources, int num_sources,
            void* out, size_t num_elements);

// Between float32 and `dtype`, kFloat16 or kBfloat16, as Reduce does it.
void WidenHalves(DataType dtype, const void* from, float* to,
                 size_t num_elements);
void NarrowToHalves(DataType dtype, const float* from, void* to,
                    size_t num_elements);

// Writes the value that leaves a reduction by `op` as it is: 0 for Sum,
// Average and Adasum, 1 for Product, the highest for Min and the lowest for
// Max (true and false for bool, the infinities for floats). That holds before
// any scaling: a prescale would change it where it is not 0.
void FillNeutral(DataType dtype, ReduceOp op, void* to, size_t num_elements);

}  // namespace hvd
