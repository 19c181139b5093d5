// Alltoall of lists of tensors over the slabs of one host.
#pragma once

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// See Collectives. `num_bytes`, by sender and receiver, is the same on all
// ranks: all step through the same number of chunks, so each must know what the
// others exchange.
Status Alltoall(HostSlabs* slabs, const AlltoallLists& lists,
                const ByteMatrix& num_bytes);

}  // namespace hvd
