// Allreduce of a list of tensors over the slabs of one host.
#pragma once

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// See Collectives. Sums go in rank order.
//
// Up to FlatBytes(size) each rank reduces all slabs itself, after one wait for
// its peers. Larger lists go through a pipeline of chunks: a reduce-scatter,
// then an all-gather, on the tensors themselves, without a fusion buffer. With
// P ranks that reads or writes each byte 5 P - 2 times in all: P - 1 ranks copy
// it in, one reduces it (P reads, 2 writes), P - 1 copy it out.
Status Allreduce(HostSlabs* slabs, const TensorList& tensors,
                 const ReduceSpec& spec);

inline size_t FlatBytes(int size) {  // ranks
  return (size <= 4 ? 64 : 16) << 10;
}

}  // namespace hvd
