// Chooses how an allreduce of many small tensors on GPUs goes. What is quickest
// depends on the GPU, its driver and NCCL, so it is measured.
#pragma once

#include <optional>
#include <string>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/common/status.h"
#include "tf_ops/engine/gpu_collectives.h"
#include "tf_ops/engine/options.h"

namespace hvd {

// As HVD_GPU_PACKING names them: "batch", "copies", "none".
const char* PackingName(Packing packing);
// None: of another name, such as "auto".
std::optional<Packing> PackingOf(const std::string& name);

// Allreduces some tensors in each way and gets that whose slowest rank was the
// quickest, and all times as text. All ranks call it, and get the same; it
// takes some milliseconds. `lane`: nothing else uses its buffer. After an error
// the ranks are out of step.
Status MeasurePacking(const GpuLane& lane, Collectives* collectives,
                      Packing* packing, std::string* times);

}  // namespace hvd
