// The part of the CUDA runtime that we use, declared by hand: it is opened at
// run time, so that the build needs neither its headers nor its library.
#pragma once

#include <cstddef>

namespace hvd {

// cudaStream_t and cudaEvent_t.
using CudaStream = void*;
using CudaEvent = void*;

// Values of cudaError_t.
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaOutOfMemory = 2;  // cudaErrorMemoryAllocation
inline constexpr int kCudaNotReady = 600;

inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
// cudaDevAttrComputeCapabilityMajor
inline constexpr int kCudaComputeCapabilityMajor = 75;
// CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: it is on a NVSwitch that reduces.
inline constexpr int kCudaMulticastSupported = 132;
inline constexpr int kCudaMemcpyDefault = 4;  // addresses say the direction
inline constexpr int kCudaMemoryTypeDevice = 2;
inline constexpr int kCudaMemoryTypeManaged = 3;

// cudaPointerAttributes; CUDA 13 has added `reserved`.
struct CudaPointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
};

// cudaMemcpyAttributes: how the sources of a batch of copies are read.
struct CudaMemcpyAttributes {
  int source_access_order = 1;  // in the order of the stream
  int source_hint[2] = {0, 0};
  int destination_hint[2] = {0, 0};
  unsigned flags = 0;
};

// Functions of the runtime, and some of the driver, which make a context
// current and put the previous one back. cudaSetDevice cannot: for a thread
// that had none it would make a context on GPU 0.
struct CudaApi {
  int (*DevicePrimaryCtxRetain)(void** context, int device);  // of the driver
  int (*CtxPushCurrent)(void* context);
  int (*CtxPopCurrent)(void** context);
  // Of the driver too; null if it is too old. Tells slices (MIG) of one GPU
  // apart.
  int (*DeviceGetUuid)(unsigned char uuid[16], int device);
  int (*DriverGetAttribute)(int* value, int attribute, int device);
  int (*ModuleLoadData)(void** module, const void* ptx);
  int (*ModuleGetFunction)(void** function, void* module, const char* name);
  int (*LaunchKernel)(void* function, unsigned grid_x, unsigned grid_y,
                      unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared_bytes, CudaStream,
                      void** parameters, void** extra);
  int (*RuntimeGetVersion)(int* version);  // 12090: 12.9
  int (*DriverGetVersion)(int* version);   // 0: no driver
  const char* (*GetErrorString)(int error);
  int (*GetLastError)();  // also clears it
  int (*GetDeviceCount)(int* count);
  int (*GetDevice)(int* device);
  int (*SetDevice)(int device);  // of the calling thread
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*DeviceGetPCIBusId)(char* id, int capacity, int device);
  int (*DeviceGetStreamPriorityRange)(int* least, int* greatest);
  int (*MemGetInfo)(size_t* free, size_t* total);
  int (*Malloc)(void** pointer, size_t num_bytes);
  int (*Free)(void* pointer);
  int (*MallocAsync)(void** pointer, size_t num_bytes, CudaStream);
  int (*FreeAsync)(void* pointer, CudaStream);
  int (*PointerGetAttributes)(CudaPointerAttributes*, const void* pointer);
  int (*StreamCreateWithPriority)(CudaStream*, unsigned flags, int priority);
  int (*StreamDestroy)(CudaStream);
  int (*StreamWaitEvent)(CudaStream, CudaEvent, unsigned flags);
  int (*EventCreateWithFlags)(CudaEvent*, unsigned flags);
  int (*EventRecord)(CudaEvent, CudaStream);
  int (*EventQuery)(CudaEvent);  // kCudaNotReady: not yet
  int (*EventDestroy)(CudaEvent);
  int (*MemcpyAsync)(void* to, const void* from, size_t num_bytes, int kind,
                     CudaStream);
  // CUDA 12.8 and 12.9 with such a driver or a newer one; else null.
  int (*MemcpyBatchAsync12)(void** to, void** from, size_t* num_bytes,
                            size_t count, CudaMemcpyAttributes*,
                            size_t* attribute_indices, size_t num_attributes,
                            size_t* failed_index, CudaStream);
  // CUDA 13, with the same drivers; else null.
  int (*MemcpyBatchAsync13)(void* const* to, const void* const* from,
                            const size_t* num_bytes, size_t count,
                            CudaMemcpyAttributes*, size_t* attribute_indices,
                            size_t num_attributes, CudaStream);
};

}  // namespace hvd
