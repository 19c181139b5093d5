#include "tf_ops/engine/phase_teller.h"

#include <chrono>

namespace hvd {
namespace {

constexpr std::chrono::microseconds kAtOnce{2};

}  // namespace

PhaseTeller::PhaseTeller(EventLog* log, uint64_t collective_id,
                         int32_t process_set_id)
    : log_(log), is_listening_(log->wants_phases()) {
  last_.collective_id = collective_id;
  last_.process_set_id = process_set_id;
  if (is_listening_) SetPhaseListenerOfThread(this);
}

PhaseTeller::~PhaseTeller() {
  if (!is_listening_) return;
  SetPhaseListenerOfThread(nullptr);
  TellLast();
}

void PhaseTeller::OnPhase(Phase phase, Clock::time_point begin,
                          Clock::time_point end, size_t num_bytes) {
  if (phase != Phase::kWire && num_bytes == 0) return;  // nothing was there
  if (!has_last_ || phase != last_.phase || begin - last_.end > kAtOnce) {
    TellLast();
    last_.phase = phase;
    last_.begin = begin;
    last_.num_bytes = 0;
    has_last_ = true;
  }
  last_.end = end;
  last_.num_bytes += num_bytes;
}

void PhaseTeller::TellLast() {
  if (has_last_) log_->TellPhase(last_);
  has_last_ = false;
}

}  // namespace hvd
