// The steps of a request that an engine reports to its observers.
#pragma once

#include <chrono>
#include <cstdint>

#include "tf_ops/collectives/phases.h"
#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// One step of one request. Its pointers are valid only during OnEvent.
struct Event {
  enum class Step : uint8_t {
    kAdmitted = 0,  // the engine has taken it in, and tells the coordinator
    kNegotiated,    // this rank knows what all ranks will do about it
    kBegun,         // its collective begins
    kEnded,         // its outcome is known; `done` is called next
  };
  Step step = Step::kAdmitted;
  const Request* request = nullptr;  // its name, kind, op, tensors, process set
  // kAdmitted: when it was submitted, which may be long before, while this rank
  // was in a collective. For other steps only set if an observer wants times.
  Clock::time_point time{};
  // kNegotiated, kEnded: the outcome; else null.
  const Status* status = nullptr;

  // The number of the coordinator's answer in its process set: the same on all
  // ranks, and for all requests that run together. 0: not negotiated.
  uint64_t collective_id = 0;
  // kAdmitted: whether all ranks already knew the request (a cache hit).
  enum class Cache : uint8_t { kUnused = 0, kHit, kMiss };
  Cache cache = Cache::kUnused;
  // kNegotiated, on the coordinator, if all ranks that have not joined have
  // come: the global rank that came last, and how long after the first. -1: not
  // known.
  int last_rank = -1;
  std::chrono::nanoseconds late_by{0};
  // kBegun: the first request of its collective.
  bool is_first = false;
  // kBegun: the request is of other ranks, and this one has joined. Its other
  // steps are not reported.
  bool is_neutral = false;
  // kEnded: the request had begun.
  bool has_begun = false;
  // kEnded: the engine refused it, without a kAdmitted.
  bool is_refused = false;
};

// A part of a collective that this rank has run.
struct PhaseEvent {
  Phase phase = Phase::kPack;
  uint64_t collective_id = 0;  // as in Event
  int32_t process_set_id = 0;
  Clock::time_point begin{};
  Clock::time_point end{};
  uint64_t num_bytes = 0;  // read by it; 0: not known
};

class EventObserver {
 public:
  virtual ~EventObserver() = default;

  // Steps of one request come in order; those of several may come from several
  // threads and engines at once. The caller may hold the engine's lock: be
  // quick, and do not call the engine.
  virtual void OnEvent(const Event& event) = 0;
  // Must always return the same.
  virtual bool wants_times() const { return false; }

  // As OnEvent. An observer that wants no phases may still hear of some.
  virtual void OnPhase(const PhaseEvent& event) { (void)event; }
  // May change at any time.
  virtual bool wants_phases() const { return false; }
};

}  // namespace hvd
