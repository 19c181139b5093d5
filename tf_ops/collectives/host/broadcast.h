// Broadcast of a list of tensors over the slabs of one host.
#pragma once

#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// See Collectives.
Status Broadcast(HostSlabs* slabs, const TensorList& tensors, int root_rank);

}  // namespace hvd
