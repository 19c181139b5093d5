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
  // Of an allreduce over hosts; Reduce itself is exact.
  WireFormat wire_format = WireFormat::kExact;
};

// out[i] = postscale * (prescale * sources[0][i] op prescale *
// sources[1][i] op ...), in this order, for `num_elements` elements.
//
// `out` may be one of the sources, but may not overlap one otherwise. float16,
// bfloat16 and float32 accumulate in float32, float64 in float64, integers in
// 64 bits. Integer sums wrap, averages truncate toward zero; scaled integers
// truncate and saturate. Min and Max propagate NaN. Not for Adasum, which does
// not work element by element: see adasum.h.
void Reduce(const ReduceSpec& spec, const void* const* sources, int num_sources,
            void* out, size_t num_elements);

// Convert between float32 and `dtype`, kFloat16 or kBfloat16, as Reduce does.
void WidenHalves(DataType dtype, const void* from, float* to,
                 size_t num_elements);
void NarrowToHalves(DataType dtype, const float* from, void* to,
                    size_t num_elements);

// Fills with the value that does not change a reduction by `op`: 0 for Sum,
// Average and Adasum, 1 for Product, the highest for Min and the lowest for
// Max (true and false for bool, the infinities for floats). Do not prescale it:
// only 0 stays neutral.
void FillNeutral(DataType dtype, ReduceOp op, void* to, size_t num_elements);

}  // namespace hvd
