// Puts the collectives of one response on a stream, as NCCL calls and copies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/data_plane.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/gpu/scale.h"

namespace hvd {

// What a launch uses; all of it is borrowed.
struct GpuLane {
  Gpu* gpu = nullptr;  // that of the calling thread
  CudaStream stream = nullptr;
  Communicator* communicator = nullptr;
  Communicator::Look look;
  int rank = 0;
  int size = 1;
  std::byte* fusion_buffer = nullptr;
  size_t fusion_buffer_bytes = 0;
  size_t direct_bytes = 0;  // see GpuOptions
  Packing packing = Packing::kBatch;
  // An event behind the last NCCL calls, perhaps on another stream; null: none.
  std::shared_ptr<GpuEvent>* last_calls = nullptr;
  const GpuScaler* scaler = nullptr;
  bool sums_in_switch = false;  // see GpuConnection
};

// Runs NCCL calls on the lane's stream, behind those of earlier launches: a
// communicator does one thing at a time.
Status RunInTurn(const GpuLane& lane, const Communicator::Calls& calls);

// Output memory by [request][tensor]: the request's own, or given by its
// `allocate_output`.
using GpuOutputs = std::vector<std::vector<void*>>;
Status AllocateOutputs(const std::vector<ReadyRequest>& ready, int rank,
                       int size, GpuOutputs* outputs);

// Launches requests of one kind that differ only in their tensors, and returns
// before they have ended. After an error the ranks are out of step.
Status LaunchCollectives(const GpuLane& lane, const RunOptions& options,
                         const std::vector<ReadyRequest>& ready,
                         const GpuOutputs& outputs);

// InvalidArgument, on all ranks, if some have joined and NCCL cannot average
// over the rest.
Status CheckDivisor(const RunOptions& options,
                    const std::vector<ReadyRequest>& ready);

}  // namespace hvd
