// Streams and events of the fake CUDA: a stream is a thread with a queue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>

namespace fake {

class Event {
 public:
  uint64_t Record() {  // the number of this record
    std::lock_guard<std::mutex> lock(mu_);
    return ++recorded_;
  }
  void Complete(uint64_t number) {
    std::lock_guard<std::mutex> lock(mu_);
    if (number > completed_) completed_ = number;
    changed_.notify_all();
  }
  uint64_t recorded() {
    std::lock_guard<std::mutex> lock(mu_);
    return recorded_;
  }
  bool is_over() {
    std::lock_guard<std::mutex> lock(mu_);
    return completed_ >= recorded_;
  }
  void Wait(uint64_t number) {
    std::unique_lock<std::mutex> lock(mu_);
    while (completed_ < number) changed_.wait(lock);
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t completed_ = 0;
};

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();  // after what is queued

  void Push(std::function<void()> work);
  void Synchronize();
  int device() const { return device_; }

 private:
  void Run();

  const int device_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> queue_;
  bool is_busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};

// The stream of a handle; null is the default stream of the thread's device.
Stream* StreamOf(void* handle);

// The device that the calling thread has set.
int CurrentDevice();

// Notes a call for the test; see fake_log.cc.
void Log(const char* function);

int64_t Setting(const char* name, int64_t otherwise);  // of the environment

// Sleeps between 0 and `limit_us`.
void SleepSome(int64_t limit_us);

}  // namespace fake
