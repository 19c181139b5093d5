// The flight recorder: what became of the last requests of this process.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/common/types.h"
#include "tf_ops/engine/event.h"

namespace hvd {

// One request. A time of 0 means: not yet, or never.
struct FlightRecord {
  enum class State : uint8_t {
    kWaiting = 0,  // for other ranks
    kNegotiated,   // all ranks will run it, or will fail
    kRunning,
    kDone,
    kFailed,
  };

  uint64_t number = 0;         // of the request, see Request
  uint64_t collective_id = 0;  // see Event
  uint64_t num_bytes = 0;      // of the inputs
  Clock::time_point enqueued{};
  Clock::time_point negotiated{};
  Clock::time_point begun{};
  Clock::time_point ended{};
  std::chrono::nanoseconds late_by{0};  // the last rank, after the first
  int32_t last_rank = -1;               // -1: not known
  int32_t process_set_id = 0;
  uint32_t num_tensors = 0;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  DataType dtype = DataType::kFloat32;  // of the first tensor
  uint8_t num_dimensions = 0;           // likewise
  State state = State::kWaiting;
  StatusCode code = StatusCode::kOk;
  bool is_on_gpu = false;
  uint8_t name_size = 0;
  std::array<int64_t, 3> shape{};  // of the first tensor, its first dimensions
  std::array<char, 120> name{};    // its first and its last bytes

  std::string name_text() const { return {name.data(), name_size}; }
};

// Thread-safe. A step takes no more than a store of a few cache lines: nothing
// is allocated, and no thread waits for another for long.
class FlightRecorder final : public EventObserver {
 public:
  static constexpr size_t kNumRecords = 4096;

  // Is called at the end of each request that has failed, but not by
  // `shutdown()`. It must be quick.
  explicit FlightRecorder(void (*failed)() = nullptr) : failed_(failed) {}

  void OnEvent(const Event& event) override EXCLUDES(mu_);
  bool wants_times() const override { return true; }

  // In the order of submission. Beside the last kNumRecords requests these are
  // older ones that still wait or have failed.
  std::vector<FlightRecord> Records() const EXCLUDES(mu_);

  // How many steps of training have ended well.
  uint64_t num_steps() const {
    return num_steps_.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Slot {
    mutable std::atomic<bool> is_locked{false};
    FlightRecord record;

    void Lock() const;
    void Unlock() const { is_locked.store(false, std::memory_order_release); }
  };
  static_assert(sizeof(Slot) <= 256, "a slot is four cache lines");

  void Begin(const Event& event) EXCLUDES(mu_);
  void Prefetch(uint64_t number) const;
  static void Update(const Event& event, FlightRecord* record);

  void (*const failed_)();
  std::atomic<uint64_t> num_steps_{0};
  std::array<Slot, kNumRecords> slots_;
  mutable Mutex mu_;
  // Those whose slot was taken while they waited, and that failed; by number.
  std::map<uint64_t, FlightRecord> older_ GUARDED_BY(mu_);
};

}  // namespace hvd
