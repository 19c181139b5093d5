// Runs collectives over tensors in host memory.
#pragma once

#include <vector>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/engine/data_plane.h"

namespace hvd {

// Allocates the outputs whose shapes are known before the ranks meet. The
// submitting thread calls it on `rank`, one of `size`, so that a rank without
// memory can tell the others when it submits.
Status AllocateKnownOutputs(int rank, int size, Request* request);

class CpuPlane : public DataPlane {
 public:
  explicit CpuPlane(Collectives* collectives)  // borrowed
      : collectives_(collectives) {}

  bool is_for_callers() const override { return true; }
  // Returns when the data has moved, and leaves all requests in `*ready`.
  Status Run(const RunOptions& options,
             std::vector<ReadyRequest>* ready) override;

 private:
  Collectives* const collectives_;
};

}  // namespace hvd
