// One GPU of this process: memory, streams, and events that are used again.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/gpu/cuda_api.h"

namespace hvd {

class Gpu;

// A point on a stream. Thread-safe.
class GpuEvent {
 public:
  GpuEvent(Gpu* gpu, CudaEvent event) : gpu_(gpu), event_(event) {}
  ~GpuEvent();  // the GPU may use it again
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  CudaEvent get() const { return event_; }
  // Whether the GPU has come that far. Does not wait.
  Status Query(bool* is_over) const;

 private:
  Gpu* const gpu_;
  const CudaEvent event_;
};

// Thread-safe. No function waits for work of the GPU, but for Free.
class Gpu {
 public:
  // The GPU with this number of the CUDA runtime; it lives as long as the
  // process. Internal if there is no CUDA runtime, InvalidArgument if there is
  // no such GPU.
  static Status Get(int ordinal, Gpu** gpu);
  // Of GPUs that this process sees; 0 where there is no CUDA, too.
  static int Count();
  // The GPU that holds `address`, or -1: it is host memory, or unknown.
  static int OrdinalOf(const void* address);

  int ordinal() const { return ordinal_; }
  const CudaApi& cuda() const { return cuda_; }

  // Makes it the calling thread's GPU. For threads of ours; others have one of
  // their own, or none, which Visit leaves as it is.
  Status Use() const;
  class Visit {
   public:
    explicit Visit(const Gpu& gpu);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    const CudaApi& cuda_;
  };

  // A point behind all that is queued on `stream`.
  Status Record(CudaStream stream, std::shared_ptr<GpuEvent>* event)
      EXCLUDES(mu_);
  // What is queued on `stream` from now on waits for `event`.
  Status Wait(CudaStream stream, const GpuEvent& event) const;

  // Of the calling thread's GPU, see Use(). `what` is named if there is too
  // little memory.
  Status Allocate(size_t num_bytes, const std::string& what, void** memory);
  void Free(void* memory);
  // The same in the order of `stream`, which does not wait for the GPU.
  Status AllocateOn(CudaStream stream, size_t num_bytes,
                    const std::string& what, void** memory);
  void FreeOn(CudaStream stream, void* memory);
  // The first number of its compute capability: 9 is Hopper.
  Status ComputeCapability(int* major) const;
  // A stream of the highest priority, if `urgent`.
  Status CreateStream(bool urgent, CudaStream* stream);

  // Copies of `num_bytes` each on `stream`, in one call where CUDA can.
  struct Copy {
    void* to;
    const void* from;
    size_t num_bytes;
  };
  Status CopyAll(const std::vector<Copy>& copies, CudaStream stream) const;

  // A CUDA error as a status; `what` was called.
  Status AsStatus(int error, const std::string& what) const;

 private:
  friend class GpuEvent;

  Gpu(int ordinal, const CudaApi& cuda, void* context)
      : ordinal_(ordinal), cuda_(cuda), context_(context) {}
  void TakeBack(CudaEvent event) EXCLUDES(mu_);
  Status AllocationStatus(int error, const char* function, size_t num_bytes,
                          const std::string& what) const;

  const int ordinal_;
  const CudaApi& cuda_;
  void* const context_;  // what the runtime uses on this GPU
  Mutex mu_;
  std::vector<CudaEvent> idle_ GUARDED_BY(mu_);
};

// Memory that is given back behind what is queued on `stream` in the end. Of
// the calling thread's GPU.
class StreamMemory {
 public:
  StreamMemory(Gpu* gpu, CudaStream stream) : gpu_(gpu), stream_(stream) {}
  ~StreamMemory() {
    for (void* memory : taken_) gpu_->FreeOn(stream_, memory);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  Status Allocate(size_t num_bytes, const std::string& what, void** memory) {
    HVD_RETURN_IF_ERROR(gpu_->AllocateOn(stream_, num_bytes, what, memory));
    taken_.push_back(*memory);
    return Status::Ok();
  }

 private:
  Gpu* const gpu_;
  const CudaStream stream_;
  std::vector<void*> taken_;
};

}  // namespace hvd
