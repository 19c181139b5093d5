// Collectives of XLA's programs on GPUs between their start and their end.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// One that was submitted. For the thread that runs the program, but for what
// the engine calls.
class StartedCall {
 public:
  // Submits `request`, whose `results` are in GPU memory; none: in no memory.
  static std::shared_ptr<StartedCall> Start(Request request,
                                            std::vector<void*> results);

  // Once: waits until all ranks have come and the work is queued on the GPU,
  // which may take as long as the engine is patient, and makes `stream` wait
  // for that work. Does not wait for the GPU.
  Status End(CudaStream stream);

  const std::vector<void*>& results() const { return results_; }
  std::thread::id thread() const { return thread_; }

 private:
  explicit StartedCall(std::vector<void*> results)
      : results_(std::move(results)), launched_(promise_.get_future()) {}

  const std::vector<void*> results_;
  const std::thread::id thread_ = std::this_thread::get_id();
  int ordinal_ = -1;
  std::promise<Status> promise_;
  std::future<Status> launched_;
  std::shared_ptr<GpuEvent> end_;  // written before the promise; null: none
};

// Those of this process that have not been ended, by the memory of their
// results. A program's memory is its own until it has ended, so that this tells
// apart what runs at the same time, be it the same program. Thread-safe.
class StartedCalls {
 public:
  void Add(const std::shared_ptr<StartedCall>& call) EXCLUDES(mu_);
  // The call that `result` belongs to, which is taken out; null: none.
  std::shared_ptr<StartedCall> Take(void* result) EXCLUDES(mu_);
  // One that this thread has started; null: none.
  std::shared_ptr<StartedCall> TakeOfThisThread() EXCLUDES(mu_);

 private:
  void Remove(const StartedCall& call) REQUIRES(mu_);

  Mutex mu_;
  std::map<void*, std::shared_ptr<StartedCall>> by_result_ GUARDED_BY(mu_);
};

}  // namespace hvd
