// What happens to a request, as those hear it who look on.
#pragma once

#include <chrono>
#include <cstdint>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// One step of one request. What it points at lives as long as the call of
// OnEvent.
struct Event {
  enum class Step : uint8_t {
    kAdmitted = 0,  // the engine has taken it in, and tells the coordinator
    kNegotiated,    // this rank has heard what all ranks do about it
    kBegun,         // its collective begins
    kEnded,         // its outcome is known; `done` is called next
  };
  Step step = Step::kAdmitted;
  const Request* request = nullptr;  // its name, kind, op, tensors, process set
  // kAdmitted: always; else if an observer wants times.
  Clock::time_point time{};
  // kNegotiated, kEnded: how, else null.
  const Status* status = nullptr;

  // The running number of the coordinator's answer in its process set: the same
  // on all ranks, and for all requests that run together. 0: not negotiated.
  uint64_t collective_id = 0;
  // kAdmitted: whether all ranks knew the request (a cache hit) or not.
  enum class Cache : uint8_t { kUnused = 0, kHit, kMiss };
  Cache cache = Cache::kUnused;
  // kNegotiated on the coordinator, where all ranks have come: the global rank
  // that came last, and how long after the first. -1: not known.
  int last_rank = -1;
  std::chrono::nanoseconds late_by{0};
  // kBegun: the first request of its collective.
  bool is_first = false;
  // kBegun: of other ranks; this one has joined. No other step is told.
  bool is_neutral = false;
  // kEnded: the request had begun.
  bool has_begun = false;
  // kEnded: the engine had not even admitted it.
  bool is_refused = false;
};

class EventObserver {
 public:
  virtual ~EventObserver() = default;

  // The steps of one request come in their order, those of several from several
  // threads at once, and of several engines. It is called under the engine's
  // lock: it must be quick, and not call the engine.
  virtual void OnEvent(const Event& event) = 0;
  // Always the same.
  virtual bool wants_times() const { return false; }
};

}  // namespace hvd
