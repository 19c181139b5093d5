// Collectives that one op of a step has started and another one ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/kernels/tf_handles.h"

namespace hvd {

// A submitted collective. Thread-safe.
class EarlyCall {
 public:
  // `held` keeps the memory of its tensors until it is over, even if the step
  // fails meanwhile.
  explicit EarlyCall(std::vector<TfTensor> held) : held_(std::move(held)) {}

  // Sets the outcome, once.
  void Finish(const Status& outcome) EXCLUDES(mu_);
  // Calls `then` with the outcome, now or on the thread that sets it. Once.
  void Then(std::function<void(const Status&)> then) EXCLUDES(mu_);
  // Waits for the outcome. The engine gives each request one in time.
  Status Wait() EXCLUDES(mu_);
  bool is_over() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  CondVar over_;
  std::vector<TfTensor> held_ GUARDED_BY(mu_);
  std::optional<Status> outcome_ GUARDED_BY(mu_);
  std::function<void(const Status&)> then_ GUARDED_BY(mu_);
};

// The calls of this process that no op has ended. Thread-safe.
class EarlyCalls {
 public:
  static EarlyCalls& Get();

  // Returns a number for Take(). `name` tells calls apart on this rank.
  int64_t Add(const std::string& name, std::shared_ptr<EarlyCall> call)
      EXCLUDES(mu_);
  // Takes out a call; null if there is none of that number.
  std::shared_ptr<EarlyCall> Take(int64_t number) EXCLUDES(mu_);
  // The call of that name that was added last and not taken; null: none.
  std::shared_ptr<EarlyCall> Find(const std::string& name) EXCLUDES(mu_);

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<EarlyCall> call;
  };

  Mutex mu_;
  int64_t last_number_ GUARDED_BY(mu_) = 0;
  std::map<int64_t, Entry> entries_ GUARDED_BY(mu_);
};

}  // namespace hvd
