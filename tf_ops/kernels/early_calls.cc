#include "tf_ops/kernels/early_calls.h"

namespace hvd {
namespace {

// Of steps that failed between the two ops; a call that is over holds nothing.
constexpr size_t kMostKept = 1024;

}  // namespace

void EarlyCall::Finish(const Status& outcome) {
  std::function<void(const Status&)> then;
  {
    MutexLock lock(&mu_);
    // First: whoever ends the call may then pass the memory on.
    held_.clear();
    outcome_ = outcome;
    then = std::exchange(then_, nullptr);
    over_.NotifyAll();
  }
  if (then) then(outcome);
}

void EarlyCall::Then(std::function<void(const Status&)> then) {
  Status outcome;
  {
    MutexLock lock(&mu_);
    if (!outcome_.has_value()) {
      then_ = std::move(then);
      return;
    }
    outcome = *outcome_;
  }
  then(outcome);
}

Status EarlyCall::Wait() {
  MutexLock lock(&mu_);
  while (!outcome_.has_value()) over_.Wait(&mu_);
  return *outcome_;
}

bool EarlyCall::is_over() const {
  MutexLock lock(&mu_);
  return outcome_.has_value();
}

EarlyCalls& EarlyCalls::Get() {
  static auto* const calls = new EarlyCalls;  // engines end after destructors
  return *calls;
}

int64_t EarlyCalls::Add(const std::string& name,
                        std::shared_ptr<EarlyCall> call) {
  MutexLock lock(&mu_);
  if (entries_.size() >= kMostKept &&
      entries_.begin()->second.call->is_over()) {
    entries_.erase(entries_.begin());
  }
  entries_[++last_number_] = {name, std::move(call)};
  return last_number_;
}

std::shared_ptr<EarlyCall> EarlyCalls::Take(int64_t number) {
  MutexLock lock(&mu_);
  const auto found = entries_.find(number);
  if (found == entries_.end()) return nullptr;
  const std::shared_ptr<EarlyCall> call = std::move(found->second.call);
  entries_.erase(found);
  return call;
}

std::shared_ptr<EarlyCall> EarlyCalls::Find(const std::string& name) {
  MutexLock lock(&mu_);
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->second.name == name) return entry->second.call;
  }
  return nullptr;
}

}  // namespace hvd
