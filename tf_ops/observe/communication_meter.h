// Sums over all collectives: how long they ran, and for whom they waited.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/event.h"
#include "tf_ops/observe/same_inputs.h"

namespace hvd {

struct CommunicationSums {
  uint64_t running_ns = 0;  // at least one collective ran
  uint64_t num_steps = 0;   // of optimizers and tapes
  // Collectives by which ranks may have trained together, see SharesValues.
  uint64_t num_shared = 0;
  uint64_t num_same = 0;  // of these: see SameInputs
  uint64_t num_broadcast_bytes = 0;
  // By global rank, of what this rank coordinates: how often the rank was the
  // last to come, and how long after the first.
  std::vector<uint64_t> num_last;
  std::vector<uint64_t> late_ns;
};

// Whether a request moves what a model is made of, or its gradients: floating
// numbers, but no metrics, and no single number such as a loss that is logged.
bool SharesValues(const Request& request);

// Thread-safe. One for all engines of a process.
class CommunicationMeter final : public EventObserver {
 public:
  explicit CommunicationMeter(int size);

  void OnEvent(const Event& event) override EXCLUDES(mu_);
  bool wants_times() const override { return true; }

  CommunicationSums Sums() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  CommunicationSums sums_ GUARDED_BY(mu_);
  uint64_t num_running_ GUARDED_BY(mu_) = 0;
  Clock::time_point running_since_ GUARDED_BY(mu_);
  SameInputs same_inputs_ GUARDED_BY(mu_);
};

}  // namespace hvd
