// Alltoall of lists of tensors over the slabs of one host.
#pragma once

#include <cstddef>
#include <vector>

#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// What one rank sends and receives, by peer, itself included. Each list has as
// many bytes as the pair exchanges, in any number of tensors.
struct AlltoallLists {
  std::vector<TensorList> send;  // only inputs are used
  // Only outputs are used; they overlap no input. What has none is dropped.
  std::vector<TensorList> recv;
};

// Bytes by sender, then by receiver; may be 0.
using ByteMatrix = std::vector<std::vector<size_t>>;

// Copies send[r] of this rank to recv[this rank] of rank r, for all ranks.
// `num_bytes` is the same on all ranks: all step through the same number of
// chunks, so each must know what the others exchange. Internal, before any byte
// moves, if `lists` do not have these lengths.
Status Alltoall(HostSlabs* slabs, const AlltoallLists& lists,
                const ByteMatrix& num_bytes);

}  // namespace hvd
