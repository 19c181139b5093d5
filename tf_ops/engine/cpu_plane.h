// Runs collectives over tensors in host memory, through the slabs of the host.
#pragma once

#include <vector>

#include "tf_ops/engine/data_plane.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// For a thread that submits a request on `rank`, one of `size`: gets the memory
// of outputs whose shapes are known before the ranks meet, so that a rank that
// has none says so when it comes.
Status AllocateKnownOutputs(int rank, int size, Request* request);

class CpuPlane : public DataPlane {
 public:
  explicit CpuPlane(HostSlabs* slabs) : slabs_(slabs) {}  // borrowed

  bool is_for_callers() const override { return true; }
  // Takes nothing out: it returns when the data has moved.
  Status Run(const RunOptions& options,
             std::vector<ReadyRequest>* ready) override;

 private:
  HostSlabs* const slabs_;
};

}  // namespace hvd
