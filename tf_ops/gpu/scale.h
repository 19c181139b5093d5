// Multiplies numbers on a GPU, in float32 or better: NCCL would round the
// factor to the dtype first.
#pragma once

#include <array>
#include <cstddef>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/gpu/gpu.h"

namespace hvd {

// Thread-safe. All threads that call it have set its GPU, see Gpu::Use.
class GpuScaler {
 public:
  // Gets that of `gpu`; it lives as long as the process. The first call loads
  // the kernels, and may wait for the GPU.
  static Status Get(const Gpu& gpu, const GpuScaler** scaler);

  // Queues on `stream`: multiplies `num_elements` numbers at `data` by
  // `factor`. `dtype` is a floating one. Rounds to the nearest, ties to even.
  Status Run(DataType dtype, void* data, size_t num_elements, double factor,
             CudaStream stream) const;

 private:
  explicit GpuScaler(const Gpu& gpu) : gpu_(gpu) {}
  Status Load();

  static constexpr size_t kNumKernels = 6;
  const Gpu& gpu_;
  std::array<void*, kNumKernels> functions_ = {};
};

}  // namespace hvd
