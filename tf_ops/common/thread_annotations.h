// Mutexes that clang's -Wthread-safety understands; plain std::mutex elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HVD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define HVD_THREAD_ANNOTATION(x)
#endif

#define HVD_CAPABILITY(x) HVD_THREAD_ANNOTATION(capability(x))
#define HVD_SCOPED_CAPABILITY HVD_THREAD_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x) HVD_THREAD_ANNOTATION(guarded_by(x))
#define REQUIRES(...) HVD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) HVD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) HVD_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) \
  HVD_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) HVD_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS \
  HVD_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace hvd {

class HVD_CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mu_.lock(); }
  void unlock() RELEASE() { mu_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mu_.try_lock(); }

 private:
  std::mutex mu_;
};

class HVD_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ACQUIRE(mu) : mu_(mu) { mu_->lock(); }
  ~MutexLock() RELEASE() { mu_->unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Waits are written as loops: `while (!ready) cv.Wait(&mu);`.
class CondVar {
 public:
  void Wait(Mutex* mu) REQUIRES(mu) { cv_.wait(*mu); }
  void WaitFor(Mutex* mu, std::chrono::milliseconds timeout) REQUIRES(mu) {
    cv_.wait_for(*mu, timeout);
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace hvd
