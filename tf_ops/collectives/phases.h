// Where the time of a collective goes, as the thread that runs it sees it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/futex.h"

namespace hvd {

// What is in none of them: waiting for other ranks of this host.
enum class Phase : uint8_t {
  kPack = 0,  // copies from tensors into memory that other ranks read
  kReduce,    // combines what ranks have brought
  kWire,      // waits for other hosts
  kCopy,      // copies what other ranks have brought into tensors
};

class PhaseListener {
 public:
  virtual ~PhaseListener() = default;

  virtual void OnPhase(Phase phase, Clock::time_point begin,
                       Clock::time_point end, size_t num_bytes) = 0;
};

// Who hears of the phases of this thread; null: nobody.
PhaseListener* PhaseListenerOfThread();
void SetPhaseListenerOfThread(PhaseListener* listener);

// Tells the listener when its block ends. It reads no clock without one, nor
// where so few bytes are touched that reading it would take as long.
class ScopedPhase {
 public:
  static constexpr size_t kLeastBytes = 8 << 10;

  // `num_bytes`: at most so many are touched; kWire: 0.
  ScopedPhase(Phase phase, size_t num_bytes)
      : listener_(phase == Phase::kWire || num_bytes >= kLeastBytes
                      ? PhaseListenerOfThread()
                      : nullptr),
        phase_(phase),
        num_bytes_(num_bytes) {
    if (listener_ != nullptr) begin_ = Clock::now();
  }
  ~ScopedPhase() {
    if (listener_ == nullptr) return;
    listener_->OnPhase(phase_, begin_, Clock::now(), num_bytes_);
  }
  void set_num_bytes(size_t num_bytes) { num_bytes_ = num_bytes; }

  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  PhaseListener* const listener_;
  const Phase phase_;
  size_t num_bytes_;
  Clock::time_point begin_{};
};

}  // namespace hvd
