// Multiplies numbers on a GPU, in float32 or better: NCCL would round the
// factor to the dtype first.
#pragma once

#include <array>
#include <cstddef>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/gpu/gpu.h"

namespace hvd {

// One thread calls it, whose GPU `gpu` is.
class GpuScaler {
 public:
  // Loads the kernels, once; that may wait for the GPU.
  Status Load(const Gpu& gpu);

  // Queues on `stream`: multiplies `num_elements` numbers at `data` by
  // `factor`. `dtype` is a floating one. Rounds to the nearest, ties to even.
  Status Run(const Gpu& gpu, DataType dtype, void* data, size_t num_elements,
             double factor, CudaStream stream) const;

 private:
  static constexpr size_t kNumKernels = 6;
  std::array<void*, kNumKernels> functions_ = {};
};

}  // namespace hvd
