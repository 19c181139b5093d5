#include "tf_ops/engine/completion_queue.h"

#include <iterator>
#include <utility>

namespace hvd {

CompletionQueue::CompletionQueue() : thread_([this] { Run(); }) {}

CompletionQueue::~CompletionQueue() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  ready_.NotifyOne();
  thread_.join();
}

void CompletionQueue::Push(std::vector<Completion> completions) {
  if (completions.empty()) return;
  {
    MutexLock lock(&mu_);
    queue_.insert(queue_.end(), std::make_move_iterator(completions.begin()),
                  std::make_move_iterator(completions.end()));
  }
  ready_.NotifyOne();
}

void CompletionQueue::Run() {
  std::vector<Completion> batch;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stop_) ready_.Wait(&mu_);
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (Completion& completion : batch) completion.done(completion.status);
    batch.clear();
  }
}

}  // namespace hvd
