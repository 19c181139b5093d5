// Streams and events of the fake CUDA: a stream is a thread with a queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace fake {

// A place on a stream, where an event was recorded once. Thread-safe.
class Mark {
 public:
  void Reach() {
    std::lock_guard<std::mutex> lock(mu_);
    is_reached_ = true;
    changed_.notify_all();
  }
  bool is_reached() {
    std::lock_guard<std::mutex> lock(mu_);
    return is_reached_;
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    while (!is_reached_) changed_.wait(lock);
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool is_reached_ = false;
};

// To wait for an event is to wait for its last record so far; later records do
// not change that. Thread-safe.
class Event {
 public:
  std::shared_ptr<Mark> Record() {
    std::lock_guard<std::mutex> lock(mu_);
    last_ = std::make_shared<Mark>();
    return last_;
  }
  // The mark of its last record; null if there is none.
  std::shared_ptr<Mark> last() {
    std::lock_guard<std::mutex> lock(mu_);
    return last_;
  }

 private:
  std::mutex mu_;
  std::shared_ptr<Mark> last_;
};

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();  // waits for what is queued

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

// How many devices the machine has, and its number of each visible one.
int NumPhysical();
const std::vector<int>& Devices();

// The device that the calling thread has set.
int CurrentDevice();
void SetCurrentDevice(int device);
void SynchronizeDevice(int device);

inline constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue
// Notes the thread's last error, and returns it.
int Fail(int error);

// How many collectives run on a device now.
std::atomic<int>& NumCollectivesOn(int device);

// Notes a call for the test; see fake_log.cc.
void Log(const char* function);

int64_t Setting(const char* name, int64_t otherwise);  // from the environment

// Sleeps between 0 and `limit_us`.
void SleepSome(int64_t limit_us);

}  // namespace fake
