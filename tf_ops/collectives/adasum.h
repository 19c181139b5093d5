// Adasum of each tensor of a list.
#pragma once

#include <vector>

#include "tf_ops/collectives/collectives.h"

namespace hvd {

// Replaces the outputs, which may be the inputs, by the Adasum of the inputs
// of all ranks (Maleki et al. 2020, arXiv:2006.02924), tensor by tensor:
//
//   adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b,
//
// or the other vector if one is zero. So orthogonal vectors are added, equal
// ones averaged. Ranks combine as a binary tree: 0 with 1, 2 with 3, then those
// two results, and so on. If their number is not a power of two, those from the
// largest power p on first combine into the lowest: p into 0, p + 1 into 1, ...
// A prescale is a factor of every input, a postscale of the result.
//
// All ranks call it with tensors of the same lengths and the same `spec`, of a
// floating dtype; its `op` and `num_ranks` are ignored. The result has the same
// bits on every rank. 16-bit floats are kept as float32 throughout. Dot
// products are sums in float64: a float64 tensor whose squares overflow there
// becomes NaN.
//
// Takes up to kAdasumBatchBytes of memory or, if larger, the bytes of the
// largest tensor; twice that for the 16-bit floats; and 24 bytes for each
// tensor and pair of ranks.
Status AdasumAllreduce(Collectives* collectives,
                       const std::vector<ListTensor>& tensors,
                       const ReduceSpec& spec);

inline constexpr size_t kAdasumBatchBytes = 16 << 20;

}  // namespace hvd
