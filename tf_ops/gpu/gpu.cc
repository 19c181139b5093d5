#include "tf_ops/gpu/gpu.h"

#include <map>

#include "tf_ops/gpu/libraries.h"

namespace hvd {
namespace {

struct Gpus {
  Mutex mu;
  std::map<int, Gpu*> by_ordinal GUARDED_BY(mu);  // never deleted
};

Gpus& TheGpus() {
  static auto* const gpus = new Gpus();
  return *gpus;
}

constexpr size_t kSmallestBatch = 4;  // fewer copies get one call each

// Errors after which CUDA answers every call of the process with an error:
// ECC, NVLink, an illegal access, a failed assertion or launch, unknown.
bool IsSticky(int error) {
  return error == 214 || error == 220 || error == 700 || error == 702 ||
         error == 710 || (error >= 714 && error <= 719) || error == 999;
}

}  // namespace

GpuEvent::~GpuEvent() { gpu_->TakeBack(event_); }

Status GpuEvent::Query(bool* is_over) const {
  const int result = gpu_->cuda().EventQuery(event_);
  *is_over = result != kCudaNotReady;
  if (result == kCudaNotReady) {
    gpu_->cuda().GetLastError();  // CUDA counts it as one: clear it
    return Status::Ok();
  }
  return gpu_->AsStatus(result, "cudaEventQuery");
}

Status Gpu::Get(int ordinal, Gpu** gpu) {
  Gpus& gpus = TheGpus();
  MutexLock lock(&gpus.mu);
  Gpu*& known = gpus.by_ordinal[ordinal];
  if (known == nullptr) {
    const CudaApi* cuda = nullptr;
    HVD_RETURN_IF_ERROR(OpenCudaRuntime(&cuda));
    int count = 0;
    const int result = cuda->GetDeviceCount(&count);
    if (result != kCudaSuccess) {
      cuda->GetLastError();
      int driver = 0;
      const bool has_driver =
          cuda->DriverGetVersion(&driver) == kCudaSuccess && driver > 0;
      return Status::Internal(std::string("CUDA finds no GPU: ") +
                              (has_driver
                                   ? cuda->GetErrorString(result)
                                   : "there is no driver (libcuda.so.1)"));
    }
    if (ordinal < 0 || ordinal >= count) {
      return Status::InvalidArgument(
          "the GPU must be in [0, " + std::to_string(count) +
          "), the GPUs that this process sees. Received: " +
          std::to_string(ordinal));
    }
    void* context = nullptr;
    if (cuda->DevicePrimaryCtxRetain == nullptr ||
        cuda->CtxPushCurrent == nullptr || cuda->CtxPopCurrent == nullptr ||
        cuda->DevicePrimaryCtxRetain(&context, ordinal) != kCudaSuccess) {
      return Status::Internal("the CUDA driver gives no context on GPU " +
                              std::to_string(ordinal));
    }
    known = new Gpu(ordinal, *cuda, context);
  }
  *gpu = known;
  return Status::Ok();
}

int Gpu::Count() {
  const CudaApi* cuda = nullptr;
  if (!OpenCudaRuntime(&cuda).ok()) return 0;
  int count = 0;
  if (cuda->GetDeviceCount(&count) != kCudaSuccess) {
    cuda->GetLastError();
    return 0;
  }
  return count;
}

int Gpu::OrdinalOf(const void* address) {
  const CudaApi* cuda = nullptr;
  if (!OpenCudaRuntime(&cuda).ok()) return -1;
  CudaPointerAttributes attributes{};
  if (cuda->PointerGetAttributes(&attributes, address) != kCudaSuccess) {
    cuda->GetLastError();
    return -1;
  }
  const bool is_on_gpu = attributes.type == kCudaMemoryTypeDevice ||
                         attributes.type == kCudaMemoryTypeManaged;
  return is_on_gpu ? attributes.device : -1;
}

Status Gpu::Use() const {
  return AsStatus(cuda_.SetDevice(ordinal_), "cudaSetDevice");
}

Gpu::Visit::Visit(const Gpu& gpu) : cuda_(gpu.cuda_) {
  cuda_.CtxPushCurrent(gpu.context_);
}

Gpu::Visit::~Visit() {
  void* context = nullptr;
  cuda_.CtxPopCurrent(&context);
}

Status Gpu::Record(CudaStream stream, std::shared_ptr<GpuEvent>* event) {
  CudaEvent raw = nullptr;
  {
    MutexLock lock(&mu_);
    if (!idle_.empty()) {
      raw = idle_.back();
      idle_.pop_back();
    }
  }
  const Visit visit(*this);  // the thread is somebody else's
  if (raw == nullptr) {
    HVD_RETURN_IF_ERROR(
        AsStatus(cuda_.EventCreateWithFlags(&raw, kCudaEventDisableTiming),
                 "cudaEventCreateWithFlags"));
  }
  *event = std::make_shared<GpuEvent>(this, raw);
  return AsStatus(cuda_.EventRecord(raw, stream), "cudaEventRecord");
}

Status Gpu::Wait(CudaStream stream, const GpuEvent& event) const {
  return AsStatus(cuda_.StreamWaitEvent(stream, event.get(), 0),
                  "cudaStreamWaitEvent");
}

void Gpu::TakeBack(CudaEvent event) {
  MutexLock lock(&mu_);
  idle_.push_back(event);
}

Status Gpu::Allocate(size_t num_bytes, const std::string& what, void** memory) {
  return AllocationStatus(cuda_.Malloc(memory, num_bytes), "cudaMalloc",
                          num_bytes, what);
}

Status Gpu::AllocateOn(CudaStream stream, size_t num_bytes,
                       const std::string& what, void** memory) {
  return AllocationStatus(cuda_.MallocAsync(memory, num_bytes, stream),
                          "cudaMallocAsync", num_bytes, what);
}

Status Gpu::AllocationStatus(int error, const char* function, size_t num_bytes,
                             const std::string& what) const {
  if (error != kCudaOutOfMemory) return AsStatus(error, function);
  cuda_.GetLastError();
  size_t free = 0;
  size_t total = 0;
  std::string have;
  if (cuda_.MemGetInfo(&free, &total) == kCudaSuccess) {
    have = ": " + std::to_string(free >> 20) + " of " +
           std::to_string(total >> 20) + " MiB are free";
  }
  return Status::Internal("GPU " + std::to_string(ordinal_) +
                          " is out of memory: " + what + " needs " +
                          std::to_string(num_bytes) + " bytes" + have +
                          ". TensorFlow takes all memory when it begins: call "
                          "init() before that (HVD_GPU=on), or let it take "
                          "memory as it needs it "
                          "(tf.config.experimental.set_memory_growth)");
}

void Gpu::Free(void* memory) {
  if (memory != nullptr) cuda_.Free(memory);
}

void Gpu::FreeOn(CudaStream stream, void* memory) {
  cuda_.FreeAsync(memory, stream);
}

std::string Gpu::BusId() const {
  char text[32] = "";
  if (cuda_.DeviceGetPCIBusId(text, sizeof(text), ordinal_) != kCudaSuccess) {
    cuda_.GetLastError();
    return "";
  }
  return text;
}

bool Gpu::IsOnSummingSwitch() const {
  int value = 0;
  return cuda_.DriverGetAttribute != nullptr &&
         cuda_.DriverGetAttribute(&value, kCudaMulticastSupported, ordinal_) ==
             kCudaSuccess &&
         value != 0;
}

std::string Gpu::Identity() const {
  unsigned char uuid[16] = {};
  if (cuda_.DeviceGetUuid == nullptr ||
      cuda_.DeviceGetUuid(uuid, ordinal_) != kCudaSuccess) {
    return BusId();
  }
  return std::string(reinterpret_cast<char*>(uuid), sizeof(uuid));
}

Status Gpu::ComputeCapability(int* major) const {
  return AsStatus(
      cuda_.DeviceGetAttribute(major, kCudaComputeCapabilityMajor, ordinal_),
      "cudaDeviceGetAttribute");
}

Status Gpu::CreateStream(bool urgent, CudaStream* stream) {
  int least = 0;
  int greatest = 0;
  HVD_RETURN_IF_ERROR(
      AsStatus(cuda_.DeviceGetStreamPriorityRange(&least, &greatest),
               "cudaDeviceGetStreamPriorityRange"));
  return AsStatus(cuda_.StreamCreateWithPriority(stream, kCudaStreamNonBlocking,
                                                 urgent ? greatest : least),
                  "cudaStreamCreateWithPriority");
}

Status Gpu::CopyAll(const std::vector<Copy>& copies, CudaStream stream,
                    bool in_batches) const {
  const bool has_batches = cuda_.MemcpyBatchAsync12 != nullptr ||
                           cuda_.MemcpyBatchAsync13 != nullptr;
  if (!in_batches || !has_batches || copies.size() < kSmallestBatch) {
    for (const Copy& copy : copies) {
      HVD_RETURN_IF_ERROR(
          AsStatus(cuda_.MemcpyAsync(copy.to, copy.from, copy.num_bytes,
                                     kCudaMemcpyDefault, stream),
                   "cudaMemcpyAsync"));
    }
    return Status::Ok();
  }
  std::vector<void*> to;
  std::vector<void*> from;
  std::vector<size_t> num_bytes;
  for (const Copy& copy : copies) {
    to.push_back(copy.to);
    from.push_back(const_cast<void*>(copy.from));
    num_bytes.push_back(copy.num_bytes);
  }
  CudaMemcpyAttributes attributes;
  size_t first = 0;  // the attributes apply from this copy on
  int result;
  if (cuda_.MemcpyBatchAsync13 != nullptr) {
    result =
        cuda_.MemcpyBatchAsync13(to.data(), from.data(), num_bytes.data(),
                                 to.size(), &attributes, &first, 1, stream);
  } else {
    size_t failed = 0;
    result = cuda_.MemcpyBatchAsync12(to.data(), from.data(), num_bytes.data(),
                                      to.size(), &attributes, &first, 1,
                                      &failed, stream);
  }
  return AsStatus(result, "cudaMemcpyBatchAsync");
}

Status Gpu::AsStatus(int error, const std::string& what) const {
  if (error == kCudaSuccess) return Status::Ok();
  cuda_.GetLastError();  // or the thread's owner would take it for its own
  return Status::Internal(
      what + " failed on GPU " + std::to_string(ordinal_) + ": " +
      cuda_.GetErrorString(error) +
      (IsSticky(error) ? ". This process cannot use the GPU any more: restart "
                         "the process"
                       : ""));
}

Status Gpu::CheckHanging() const {
  if (num_hanging_.load() == 0) return Status::Ok();
  return Status::Internal("NCCL hangs in an earlier communicator on GPU " +
                          std::to_string(ordinal_) + ". Restart the process");
}

}  // namespace hvd
