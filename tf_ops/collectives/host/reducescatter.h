// Reducescatter of lists of tensors over the slabs of one host.
#pragma once

#include <vector>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// See Collectives. The result has the bits that Allreduce gives.
Status Reducescatter(HostSlabs* slabs, const std::vector<TensorList>& by_rank,
                     const ReduceSpec& spec);

}  // namespace hvd
