// Reducescatter of lists of tensors over the slabs of one host.
#pragma once

#include <vector>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/transport.h"

namespace hvd {

// Reduces the inputs of all ranks; each rank gets its own part. `by_rank[r]`
// describes what rank r ends up with: this rank's inputs of it, and for the
// rank itself also where the result goes, which may be those inputs but may
// overlap no others. Each list has the same lengths on all ranks; they may
// differ by rank and be 0.
//
// Sums go in rank order: the bits are those that Allreduce gives there.
Status Reducescatter(Transport* transport,
                     const std::vector<TensorList>& by_rank,
                     const ReduceSpec& spec);

}  // namespace hvd
