// Finds the CUDA runtime and NCCL, and opens them. Nothing links them: where
// they are missing all but collectives on GPUs works.
#pragma once

#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/gpu/cuda_api.h"
#include "tf_ops/gpu/nccl_api.h"

namespace hvd {

struct GpuLibraryPaths {
  // If not empty the only file that is tried; for tests and odd installations.
  std::string cuda_runtime;
  std::string nccl;
  // Files of the NVIDIA wheels, tried after what the process has loaded
  // already (TensorFlow's) and before what the system's loader finds.
  std::vector<std::string> cuda_runtime_wheels;
  std::vector<std::string> nccl_wheels;
};

// Where to look; a library that is open stays. Any thread.
void SetGpuLibraryPaths(GpuLibraryPaths paths);

// Opens the library, once. Internal with all that was tried if there is none
// that will do. The functions may be called for as long as the process lives.
Status OpenCudaRuntime(const CudaApi** api);
Status OpenNccl(const NcclApi** api);

// What was found, for people: "12.9 (/path)".
Status DescribeCudaRuntime(std::string* text);
Status DescribeNccl(std::string* text);

}  // namespace hvd
