// The collectives of ranks that are all on one host, over its slabs.
#pragma once

#include <vector>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

class HostCollectives : public Collectives {
 public:
  explicit HostCollectives(HostSlabs* slabs) : slabs_(slabs) {}  // borrowed

  int rank() const override { return slabs_->rank(); }
  int size() const override { return slabs_->size(); }
  std::vector<int> local_ranks() const override;
  Status Allreduce(const TensorList& tensors, const ReduceSpec& spec) override;
  Status Allgather(const std::vector<TensorList>& by_rank) override;
  Status Broadcast(const TensorList& tensors, int root_rank) override;
  Status Reducescatter(const std::vector<TensorList>& by_rank,
                       const ReduceSpec& spec) override;
  Status Alltoall(const AlltoallLists& lists,
                  const AlltoallBytes& bytes) override;

 private:
  HostSlabs* const slabs_;
};

}  // namespace hvd
