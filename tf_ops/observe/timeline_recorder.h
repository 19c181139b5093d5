// The timeline of this process: a file of every step of every request.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/fd.h"
#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/event.h"
#include "tf_ops/observe/timeline_format.h"

namespace hvd {

// Thread-safe. While it is off an event costs one load. While it is on an event
// is copied into a buffer; a thread appends the buffer to the file ten times a
// second, so the file of a killed process lacks no more than that. What comes
// while the buffer is full is dropped and counted.
class TimelineRecorder final : public EventObserver {
 public:
  static constexpr size_t kNumRecords = 1 << 15;  // of the buffer: 2 MiB

  explicit TimelineRecorder(size_t num_records = kNumRecords)
      : num_records_(num_records) {}
  ~TimelineRecorder() override;
  TimelineRecorder(const TimelineRecorder&) = delete;
  TimelineRecorder& operator=(const TimelineRecorder&) = delete;

  // Replaces the file at `path` and begins to record. `header`: JSON about the
  // process. InvalidArgument if it records already.
  Status Start(const std::string& path, const std::string& header)
      EXCLUDES(mu_);
  // Ends it: the file is complete. Returns what went wrong since Start. Does
  // nothing if it does not record. `reads_clock`: waits a moment for a last
  // reading of host 0's clock, if there were some.
  Status Stop(bool reads_clock = true) EXCLUDES(mu_);
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  void OnEvent(const Event& event) override EXCLUDES(mu_);
  bool wants_times() const override { return true; }
  void OnPhase(const PhaseEvent& event) override EXCLUDES(mu_);
  bool wants_phases() const override { return is_on(); }

  // A step of training.
  void OnStep(int64_t step, int32_t epoch, std::chrono::nanoseconds begin,
              std::chrono::nanoseconds end) EXCLUDES(mu_);

  // How far this clock is from that of host 0, for the leader of another host.
  // It asks often whether a reading is due: once at first, for short jobs, then
  // when a timeline starts, once a minute, and at its end. Whoever has been
  // told so reads the clock and tells the result: at `at`, `offset` had to be
  // added, and was wrong by at most `error`.
  bool ClockIsDue(Clock::time_point now) EXCLUDES(mu_);
  void OnClock(Clock::time_point at, std::chrono::nanoseconds offset,
               std::chrono::nanoseconds error) EXCLUDES(mu_);
  // Another job begins, maybe with another host 0.
  void ForgetClock() EXCLUDES(mu_);

 private:
  using Bytes = std::array<char, kTimelineRecordBytes>;

  static std::vector<Bytes> Buffer(size_t num_records);  // empty
  void Append(const TimelineRecord& record) EXCLUDES(mu_);
  bool HasRoom(size_t num_records) REQUIRES(mu_);
  void Push(const TimelineRecord& record) REQUIRES(mu_);
  void PushText(TimelineType type, uint32_t id, const std::string& text)
      REQUIRES(mu_);
  // False if there is no room.
  bool FindName(const std::string& name, uint32_t* id) REQUIRES(mu_);
  void WaitForLastClock() EXCLUDES(mu_);
  void Serve() EXCLUDES(mu_);
  void Write(const std::vector<Bytes>& records);

  const size_t num_records_;
  std::atomic<bool> is_on_{false};
  Mutex control_mu_;  // of Start and Stop; before mu_
  std::thread thread_ GUARDED_BY(control_mu_);

  Mutex mu_;
  CondVar has_news_;  // much to write, a clock, or the end
  bool must_end_ GUARDED_BY(mu_) = true;
  std::vector<Bytes> records_ GUARDED_BY(mu_);
  uint64_t num_dropped_ GUARDED_BY(mu_) = 0;  // since the last writing
  std::unordered_map<std::string, uint32_t> names_ GUARDED_BY(mu_);
  uint32_t num_names_ GUARDED_BY(mu_) = 0;
  bool has_clock_ GUARDED_BY(mu_) = false;  // this process is told of it
  bool clock_is_due_ GUARDED_BY(mu_) = true;
  TimelineRecord last_clock_ GUARDED_BY(mu_);
  uint64_t num_clocks_ GUARDED_BY(mu_) = 0;  // readings
  Clock::time_point next_clock_ GUARDED_BY(mu_);

  // Of the thread, and of Start and Stop when there is none.
  Fd file_;
  Status written_;
};

}  // namespace hvd
