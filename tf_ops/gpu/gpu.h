// One GPU of this process: memory, streams and recycled events.
#pragma once

#include <atomic>
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
  ~GpuEvent();  // gives the CUDA event back for reuse
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  CudaEvent get() const { return event_; }
  // Says whether the GPU has reached this point. Does not wait.
  Status Query(bool* is_over) const;

 private:
  Gpu* const gpu_;
  const CudaEvent event_;
};

// Thread-safe. Only Free waits for work of the GPU.
class Gpu {
 public:
  // Gets the GPU that the CUDA runtime numbers `ordinal`; it lives as long as
  // the process. Internal without a CUDA runtime, InvalidArgument if there is
  // no such GPU.
  static Status Get(int ordinal, Gpu** gpu);
  // How many GPUs this process sees; 0 without CUDA.
  static int Count();
  // The GPU that holds `address`; -1 for host memory and unknown memory.
  static int OrdinalOf(const void* address);

  int ordinal() const { return ordinal_; }
  const CudaApi& cuda() const { return cuda_; }

  // Makes it the calling thread's GPU. For our own threads; on others use
  // Visit, which puts back the GPU that they had, or none.
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

  // Marks the end of what is queued on `stream` now.
  Status Record(CudaStream stream, std::shared_ptr<GpuEvent>* event)
      EXCLUDES(mu_);
  // Makes later work on `stream` wait for `event`.
  Status Wait(CudaStream stream, const GpuEvent& event) const;

  // On the calling thread's GPU, see Use(). The error for too little memory
  // names `what`.
  Status Allocate(size_t num_bytes, const std::string& what, void** memory);
  void Free(void* memory);
  // The same, in the order of `stream`; the host does not wait for the GPU.
  Status AllocateOn(CudaStream stream, size_t num_bytes,
                    const std::string& what, void** memory);
  void FreeOn(CudaStream stream, void* memory);
  // "0000:3B:00.0". Slices (MIG) of one GPU have the same.
  std::string BusId() const;
  // Tells slices apart too; the bus id where the driver cannot.
  std::string Identity() const;
  // Whether it is on a NVSwitch that sums what passes through.
  bool IsOnSummingSwitch() const;
  // The first number of its compute capability: 9 is Hopper.
  Status ComputeCapability(int* major) const;
  // Makes a stream of the highest priority if `urgent`, else of the lowest.
  Status CreateStream(bool urgent, CudaStream* stream);

  // Queues copies on `stream`; `in_batches`: with one call where CUDA can.
  struct Copy {
    void* to;
    const void* from;
    size_t num_bytes;
  };
  Status CopyAll(const std::vector<Copy>& copies, CudaStream stream,
                 bool in_batches = true) const;

  // Turns a CUDA error into a status; `what` is the function that was called.
  // The driver gives the errors that matter here the same numbers.
  Status AsStatus(int error, const std::string& what) const;

  // Counts the communicators on this GPU that NCCL hangs in.
  void NoteHanging(int change) { num_hanging_.fetch_add(change); }
  // Internal while there is one.
  Status CheckHanging() const;

 private:
  friend class GpuEvent;

  Gpu(int ordinal, const CudaApi& cuda, void* context)
      : ordinal_(ordinal), cuda_(cuda), context_(context) {}
  void TakeBack(CudaEvent event) EXCLUDES(mu_);
  Status AllocationStatus(int error, const char* function, size_t num_bytes,
                          const std::string& what) const;

  const int ordinal_;
  const CudaApi& cuda_;
  void* const context_;  // the one that the runtime uses on this GPU
  std::atomic<int> num_hanging_{0};
  Mutex mu_;
  std::vector<CudaEvent> idle_ GUARDED_BY(mu_);
};

// Temporary memory, freed behind all that is queued on `stream` at the end. On
// the calling thread's GPU; not thread-safe.
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
