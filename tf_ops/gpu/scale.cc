#include "tf_ops/gpu/scale.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {
namespace {

struct Kernel {
  DataType dtype;
  const char* name;
};
constexpr Kernel kKernels[] = {
    {DataType::kFloat32, "hvd_scale_float32"},
    {DataType::kFloat64, "hvd_scale_float64"},
    {DataType::kFloat16, "hvd_scale_float16"},
    {DataType::kBfloat16, "hvd_scale_bfloat16"},
    {DataType::kFloat8E4m3fn, "hvd_scale_float8_e4m3fn"},
    {DataType::kFloat8E5m2, "hvd_scale_float8_e5m2"},
};

constexpr char kScalePtx[] =
#include "tf_ops/gpu/scale_ptx.inc"
    ;

constexpr unsigned kThreadsOfBlock = 256;
constexpr size_t kBytesOfThread = 16;  // at a time
constexpr size_t kMaxBlocks = 2048;    // enough for any GPU; threads loop

struct Scalers {
  Mutex mu;
  std::map<const Gpu*, const GpuScaler*> by_gpu GUARDED_BY(mu);
};

Scalers& TheScalers() {
  static auto* const scalers = new Scalers();
  return *scalers;
}

}  // namespace

Status GpuScaler::Get(const Gpu& gpu, const GpuScaler** scaler) {
  Scalers& scalers = TheScalers();
  MutexLock lock(&scalers.mu);
  const GpuScaler*& known = scalers.by_gpu[&gpu];
  if (known == nullptr) {
    std::unique_ptr<GpuScaler> made(new GpuScaler(gpu));
    HVD_RETURN_IF_ERROR(made->Load());
    known = made.release();
  }
  *scaler = known;
  return Status::Ok();
}

Status GpuScaler::Load() {
  const CudaApi& cuda = gpu_.cuda();
  if (cuda.ModuleLoadData == nullptr || cuda.ModuleGetFunction == nullptr ||
      cuda.LaunchKernel == nullptr) {
    return Status::Internal("the CUDA driver lacks functions to run kernels");
  }
  void* module = nullptr;
  // It is never unloaded, for that may wait for the GPU.
  HVD_RETURN_IF_ERROR(gpu_.AsStatus(cuda.ModuleLoadData(&module, kScalePtx),
                                    "cuModuleLoadData"));
  for (size_t i = 0; i < kNumKernels; ++i) {
    HVD_RETURN_IF_ERROR(gpu_.AsStatus(
        cuda.ModuleGetFunction(&functions_[i], module, kKernels[i].name),
        "cuModuleGetFunction"));
  }
  return Status::Ok();
}

Status GpuScaler::Run(DataType dtype, void* data, size_t num_elements,
                      double factor, CudaStream stream) const {
  if (num_elements == 0) return Status::Ok();
  const auto* const kernel =
      std::find_if(std::begin(kKernels), std::end(kKernels),
                   [dtype](const Kernel& k) { return k.dtype == dtype; });
  if (kernel == std::end(kKernels)) {
    return Status::Internal(std::string("no kernel scales ") +
                            DataTypeName(dtype));
  }
  unsigned long long count = num_elements;
  float single = static_cast<float>(factor);
  const bool is_double = dtype == DataType::kFloat64;
  void* parameters[] = {&data, &count,
                        is_double ? static_cast<void*>(&factor) : &single};
  const size_t num_threads =
      num_elements * ElementBytes(dtype) / kBytesOfThread + 1;
  const size_t num_blocks =
      std::min(kMaxBlocks, (num_threads - 1) / kThreadsOfBlock + 1);
  void* const function = functions_[static_cast<size_t>(kernel - kKernels)];
  return gpu_.AsStatus(
      gpu_.cuda().LaunchKernel(function, static_cast<unsigned>(num_blocks), 1,
                               1, kThreadsOfBlock, 1, 1, 0, stream, parameters,
                               nullptr),
      "cuLaunchKernel");
}

}  // namespace hvd
