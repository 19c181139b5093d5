// Whether a thread that submits waits a moment for the other ranks.
#pragma once

#include <chrono>

namespace hvd {

// Learns from what waiting was good for: where the ranks come together, a
// short look saves two wake-ups; where they do not, it only keeps a core busy.
// Not thread-safe.
class Patience {
 public:
  std::chrono::nanoseconds Next() {
    if (credit_ > 0) return kWait;
    // Times change: try again now and then.
    return ++num_skipped_ % kProbeInterval == 0 ? kWait
                                                : std::chrono::nanoseconds{0};
  }

  // What came of a wait, of Next() more than 0.
  void Learn(bool was_worth_it) {
    if (was_worth_it) {
      if (credit_ < kMaxCredit) ++credit_;
    } else if (credit_ > 0) {
      --credit_;
    }
  }

 private:
  static constexpr std::chrono::microseconds kWait{200};
  static constexpr int kMaxCredit = 4;
  static constexpr unsigned kProbeInterval = 32;

  int credit_ = kMaxCredit;
  unsigned num_skipped_ = 0;
};

}  // namespace hvd
