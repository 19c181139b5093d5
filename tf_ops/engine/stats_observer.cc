#include "tf_ops/engine/stats_observer.h"

#include <chrono>

#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

bool IsOnGpu(const Request& request) { return request.gpu.ordinal >= 0; }

}  // namespace

void StatsObserver::OnEvent(const Event& event) {
  switch (event.step) {
    case Event::Step::kAdmitted:
      Add(1, &num_requests_);
      if (event.cache == Event::Cache::kHit) Add(1, &num_cache_hits_);
      if (event.cache == Event::Cache::kMiss) Add(1, &num_cache_misses_);
      BeginPending();
      return;
    case Event::Step::kNegotiated:
      return;
    case Event::Step::kBegun:
      if (event.is_first) Add(1, &num_collectives_);
      Add(NumBytes(*event.request), &num_bytes_);
      // On a GPU it is pending until it is launched.
      if (IsOnGpu(*event.request)) EndPending();
      return;
    case Event::Step::kEnded:
      if (event.is_refused) {
        Add(1, &num_requests_);
        return;
      }
      if (event.request->kind == CollectiveKind::kJoin) Add(1, &num_joins_);
      if (!event.has_begun || !IsOnGpu(*event.request)) {
        EndPending();
      }
      return;
  }
}

// Not from the time of submission on: until the engine took it in, others were
// pending, and their time counts once.
void StatsObserver::BeginPending() {
  if (num_pending_.fetch_add(1) == 0) pending_since_.store(Clock::now());
}

void StatsObserver::EndPending() {
  if (num_pending_.fetch_sub(1) != 1) return;
  const std::chrono::nanoseconds time = Clock::now() - pending_since_.load();
  Add(static_cast<uint64_t>(time.count()), &pending_ns_);
}

EngineStats StatsObserver::stats() const {
  EngineStats stats;
  stats.num_requests = num_requests_.load();
  stats.num_collectives = num_collectives_.load();
  stats.num_bytes = num_bytes_.load();
  stats.num_joins = num_joins_.load();
  stats.num_cache_hits = num_cache_hits_.load();
  stats.num_cache_misses = num_cache_misses_.load();
  stats.num_pending = num_pending_.load();
  stats.pending_ns = pending_ns_.load();
  return stats;
}

}  // namespace hvd
