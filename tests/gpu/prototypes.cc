// Compares our declarations of CUDA and NCCL with the real ones: the number of
// parameters, the size and kind of each. Run it by hand where the headers are:
//
//   g++ -std=c++17 -fsyntax-only -I. -I/usr/local/cuda/include \
//     -I.../nvidia/nccl/include tests/gpu/prototypes.cc
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "tf_ops/gpu/cuda_api.h"
#include "tf_ops/gpu/nccl_api.h"

namespace {

// Two types are alike if their sizes are equal and both are pointers, both
// structures, or both whole numbers or enums.
template <typename A, typename B>
constexpr bool IsAlike() {
  if (sizeof(A) != sizeof(B)) return false;
  if (std::is_pointer_v<A>) return std::is_pointer_v<B>;
  if (std::is_class_v<A>) return std::is_class_v<B>;
  return std::is_integral_v<A> || std::is_enum_v<A>;
}

template <typename Ours, typename Real>
struct Compare : std::false_type {};

template <typename R, typename... P, typename S, typename... Q>
struct Compare<R (*)(P...), S (*)(Q...)> {
  static constexpr bool Check() {
    if constexpr (sizeof...(P) != sizeof...(Q)) {
      return false;
    } else {
      return IsAlike<R, S>() && (IsAlike<P, Q>() && ...);
    }
  }
  static constexpr bool value = Check();
};

#define CUDA_IS_ALIKE(name)                                                \
  static_assert(                                                           \
      Compare<decltype(hvd::CudaApi::name), decltype(&cuda##name)>::value, \
      "cuda" #name)
#define NCCL_IS_ALIKE(name)                                                \
  static_assert(                                                           \
      Compare<decltype(hvd::NcclApi::name), decltype(&nccl##name)>::value, \
      "nccl" #name)

CUDA_IS_ALIKE(RuntimeGetVersion);
CUDA_IS_ALIKE(DriverGetVersion);
CUDA_IS_ALIKE(GetErrorString);
CUDA_IS_ALIKE(GetLastError);
CUDA_IS_ALIKE(GetDeviceCount);
CUDA_IS_ALIKE(GetDevice);
CUDA_IS_ALIKE(SetDevice);
CUDA_IS_ALIKE(DeviceGetStreamPriorityRange);
CUDA_IS_ALIKE(MemGetInfo);
CUDA_IS_ALIKE(Free);
CUDA_IS_ALIKE(PointerGetAttributes);
CUDA_IS_ALIKE(StreamCreateWithPriority);
CUDA_IS_ALIKE(StreamDestroy);
CUDA_IS_ALIKE(StreamWaitEvent);
CUDA_IS_ALIKE(EventRecord);
CUDA_IS_ALIKE(EventQuery);
CUDA_IS_ALIKE(EventDestroy);
CUDA_IS_ALIKE(DeviceGetAttribute);
CUDA_IS_ALIKE(DeviceGetPCIBusId);
CUDA_IS_ALIKE(FreeAsync);
// Overloaded in C++.
static_assert(Compare<decltype(hvd::CudaApi::Malloc),
                      cudaError_t (*)(void**, size_t)>::value);
static_assert(Compare<decltype(hvd::CudaApi::MallocAsync),
                      cudaError_t (*)(void**, size_t, cudaStream_t)>::value);
static_assert(Compare<decltype(hvd::CudaApi::MemcpyAsync),
                      cudaError_t (*)(void*, const void*, size_t,
                                      cudaMemcpyKind, cudaStream_t)>::value);
static_assert(Compare<decltype(hvd::CudaApi::EventCreateWithFlags),
                      cudaError_t (*)(cudaEvent_t*, unsigned)>::value);

static_assert(Compare<decltype(hvd::CudaApi::DevicePrimaryCtxRetain),
                      decltype(&cuDevicePrimaryCtxRetain)>::value);
static_assert(Compare<decltype(hvd::CudaApi::CtxPushCurrent),
                      decltype(&cuCtxPushCurrent)>::value);
static_assert(Compare<decltype(hvd::CudaApi::CtxPopCurrent),
                      decltype(&cuCtxPopCurrent)>::value);

// Overloaded in C++: the declaration that ours stands for must be there.
#if CUDART_VERSION >= 13000
using Batch = cudaError_t (*)(void* const*, const void* const*, const size_t*,
                              size_t, cudaMemcpyAttributes*, size_t*, size_t,
                              cudaStream_t);
constexpr Batch kBatch = &cudaMemcpyBatchAsync;
static_assert(
    Compare<decltype(hvd::CudaApi::MemcpyBatchAsync13), Batch>::value &&
    kBatch != nullptr);
#elif CUDART_VERSION >= 12080
using Batch = cudaError_t (*)(void**, void**, size_t*, size_t,
                              cudaMemcpyAttributes*, size_t*, size_t, size_t*,
                              cudaStream_t);
constexpr Batch kBatch = &cudaMemcpyBatchAsync;
static_assert(
    Compare<decltype(hvd::CudaApi::MemcpyBatchAsync12), Batch>::value &&
    kBatch != nullptr);
#endif
static_assert(sizeof(hvd::CudaMemcpyAttributes) ==
              sizeof(cudaMemcpyAttributes));
static_assert(offsetof(hvd::CudaMemcpyAttributes, flags) ==
              offsetof(cudaMemcpyAttributes, flags));
static_assert(sizeof(hvd::CudaPointerAttributes) >=
              sizeof(cudaPointerAttributes));
static_assert(offsetof(hvd::CudaPointerAttributes, device) ==
              offsetof(cudaPointerAttributes, device));
static_assert(Compare<decltype(hvd::CudaApi::DeviceGetUuid),
                      decltype(&cuDeviceGetUuid_v2)>::value);
static_assert(Compare<decltype(hvd::CudaApi::DriverGetAttribute),
                      decltype(&cuDeviceGetAttribute)>::value);
static_assert(Compare<decltype(hvd::CudaApi::ModuleLoadData),
                      decltype(&cuModuleLoadData)>::value);
static_assert(Compare<decltype(hvd::CudaApi::ModuleGetFunction),
                      decltype(&cuModuleGetFunction)>::value);
static_assert(Compare<decltype(hvd::CudaApi::LaunchKernel),
                      decltype(&cuLaunchKernel)>::value);
static_assert(hvd::kCudaMulticastSupported ==
              CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
static_assert(hvd::kCudaNotReady == cudaErrorNotReady);
static_assert(hvd::kCudaOutOfMemory == cudaErrorMemoryAllocation);
static_assert(hvd::kCudaComputeCapabilityMajor ==
              cudaDevAttrComputeCapabilityMajor);
static_assert(hvd::kCudaStreamNonBlocking == cudaStreamNonBlocking);
static_assert(hvd::kCudaEventDisableTiming == cudaEventDisableTiming);
static_assert(hvd::kCudaMemcpyDefault == cudaMemcpyDefault);
static_assert(hvd::kCudaMemoryTypeDevice == cudaMemoryTypeDevice);
static_assert(hvd::kCudaMemoryTypeManaged == cudaMemoryTypeManaged);

NCCL_IS_ALIKE(GetVersion);
NCCL_IS_ALIKE(GetErrorString);
NCCL_IS_ALIKE(GetLastError);
NCCL_IS_ALIKE(GetUniqueId);
NCCL_IS_ALIKE(CommInitRankConfig);
NCCL_IS_ALIKE(CommSplit);
NCCL_IS_ALIKE(CommFinalize);
NCCL_IS_ALIKE(CommDestroy);
NCCL_IS_ALIKE(CommAbort);
NCCL_IS_ALIKE(CommGetAsyncError);
NCCL_IS_ALIKE(GroupStart);
NCCL_IS_ALIKE(GroupEnd);
NCCL_IS_ALIKE(AllReduce);
NCCL_IS_ALIKE(Reduce);
NCCL_IS_ALIKE(Broadcast);
NCCL_IS_ALIKE(ReduceScatter);
NCCL_IS_ALIKE(AllGather);
NCCL_IS_ALIKE(Send);
NCCL_IS_ALIKE(Recv);
NCCL_IS_ALIKE(RedOpCreatePreMulSum);
NCCL_IS_ALIKE(RedOpDestroy);

static_assert(hvd::kNcclInProgress == ncclInProgress);
static_assert(hvd::kNcclSum == ncclSum && hvd::kNcclProd == ncclProd);
static_assert(hvd::kNcclMax == ncclMax && hvd::kNcclMin == ncclMin);
static_assert(hvd::kNcclAvg == ncclAvg);
static_assert(hvd::kNcclInt8 == ncclInt8 && hvd::kNcclUint8 == ncclUint8);
static_assert(hvd::kNcclInt32 == ncclInt32 && hvd::kNcclUint32 == ncclUint32);
static_assert(hvd::kNcclInt64 == ncclInt64 && hvd::kNcclUint64 == ncclUint64);
static_assert(hvd::kNcclFloat16 == ncclFloat16);
static_assert(hvd::kNcclBfloat16 == ncclBfloat16);
#if NCCL_VERSION_CODE >= 22400
static_assert(hvd::kNcclFloat8E4m3 == ncclFloat8e4m3);
static_assert(hvd::kNcclFloat8E5m2 == ncclFloat8e5m2);
#endif
static_assert(hvd::kNcclFloat32 == ncclFloat32);
static_assert(hvd::kNcclFloat64 == ncclFloat64);
static_assert(hvd::kNcclSplitNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(hvd::kNcclScalarHostImmediate == ncclScalarHostImmediate);
static_assert(offsetof(hvd::NcclConfig, blocking) ==
              offsetof(ncclConfig_t, blocking));
static_assert(offsetof(hvd::NcclConfig, net_name) ==
              offsetof(ncclConfig_t, netName));
static_assert(offsetof(hvd::NcclConfig, split_share) ==
              offsetof(ncclConfig_t, splitShare));
static_assert(sizeof(hvd::NcclConfig) <= sizeof(ncclConfig_t));
static_assert(sizeof(hvd::NcclUniqueId) == sizeof(ncclUniqueId));

}  // namespace
