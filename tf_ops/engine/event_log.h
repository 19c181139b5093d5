// The one hook of the engine: tells observers each step of each request.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/engine/event.h"
#include "tf_ops/engine/stats_observer.h"

namespace hvd {

// Thread-safe. If the statistics are the only observer, a step only updates a
// few counters: it allocates nothing and reads no clock.
class EventLog {
 public:
  explicit EventLog(std::vector<std::shared_ptr<EventObserver>> observers);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void Tell(const Event& event) {
    stats_.OnEvent(event);
    if (has_readers()) TellReaders(event);
  }
  // Whether there are observers besides the statistics, which ignore
  // kNegotiated.
  bool has_readers() const { return !observers_.empty(); }

  // For events that are told together; 0 if no observer wants times.
  Clock::time_point Now() const {
    return wants_times_ ? Clock::now() : Clock::time_point();
  }

  void TellPhase(const PhaseEvent& event);
  // Whether an observer wants phases now.
  bool wants_phases() const;

  EngineStats stats() const { return stats_.stats(); }

 private:
  void TellReaders(Event event);

  StatsObserver stats_;
  const std::vector<std::shared_ptr<EventObserver>> observers_;
  bool wants_times_ = false;  // any of them
};

}  // namespace hvd
