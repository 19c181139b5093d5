// Allgather of lists of tensors over the slabs of one host.
#pragma once

#include <vector>

#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// Copies the inputs of every rank to the outputs of every rank. `by_rank[r]`
// describes what rank r gives: its inputs (needed only on rank r) and where
// they go on this rank; where an output is null, what would go there is
// dropped. Each list has the same lengths on all ranks; they may differ by `r`.
// This rank's inputs may be its outputs.
Status Allgather(HostSlabs* slabs, const std::vector<TensorList>& by_rank);

}  // namespace hvd
