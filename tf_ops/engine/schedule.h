// When the engine works, waits and gathers: all rules that adapt to what the
// ranks do, and their constants.
//
// Rule                     | Constants            | Good for
// -------------------------+----------------------+---------------------------
// 1 A thread that submits  | kMaxBytesOfCaller    | Saves waking the engine's
//   runs what is small     | 4 MiB                | and the completion thread
// 2 It waits for the other | Patience: 200 us,    | The same, where the ranks
//   ranks, while that has  | credit 4, a probe    | come together; else no core
//   lately been of use     | in 32 calls          | is kept busy
// 3 Many requests in       | kManyRequests 4,     | One collective for many
//   flight on any rank (a  | kGatherTime 100 us,  | small calls, whichever rank
//   crowd): gather more    | kEnoughBytes 256 KiB | is late
// 4 Else the engine sleeps | kPendingSleep 100 ms,| A look for stalls; an idle
//   until it is rung       | kIdleSleep 1 s       | engine uses no core
// 5 Who waits for a peer   | host/: kMinSpins 50, | A peer that runs answers
//   spins, then yields     | kMaxSpins 1000, a    | soon; one that needs this
//   the core; spins as     | probe in 64 waits,   | core gets it
//   often as helped lately | kNumYields 40        |
// 6 Then it sleeps, and    | host/: kNap 20 ms    | A lost rank is noticed, no
//   looks who is gone      |                      | core is kept busy
// 7 The thread that polls  | gpu_plane.cc: Pause, | Short launches end at once,
//   a GPU yields, naps     | 10 us, 100 us        | long ones cost little
//
// Measured, sections of benchmarks/RESULTS.md:
// 1, 5: "What waiting costs". 3: "Many small calls". 4: the row "idle" of "The
// goals" (benchmarks/idle.py). 2: never alone; it shows in
// `benchmarks/allreduce.py --mode=chain`, "The goals". 6: not for speed, see
// tests/integration/test_faults.py. 7: never alone; benchmarks/gpu.py.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hvd {

// Rule 1. Where there is more to move, the thread has other work to do.
inline constexpr int64_t kMaxBytesOfCaller = 4 << 20;

// Rule 2. Not thread-safe.
class Patience {
 public:
  // How long to wait now; 0: not at all.
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

// Rule 3. With so many requests in flight no call waits for the one before it:
// calls that come within the time, or until they are that large, run as one.
inline constexpr size_t kManyRequests = 4;
inline constexpr std::chrono::microseconds kGatherTime{100};
inline constexpr int64_t kEnoughBytes = 256 << 10;

// Rule 4.
inline constexpr std::chrono::microseconds kPendingSleep{100000};
inline constexpr std::chrono::microseconds kIdleSleep{1000000};

}  // namespace hvd
