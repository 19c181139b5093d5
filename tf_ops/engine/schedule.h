// When the engine works, waits and gathers: all rules that adapt to what the
// ranks do, and their constants.
//
// Rule                     | Constants            | Good for
// -------------------------+----------------------+---------------------------
// 1 A thread that submits  | kMaxBytesOfCaller    | Saves waking the engine's
//   runs what is small     | 4 MiB                | and the completion thread
// 2 It waits for the other | Patience: 200 us,    | The same, where the ranks
//   ranks, while that has  | credit 4, a probe    | submit together; else no
//   helped lately          | in 32 calls          | core is kept busy
// 3 Many requests in       | kManyRequests 4,     | One collective for many
//   flight on any rank (a  | kGatherTime 100 us,  | small calls, whichever rank
//   crowd): gather more    | kEnoughBytes 256 KiB | is late
// 4 Else the engine sleeps | kPendingSleep 100 ms,| A look for stalls; an idle
//   until it is rung       | kIdleSleep 1 s       | engine uses no core
// 5 A rank that waits for  | host/: kMinSpins 50, | A peer that runs answers
//   a peer spins, as often | kMaxSpins 1000, a    | soon; one that needs this
//   as helped lately, then | probe in 64 waits,   | core gets it
//   yields the core        | kNumYields 40        |
// 6 Then it sleeps, and    | host/: kNap 20 ms    | A lost rank is noticed, no
//   checks who is gone     |                      | core is kept busy
// 7 The thread that polls  | gpu_plane.cc: Pause, | Short launches end at once,
//   a GPU yields, naps     | 10 us, 100 us        | long ones cost little
// 8 What only some ranks   | negotiation/:        | One message a host and
//   of a host have come    | kTellPartAfter 20 ms | step; who waits is known
//   for is told later      |                      | long before a stall warns
//
// Measurements are in these sections of benchmarks/RESULTS.md:
// 1, 5: "What waiting costs". 3: "Many small calls". 4: the row "idle" of "The
// goals" (benchmarks/idle.py). 2: not measured alone; it shows in
// `benchmarks/allreduce.py --mode=chain`, "The goals". 6: not for speed, see
// tests/integration/test_faults.py. 7: not alone; benchmarks/gpu.py.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hvd {

// Rule 1. More data would keep the submitting thread from its own work.
inline constexpr int64_t kMaxBytesOfCaller = 4 << 20;

// Rule 2. Not thread-safe.
class Patience {
 public:
  // How long to wait now; 0: not at all.
  std::chrono::nanoseconds Next() {
    if (credit_ > 0) return kWait;
    // The ranks may behave otherwise by now: try again now and then.
    return ++num_skipped_ % kProbeInterval == 0 ? kWait
                                                : std::chrono::nanoseconds{0};
  }

  // Tells whether a wait was worth it, if Next() was more than 0.
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

// Rule 3. With this many requests in flight, calls do not wait for each other:
// those that come within kGatherTime, or until they have kEnoughBytes, run as
// one.
inline constexpr size_t kManyRequests = 4;
inline constexpr std::chrono::microseconds kGatherTime{100};
inline constexpr int64_t kEnoughBytes = 256 << 10;

// Rule 4.
inline constexpr std::chrono::microseconds kPendingSleep{100000};
inline constexpr std::chrono::microseconds kIdleSleep{1000000};

}  // namespace hvd
