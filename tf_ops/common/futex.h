// How a thread waits for a word that another one stores: futexes and pauses.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace hvd {

using Clock = std::chrono::steady_clock;

// Since the clock's beginning.
inline int64_t Nanoseconds(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// Sleeps while `*word == expected`, at most `timeout`; may return early.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected,
               std::chrono::microseconds timeout);

// Wakes every thread of every process that sleeps on `word`.
void FutexWakeAll(std::atomic<uint32_t>* word);

inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True once `seq`, which only grows and may wrap, has reached `target`.
inline bool HasReached(uint32_t seq, uint32_t target) {
  return static_cast<int32_t>(seq - target) >= 0;
}

}  // namespace hvd
