// Turns off flush-to-zero for denormal numbers on a thread.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvd {

// While alive, turns off flush-to-zero (FTZ, DAZ) on the thread that made it.
// TensorFlow's threads flush denormal numbers to zero, the engine's do not. A
// reduction may run on either and must have the same bits on all ranks.
class ScopedDenormals {
 public:
  ScopedDenormals() : before_(Get()) {
    if ((before_ & kFlushes) != 0) Set(before_ & ~kFlushes);
  }
  ~ScopedDenormals() {
    if ((before_ & kFlushes) != 0) Set(before_);
  }
  ScopedDenormals(const ScopedDenormals&) = delete;
  ScopedDenormals& operator=(const ScopedDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = uint32_t;
  static constexpr Mode kFlushes = 0x8040;  // results and operands
  static Mode Get() { return _mm_getcsr(); }
  static void Set(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Mode = uint64_t;
  static constexpr Mode kFlushes = (1u << 24) | (1u << 19);  // FZ, FZ16
  static Mode Get() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Set(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Mode = uint32_t;
  static constexpr Mode kFlushes = 0;
  static Mode Get() { return 0; }
  static void Set(Mode) {}
#endif

  const Mode before_;
};

}  // namespace hvd
