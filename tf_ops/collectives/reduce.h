// Reduces arrays of several ranks into one, element by element.
#pragma once

#include <cstddef>

#include "tf_ops/common/status.h"
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

// InvalidArgument if `op` has no meaning for `dtype`.
Status CheckReduce(DataType dtype, ReduceOp op);

// out[i] = postscale * (prescale * sources[0][i] op prescale *
// sources[1][i] op ...), in this order, for `num_elements` elements.
//
// `out` may be any of the sources, but may not overlap one in another way.
// float16, bfloat16 and float32 accumulate in float32, float64 in float64;
// integers in 64 bits, a sum wraps. Average divides; integers truncate toward
// zero, as do scaled integers, which saturate. Min and Max propagate NaN.
void Reduce(const ReduceSpec& spec, const void* const* sources, int num_sources,
            void* out, size_t num_elements);

}  // namespace hvd
