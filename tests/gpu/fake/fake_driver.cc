// The functions of the CUDA driver that hvd_keras uses, and NVML's, for the
// fake CUDA runtime in fake_cuda.cc.
//
// Setting: FAKE_GPU_MULTICAST (0).
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tests/gpu/fake/fake_stream.h"
#include "tf_ops/gpu/cuda_api.h"
#include "tf_ops/gpu/scale_kernel.h"

namespace fake {
namespace {

constexpr int kNotFound = 500;  // cudaErrorSymbolNotFound

using Threads = std::function<void(unsigned long long thread,
                                   unsigned long long num_threads)>;
struct Kernel {
  const char* name;
  Threads (*bind)(void* data, unsigned long long count, void* factor);
};

template <typename Type>
Threads BindScale(void* data, unsigned long long count, void* factor) {
  const auto by = *static_cast<typename Type::Factor*>(factor);
  return [=](unsigned long long thread, unsigned long long num_threads) {
    hvd_scale::Scale<Type>(data, count, by, thread, num_threads);
  };
}

constexpr Kernel kKernels[] = {
    {"hvd_scale_float32", &BindScale<hvd_scale::Float32>},
    {"hvd_scale_float64", &BindScale<hvd_scale::Float64>},
    {"hvd_scale_float16", &BindScale<hvd_scale::Float16>},
    {"hvd_scale_bfloat16", &BindScale<hvd_scale::Bfloat16>},
    {"hvd_scale_float8_e4m3fn", &BindScale<hvd_scale::Float8E4m3fn>},
    {"hvd_scale_float8_e5m2", &BindScale<hvd_scale::Float8E5m2>},
};

// Of contexts that were pushed.
thread_local std::vector<int> outer_devices;

}  // namespace
}  // namespace fake

using fake::Fail;
using fake::Log;
using fake::StreamOf;

extern "C" {

// A context is the number of its device, plus one.
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device + 1));
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  fake::outer_devices.push_back(fake::CurrentDevice());
  fake::SetCurrentDevice(static_cast<int>(reinterpret_cast<intptr_t>(context)) -
                         1);
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (fake::outer_devices.empty()) return Fail(fake::kInvalidValue);
  *context =
      reinterpret_cast<void*>(static_cast<intptr_t>(fake::CurrentDevice() + 1));
  fake::SetCurrentDevice(fake::outer_devices.back());
  fake::outer_devices.pop_back();
  return 0;
}

// A module is its PTX, a function one of the kernels above.
int cuModuleLoadData(void** module, const void* ptx) {
  *module = const_cast<void*>(ptx);
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::string entry = std::string(".visible .entry ") + name + "(";
  const bool is_there =
      std::strstr(static_cast<char*>(module), entry.c_str()) != nullptr;
  for (size_t i = 0; is_there && i < std::size(fake::kKernels); ++i) {
    if (std::string(fake::kKernels[i].name) != name) continue;
    *function = const_cast<fake::Kernel*>(&fake::kKernels[i]);
    return 0;
  }
  return Fail(fake::kNotFound);
}

int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned,
                   unsigned block, unsigned, unsigned, unsigned, void* stream,
                   void** parameters, void**) {
  Log("cuLaunchKernel");
  if (StreamOf(stream)->device() != fake::CurrentDevice()) {
    return Fail(fake::kInvalidValue);
  }
  const auto* const kernel = static_cast<fake::Kernel*>(function);
  void* const data = *static_cast<void**>(parameters[0]);
  const auto count = *static_cast<unsigned long long*>(parameters[1]);
  const auto run = kernel->bind(data, count, parameters[2]);
  const unsigned long long num_threads = grid * 1ull * block;
  StreamOf(stream)->Push([run, num_threads] {
    for (unsigned long long i = 0; i < num_threads; ++i) run(i, num_threads);
  });
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute != hvd::kCudaMulticastSupported) {
    return Fail(fake::kInvalidValue);
  }
  *value = static_cast<int>(fake::Setting("FAKE_GPU_MULTICAST", 0));
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<unsigned char>(
      1 + fake::Devices()[static_cast<size_t>(device)]);
  return 0;
}

// NVML counts all devices, also those that CUDA_VISIBLE_DEVICES hides.
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(fake::NumPhysical());
  return 0;
}

}  // extern "C"
