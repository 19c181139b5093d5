#include "tf_ops/engine/event_log.h"

#include <utility>

namespace hvd {

EventLog::EventLog(std::vector<std::shared_ptr<EventObserver>> observers)
    : observers_(std::move(observers)) {
  for (const auto& observer : observers_) {
    wants_times_ = wants_times_ || observer->wants_times();
  }
}

void EventLog::TellReaders(Event event) {
  if (wants_times_ && event.time == Clock::time_point()) {
    event.time = Clock::now();
  }
  for (const auto& observer : observers_) observer->OnEvent(event);
}

void EventLog::TellPhase(const PhaseEvent& event) {
  for (const auto& observer : observers_) observer->OnPhase(event);
}

bool EventLog::wants_phases() const {
  for (const auto& observer : observers_) {
    if (observer->wants_phases()) return true;
  }
  return false;
}

}  // namespace hvd
