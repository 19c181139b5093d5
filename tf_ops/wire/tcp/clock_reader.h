// Reads the clock of another host, over a link to it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

#include "tf_ops/common/futex.h"

namespace hvd {

// At `at`, `offset` had to be added to this host's clock to get that of the
// other, and was wrong by at most `error`.
struct ClockReading {
  Clock::time_point at{};
  std::chrono::nanoseconds offset{0};
  std::chrono::nanoseconds error{0};
};

// Asks for the time in a few rounds; the one with the shortest way counts. One
// thread uses it.
class ClockReader {
 public:
  using Question = std::array<uint8_t, 8>;  // the time of who asks
  using Answer = std::array<uint8_t, 16>;   // that, and the time of the other

  static Question Ask();
  static Answer AnswerTo(const uint8_t* question);

  void Begin();
  bool is_reading() const { return num_rounds_left_ > 0; }
  void Hear(const uint8_t* answer);  // of the last question; then ask again
  // The best so far; none: no answer made sense.
  const std::optional<ClockReading>& best() const { return best_; }

 private:
  int num_rounds_left_ = 0;
  std::optional<ClockReading> best_;
};

}  // namespace hvd
