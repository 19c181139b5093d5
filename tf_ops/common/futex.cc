#include "tf_ops/common/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace hvd {
namespace {

long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value,
           const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value,
                 timeout, nullptr, 0);
}

}  // namespace

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected,
               std::chrono::microseconds timeout) {
  timespec relative;
  relative.tv_sec = static_cast<time_t>(timeout.count() / 1000000);
  relative.tv_nsec = static_cast<long>(timeout.count() % 1000000) * 1000;
  Futex(word, FUTEX_WAIT, expected, &relative);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  Futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace hvd
