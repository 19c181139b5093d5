// Reducescatter of lists of tensors over the slabs of one host.
#pragma once

#include <vector>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// Reduces the inputs of all ranks; each rank gets its own part. `by_rank[r]`
// describes the part of rank r: this rank's inputs for it and, on rank r, where
// the result goes. That may be those inputs, but may overlap no others. Each
// list has the same lengths on all ranks; they may differ by `r` and be 0.
//
// Sums go in rank order: the result has the bits that Allreduce gives.
Status Reducescatter(HostSlabs* slabs, const std::vector<TensorList>& by_rank,
                     const ReduceSpec& spec);

}  // namespace hvd
