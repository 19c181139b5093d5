// Shows collectives to profilers: TensorFlow's, and NVIDIA's by NVTX.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/event.h"

namespace hvd {

// What TensorFlow's profiler records: tsl::profiler::TraceMeRecorder::Event.
// Times are nanoseconds since 1970.
struct TraceMeEvent {
  std::string name;
  int64_t start_time;
  int64_t end_time;
};

// TensorFlow's functions, which its library exports.
struct TraceMeApi {
  void (*record)(TraceMeEvent&&) = nullptr;
  const std::atomic<int>* level = nullptr;  // below 1: nobody records
};

// Makes a range of each collective, from its begin to its end, named after the
// op and its first request. It costs two looks at variables while no profiler
// runs. Thread-safe.
class ProfilerRanges final : public EventObserver {
 public:
  ProfilerRanges();

  // Once; later calls change nothing.
  void SetTraceMe(const TraceMeApi& api) EXCLUDES(mu_);

  void OnEvent(const Event& event) override EXCLUDES(mu_);
  bool wants_times() const override { return true; }

 private:
  struct Range {
    std::string op;
    std::string name;  // of the first request
    uint64_t num_bytes = 0;
    int num_requests = 0;
    Clock::time_point begun{};
    uint64_t nvtx_id = 0;
  };
  using Id = std::pair<int32_t, uint64_t>;  // process set, collective

  bool is_traced() const;
  void Begin(const Event& event) EXCLUDES(mu_);
  void End(const Event& event) EXCLUDES(mu_);

  const bool has_nvtx_;
  TraceMeApi trace_me_;  // constant once `has_trace_me_`
  std::atomic<bool> has_trace_me_{false};
  std::atomic<int> num_ranges_{0};
  Mutex mu_;
  std::map<Id, Range> ranges_ GUARDED_BY(mu_);  // begun, not ended
};

// The one for all engines of this process. Never destroyed.
ProfilerRanges* TheProfilerRanges();

}  // namespace hvd
