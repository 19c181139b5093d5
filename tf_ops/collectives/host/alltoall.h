// Alltoall of lists of tensors over the slabs of one host.
#pragma once

#include <cstddef>
#include <vector>

#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/transport.h"

namespace hvd {

// What one rank sends and receives, by peer, itself included. Each list has
// the bytes of its pair; how they are cut into tensors is free.
struct AlltoallLists {
  std::vector<TensorList> send;  // the inputs count
  std::vector<TensorList> recv;  // the outputs count; overlap no inputs
};

// By sender, then by receiver. May be 0.
using ByteMatrix = std::vector<std::vector<size_t>>;

// Copies send[r] of this rank to recv[this rank] of rank r, for all ranks.
// `num_bytes` is the same on all ranks: each has to know what the others do
// among themselves, as all of them step through the same number of chunks.
// Internal, before any byte moves, if `lists` are not what it says.
Status Alltoall(Transport* transport, const AlltoallLists& lists,
                const ByteMatrix& num_bytes);

}  // namespace hvd
