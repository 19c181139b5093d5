#include "tf_ops/collectives/host/host_collectives.h"

#include <cstddef>
#include <numeric>

#include "tf_ops/collectives/host/allgather.h"
#include "tf_ops/collectives/host/allreduce.h"
#include "tf_ops/collectives/host/alltoall.h"
#include "tf_ops/collectives/host/broadcast.h"
#include "tf_ops/collectives/host/reducescatter.h"

namespace hvd {

std::vector<int> HostCollectives::local_ranks() const {
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Status HostCollectives::Allreduce(const TensorList& tensors,
                                  const ReduceSpec& spec) {
  return hvd::Allreduce(slabs_, tensors, spec);
}

Status HostCollectives::Allgather(const std::vector<TensorList>& by_rank) {
  return hvd::Allgather(slabs_, by_rank);
}

Status HostCollectives::Broadcast(const TensorList& tensors, int root_rank) {
  return hvd::Broadcast(slabs_, tensors, root_rank);
}

Status HostCollectives::Reducescatter(const std::vector<TensorList>& by_rank,
                                      const ReduceSpec& spec) {
  return hvd::Reducescatter(slabs_, by_rank, spec);
}

Status HostCollectives::Alltoall(const AlltoallLists& lists,
                                 const AlltoallBytes& bytes) {
  return hvd::Alltoall(slabs_, lists, bytes.sent);
}

}  // namespace hvd
