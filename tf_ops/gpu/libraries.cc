#include "tf_ops/gpu/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <utility>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {
namespace {

constexpr int kMinCudaVersion = 12000;
constexpr int kFirstCudaWithBatches = 12080;  // runtime, and driver

struct Candidate {
  std::string path;
  int flags;  // of dlopen
};

std::vector<Candidate> Candidates(const std::string& only,
                                  const std::vector<std::string>& sonames,
                                  const std::vector<std::string>& wheels) {
  std::vector<Candidate> result;
  if (!only.empty()) return {{only, RTLD_NOW | RTLD_LOCAL}};
  for (const std::string& name : sonames) {
    result.push_back({name, RTLD_NOW | RTLD_NOLOAD});
  }
  for (const std::string& path : wheels) {
    result.push_back({path, RTLD_NOW | RTLD_LOCAL});
  }
  for (const std::string& name : sonames) {
    result.push_back({name, RTLD_NOW | RTLD_LOCAL});
  }
  return result;
}

std::string PathOf(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr ||
      map->l_name == nullptr || map->l_name[0] == '\0') {
    return otherwise;
  }
  return map->l_name;
}

class Symbols {
 public:
  explicit Symbols(void* handle) : handle_(handle) {}

  template <typename F>
  void Need(const char* name, F* function) {
    if (!Find(name, function) && missing_.empty()) missing_ = name;
  }
  template <typename F>
  bool Find(const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(handle_, name));
    return *function != nullptr;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const handle_;
  std::string missing_;
};

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Without a driver the runtime finds no GPU, and none of these is called. The
// fake runtime has these functions itself.
void LoadDriver(void* runtime, CudaApi* api) {
  void* handle = runtime;
  if (dlsym(handle, "cuDevicePrimaryCtxRetain") == nullptr) {
    handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (handle == nullptr) return;
  }
  Symbols s(handle);
  s.Find("cuDevicePrimaryCtxRetain", &api->DevicePrimaryCtxRetain);
  s.Find("cuCtxPushCurrent_v2", &api->CtxPushCurrent);
  s.Find("cuCtxPopCurrent_v2", &api->CtxPopCurrent);
  s.Find("cuDeviceGetUuid_v2", &api->DeviceGetUuid);
  s.Find("cuDeviceGetAttribute", &api->DriverGetAttribute);
  s.Find("cuModuleLoadData", &api->ModuleLoadData);
  s.Find("cuModuleGetFunction", &api->ModuleGetFunction);
  s.Find("cuLaunchKernel", &api->LaunchKernel);
}

// Returns why this library is unusable; an empty string if it is usable.
std::string Load(void* handle, CudaApi* api, std::string* version) {
  Symbols s(handle);
  s.Need("cudaRuntimeGetVersion", &api->RuntimeGetVersion);
  s.Need("cudaDriverGetVersion", &api->DriverGetVersion);
  s.Need("cudaGetErrorString", &api->GetErrorString);
  s.Need("cudaGetLastError", &api->GetLastError);
  s.Need("cudaGetDeviceCount", &api->GetDeviceCount);
  s.Need("cudaGetDevice", &api->GetDevice);
  s.Need("cudaSetDevice", &api->SetDevice);
  s.Need("cudaDeviceGetAttribute", &api->DeviceGetAttribute);
  s.Need("cudaDeviceGetPCIBusId", &api->DeviceGetPCIBusId);
  s.Need("cudaDeviceGetStreamPriorityRange",
         &api->DeviceGetStreamPriorityRange);
  s.Need("cudaMemGetInfo", &api->MemGetInfo);
  s.Need("cudaMalloc", &api->Malloc);
  s.Need("cudaFree", &api->Free);
  s.Need("cudaMallocAsync", &api->MallocAsync);
  s.Need("cudaFreeAsync", &api->FreeAsync);
  s.Need("cudaPointerGetAttributes", &api->PointerGetAttributes);
  s.Need("cudaStreamCreateWithPriority", &api->StreamCreateWithPriority);
  s.Need("cudaStreamDestroy", &api->StreamDestroy);
  s.Need("cudaStreamWaitEvent", &api->StreamWaitEvent);
  s.Need("cudaEventCreateWithFlags", &api->EventCreateWithFlags);
  s.Need("cudaEventRecord", &api->EventRecord);
  s.Need("cudaEventQuery", &api->EventQuery);
  s.Need("cudaEventDestroy", &api->EventDestroy);
  s.Need("cudaMemcpyAsync", &api->MemcpyAsync);
  if (!s.missing().empty()) return "it has no " + s.missing();
  LoadDriver(handle, api);
  int number = 0;
  if (api->RuntimeGetVersion(&number) != kCudaSuccess) {
    return "it does not tell its version";
  }
  *version = CudaVersionText(number);
  if (number < kMinCudaVersion) {
    return "it is version " + *version + ", older than " +
           CudaVersionText(kMinCudaVersion);
  }
  // A driver may be older than the runtime, and then lacks what is new.
  int driver = 0;
  if (api->DriverGetVersion(&driver) != kCudaSuccess ||
      driver < kFirstCudaWithBatches) {
    return "";
  }
  // Its parameters changed in CUDA 13.
  if (number >= 13000 && number < 14000) {
    s.Find("cudaMemcpyBatchAsync", &api->MemcpyBatchAsync13);
  } else if (number >= kFirstCudaWithBatches && number < 13000) {
    s.Find("cudaMemcpyBatchAsync", &api->MemcpyBatchAsync12);
  }
  return "";
}

std::string Load(void* handle, NcclApi* api, std::string* version) {
  Symbols s(handle);
  s.Need("ncclGetVersion", &api->GetVersion);
  if (!s.missing().empty()) return "it has no " + s.missing();
  int number = 0;
  if (api->GetVersion(&number) != kNcclSuccess) {
    return "it does not tell its version";
  }
  api->version = number;
  *version = NcclVersionText(number);
  if (number < kMinNcclVersion) {
    return "it is version " + *version + ", older than " +
           NcclVersionText(kMinNcclVersion);
  }
  s.Need("ncclGetErrorString", &api->GetErrorString);
  s.Need("ncclGetLastError", &api->GetLastError);
  s.Need("ncclGetUniqueId", &api->GetUniqueId);
  s.Need("ncclCommInitRankConfig", &api->CommInitRankConfig);
  s.Need("ncclCommSplit", &api->CommSplit);
  s.Need("ncclCommFinalize", &api->CommFinalize);
  s.Need("ncclCommDestroy", &api->CommDestroy);
  s.Need("ncclCommAbort", &api->CommAbort);
  s.Need("ncclCommGetAsyncError", &api->CommGetAsyncError);
  s.Need("ncclGroupStart", &api->GroupStart);
  s.Need("ncclGroupEnd", &api->GroupEnd);
  s.Need("ncclAllReduce", &api->AllReduce);
  s.Need("ncclReduce", &api->Reduce);
  s.Need("ncclBroadcast", &api->Broadcast);
  s.Need("ncclReduceScatter", &api->ReduceScatter);
  s.Need("ncclAllGather", &api->AllGather);
  s.Need("ncclSend", &api->Send);
  s.Need("ncclRecv", &api->Recv);
  s.Need("ncclRedOpCreatePreMulSum", &api->RedOpCreatePreMulSum);
  s.Need("ncclRedOpDestroy", &api->RedOpDestroy);
  return s.missing().empty() ? "" : "it has no " + s.missing();
}

// One of the two libraries. Open() tries again after a failure: meanwhile paths
// may have been set, or TensorFlow may have loaded its copy. Thread-safe.
template <typename Api>
class Library {
 public:
  Library(std::string what, std::vector<std::string> sonames)
      : what_(std::move(what)), sonames_(std::move(sonames)) {}

  void SetPaths(std::string only, std::vector<std::string> wheels)
      EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    only_ = std::move(only);
    wheels_ = std::move(wheels);
  }

  Status Open(const Api** api, std::string* text) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    std::string tried;
    if (!is_open_) tried = Try();
    if (!is_open_) {
      return Status::Internal(what_ + " was not found. Tried: " + tried);
    }
    if (api != nullptr) *api = &api_;
    if (text != nullptr) *text = description_;
    return Status::Ok();
  }

 private:
  std::string Try() REQUIRES(mu_) {
    std::string tried;
    for (const Candidate& one : Candidates(only_, sonames_, wheels_)) {
      void* handle = dlopen(one.path.c_str(), one.flags);
      if (handle == nullptr) {
        const char* const error = dlerror();
        if ((one.flags & RTLD_NOLOAD) != 0) continue;
        tried += (tried.empty() ? "" : "; ") +
                 std::string(error == nullptr ? one.path.c_str() : error);
        continue;
      }
      Api loaded{};
      std::string version;
      const std::string problem = Load(handle, &loaded, &version);
      const std::string path = PathOf(handle, one.path);
      if (problem.empty()) {  // it is never closed
        api_ = loaded;
        is_open_ = true;
        description_ = version + " (" + path + ")";
        return "";
      }
      dlclose(handle);
      tried += (tried.empty() ? "" : "; ") + path + ": " + problem;
    }
    return tried;
  }

  const std::string what_;
  const std::vector<std::string> sonames_;
  Mutex mu_;
  std::string only_ GUARDED_BY(mu_);
  std::vector<std::string> wheels_ GUARDED_BY(mu_);
  bool is_open_ GUARDED_BY(mu_) = false;
  Api api_ GUARDED_BY(mu_){};  // constant once it is open
  std::string description_ GUARDED_BY(mu_);
};

// Never destroyed: threads may call into them while the process ends.
Library<CudaApi>& CudaRuntime() {
  static auto* const library = new Library<CudaApi>(
      "the CUDA runtime", {"libcudart.so.12", "libcudart.so.13"});
  return *library;
}

Library<NcclApi>& Nccl() {
  static auto* const library = new Library<NcclApi>("NCCL", {"libnccl.so.2"});
  return *library;
}

}  // namespace

void SetGpuLibraryPaths(GpuLibraryPaths paths) {
  CudaRuntime().SetPaths(std::move(paths.cuda_runtime),
                         std::move(paths.cuda_runtime_wheels));
  Nccl().SetPaths(std::move(paths.nccl), std::move(paths.nccl_wheels));
}

Status OpenCudaRuntime(const CudaApi** api) {
  return CudaRuntime().Open(api, nullptr);
}

Status OpenNccl(const NcclApi** api) { return Nccl().Open(api, nullptr); }

Status DescribeCudaRuntime(std::string* text) {
  return CudaRuntime().Open(nullptr, text);
}

Status DescribeNccl(std::string* text) { return Nccl().Open(nullptr, text); }

}  // namespace hvd
