// Tells the event log of the phases of one collective.
#pragma once

#include <cstdint>

#include "tf_ops/collectives/phases.h"
#include "tf_ops/engine/event_log.h"

namespace hvd {

// Listens on its thread while it lives, if an observer wants phases. A phase
// that goes on at once, as the next chunk's, is told as one.
class PhaseTeller final : public PhaseListener {
 public:
  PhaseTeller(EventLog* log, uint64_t collective_id, int32_t process_set_id);
  ~PhaseTeller() override;
  PhaseTeller(const PhaseTeller&) = delete;
  PhaseTeller& operator=(const PhaseTeller&) = delete;

  void OnPhase(Phase phase, Clock::time_point begin, Clock::time_point end,
               size_t num_bytes) override;

 private:
  void TellLast();

  EventLog* const log_;
  const bool is_listening_;
  PhaseEvent last_;  // not yet told, if has_last_
  bool has_last_ = false;
};

}  // namespace hvd
