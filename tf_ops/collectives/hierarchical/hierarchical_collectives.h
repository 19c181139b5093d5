// The collectives of ranks on several hosts: inside a host through its slabs,
// between hosts through its wire.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/collectives/wire/wire_job.h"
#include "tf_ops/host/control_channel.h"
#include "tf_ops/host/host_layout.h"
#include "tf_ops/host/host_slabs.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// An allreduce of N bytes on H hosts sends 2 (H - 1) / H * N bytes from each
// host: the ranks of a host first reduce what they have, chunk by chunk, into
// the slab of the wire; the wires reduce that, each a part, and gather it; then
// the ranks read the result. Sums go in the order of the ranks of a host, then
// of the hosts. float16 and bfloat16 are summed in float32 and rounded once for
// a host, once for all. Averages of integers and scaled integers, which would
// be rounded too often that way, send each rank's values instead.
//
// With WireFormat::kInt8 an allreduce by Sum or Average sends tensors of 4096
// floats and more as quantize.h packs them: each host packs what it brings for
// the parts of the others, and the result of its own part, once. So an element
// is off by at most the sum over the other hosts of 1/254 of the largest
// magnitude in its block of what that host brings, scaled like the result, plus
// 1/254 of the largest magnitude in its block of the result. Whose part it is
// follows from the tensor and the element alone.
class HierarchicalCollectives : public Collectives {
 public:
  // Borrows all but `layout`. `control` is used by member 0, which tells the
  // wire what to do.
  HierarchicalCollectives(HostSlabs* slabs, ControlChannel* control,
                          Membership* membership, HostLayout layout);
  ~HierarchicalCollectives() override;  // ends the wire

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<int> local_ranks() const override {
    return layout_.local_ranks();
  }
  Status Allreduce(const TensorList& tensors, const ReduceSpec& spec) override;
  Status Allgather(const std::vector<TensorList>& by_rank) override;
  Status Broadcast(const TensorList& tensors, int root_rank) override;
  Status Reducescatter(const std::vector<TensorList>& by_rank,
                       const ReduceSpec& spec) override;
  Status Alltoall(const AlltoallLists& lists,
                  const AlltoallBytes& bytes) override;

 private:
  // Member 0 tells the wire; the others do nothing.
  Status Start(WireJob job);
  Status AllreducePacked(const TensorList& tensors, const ReduceSpec& spec);
  // A job whose blocks, one a host, are reduced. This rank reads the blocks it
  // has outputs for.
  Status RunReducing(const std::vector<TensorList>& blocks,
                     const ReduceSpec& spec, bool gathers,
                     std::vector<WireJob::Tensor> with_residuals = {});
  // A job whose matrices travel as thin factors.
  Status RunLowRank(const TensorList& tensors, const ReduceSpec& spec,
                    std::vector<WireJob::Tensor> matrices);
  Status ReduceScaledIntegers(const std::vector<TensorList>& by_rank,
                              const ReduceSpec& spec);
  int HostOf(int rank) const { return hosts_[static_cast<size_t>(rank)]; }

  HostSlabs* const slabs_;
  ControlChannel* const control_;
  Membership* const membership_;
  const HostLayout layout_;
  const int rank_;
  const int size_;
  std::vector<int> hosts_;  // by rank
};

}  // namespace hvd
