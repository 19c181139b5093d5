// How long a rank waits awake for another one before it sleeps.
#pragma once

#include <chrono>

namespace hvd {

// A waiter spins, then yields its core, then sleeps. Measured in
// benchmarks/RESULTS.md, "What waiting costs".
//
// | Constant       | Rule                                                     |
// |----------------|----------------------------------------------------------|
// | kMinSpins      | every waiter spins this often: about a microsecond       |
// | kMaxSpins      | as long as it helped lately: a peer that runs is near    |
// | kNumYields     | then it yields this often: a peer may need this core     |
// | kNap           | a sleeper looks this often whether its peer is gone      |
// | kProbeInterval | each such wait spins kMaxSpins, whatever it has learnt   |
inline constexpr int kMinSpins = 50;
inline constexpr int kMaxSpins = 1000;
inline constexpr int kNumYields = 40;
inline constexpr std::chrono::microseconds kNap{20000};

// Learns whether spinning helps. A peer that runs answers soon. But it may need
// this very core, if ranks, the model's threads and other programs outnumber
// the cores; and a core, once yielded, may be gone for long. Not thread-safe.
class SpinLimit {
 public:
  int Next() { return ++num_waits_ % kProbeInterval == 0 ? kMaxSpins : limit_; }
  // The wait ended after `num_spins` spins.
  void Helped(int num_spins) {
    if (num_spins > kMinSpins) limit_ = kMaxSpins;
  }
  void WasInVain() { limit_ = limit_ / 2 > kMinSpins ? limit_ / 2 : kMinSpins; }

 private:
  static constexpr unsigned kProbeInterval = 64;

  int limit_ = kMaxSpins;
  unsigned num_waits_ = 0;
};

}  // namespace hvd
