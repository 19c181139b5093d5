// Runs the callbacks of requests on its own thread, so that a callback that
// blocks does not delay the collectives.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"

namespace hvd {

struct Completion {
  std::function<void(const Status&)> done;
  Status status;
};

// Thread-safe.
class CompletionQueue {
 public:
  CompletionQueue();
  ~CompletionQueue();  // runs the queued callbacks, then ends the thread
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  void Push(std::vector<Completion> completions) EXCLUDES(mu_);

 private:
  void Run() EXCLUDES(mu_);

  Mutex mu_;
  CondVar ready_;
  std::vector<Completion> queue_ GUARDED_BY(mu_);
  bool stop_ GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hvd
