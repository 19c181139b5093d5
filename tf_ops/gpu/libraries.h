// Finds and opens the CUDA runtime and NCCL. Nothing links them: without them
// all works except collectives on GPUs.
#pragma once

#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/gpu/cuda_api.h"
#include "tf_ops/gpu/nccl_api.h"

namespace hvd {

struct GpuLibraryPaths {
  // If not empty, the only file tried: for tests and unusual installations.
  std::string cuda_runtime;
  std::string nccl;
  // Files of the NVIDIA wheels, tried after what the process has loaded
  // already (TensorFlow's) and before what the system's loader finds.
  std::vector<std::string> cuda_runtime_wheels;
  std::vector<std::string> nccl_wheels;
};

// Sets where to look; an open library stays open. Any thread.
void SetGpuLibraryPaths(GpuLibraryPaths paths);

// Opens the library, once; its functions work as long as the process lives.
// Internal, with all that was tried, if none is usable. Any thread.
Status OpenCudaRuntime(const CudaApi** api);
Status OpenNccl(const NcclApi** api);

// What was found, for people: "12.9 (/path)".
Status DescribeCudaRuntime(std::string* text);
Status DescribeNccl(std::string* text);

}  // namespace hvd
