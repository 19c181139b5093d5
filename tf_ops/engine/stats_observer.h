// Counts what an engine does.
#pragma once

#include <atomic>
#include <cstdint>

#include "tf_ops/common/futex.h"
#include "tf_ops/engine/event.h"
#include "tf_ops/engine/stats.h"

namespace hvd {

// Thread-safe.
class StatsObserver final : public EventObserver {
 public:
  void OnEvent(const Event& event) override;
  EngineStats stats() const;

 private:
  using Counter = std::atomic<uint64_t>;

  static void Add(uint64_t count, Counter* counter) {
    counter->fetch_add(count, std::memory_order_relaxed);
  }
  void BeginPending();
  void EndPending();

  Counter num_requests_{0};
  Counter num_collectives_{0};
  Counter num_bytes_{0};
  Counter num_joins_{0};
  Counter num_cache_hits_{0};
  Counter num_cache_misses_{0};
  Counter pending_ns_{0};
  Counter num_pending_{0};
  std::atomic<Clock::time_point> pending_since_{Clock::time_point()};
};

}  // namespace hvd
