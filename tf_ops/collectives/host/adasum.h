// Adasum of each tensor of a list over the slabs of one host.
#pragma once

#include <vector>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/transport.h"

namespace hvd {

// Replaces the outputs, which may be the inputs, by the Adasum of the inputs
// of all ranks (Maleki et al. 2020, arXiv:2006.02924), each tensor by itself:
//
//   adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b,
//
// the other one if one is zero. So orthogonal vectors are added, equal ones
// averaged. Ranks combine as a binary tree: 0 with 1, 2 with 3, then those two
// results, and so on; if their number is not a power of two, those behind the
// largest one, p, first go into theirs: p into 0, p + 1 into 1, ... A prescale
// is a factor of every input, a postscale of the result.
//
// All ranks call it with tensors of the same lengths and the same `spec`, of a
// floating dtype; `op` and `num_ranks` are not looked at. The result has the
// same bits on every rank. 16-bit floats are kept as float32 throughout; dot
// products are sums in float64, so a tensor of float64 whose squares overflow
// there becomes NaN.
//
// Takes memory of kAdasumBatchBytes or, if larger, of the bytes of the largest
// tensor; twice that for the 16-bit floats; and 24 bytes for each tensor and
// pair of ranks.
Status AdasumAllreduce(Transport* transport,
                       const std::vector<ListTensor>& tensors,
                       const ReduceSpec& spec);

inline constexpr size_t kAdasumBatchBytes = 16 << 20;

}  // namespace hvd
