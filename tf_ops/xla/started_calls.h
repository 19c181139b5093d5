// Collectives that XLA programs on GPUs have started and not ended.
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

// A submitted collective. Used by the thread that runs the program; the engine
// sets `end_` and the promise on any thread.
class StartedCall {
 public:
  // Submits `request`. `results` are its outputs in GPU memory, perhaps none.
  static std::shared_ptr<StartedCall> Start(Request request,
                                            std::vector<void*> results);

  // Waits until all ranks have come and the work is queued on the GPU, at most
  // until the engine's stall timeout. Then makes `stream` wait for that work;
  // does not wait for the GPU itself. Called once.
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
  std::shared_ptr<GpuEvent> end_;  // set before the promise; null: no GPU work
};

// The calls of this process that have not ended, by the memory of their
// results. That tells programs apart that run at the same time, even two runs
// of one program: each has its own memory until it ends. Thread-safe.
class StartedCalls {
 public:
  void Add(const std::shared_ptr<StartedCall>& call) EXCLUDES(mu_);
  // Takes out the call that `result` belongs to; null if there is none.
  std::shared_ptr<StartedCall> Take(void* result) EXCLUDES(mu_);
  // Takes out a call that this thread has started; null if there is none.
  std::shared_ptr<StartedCall> TakeOfThisThread() EXCLUDES(mu_);

 private:
  void Remove(const StartedCall& call) REQUIRES(mu_);

  Mutex mu_;
  std::map<void*, std::shared_ptr<StartedCall>> by_result_ GUARDED_BY(mu_);
};

}  // namespace hvd
