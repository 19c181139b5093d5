// Logs which thread calls which function of the fakes.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/fake/fake_stream.h"

namespace fake {
namespace {

struct Entry {
  const char* function;
  int64_t thread;
};

struct Calls {
  std::mutex mu;
  std::atomic<bool> is_on{false};
  std::vector<Entry> entries;
};

Calls& TheCalls() {
  static auto* const calls = new Calls();
  return *calls;
}

}  // namespace

void Log(const char* function) {
  Calls& calls = TheCalls();
  if (!calls.is_on.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(calls.mu);
  calls.entries.push_back({function, syscall(SYS_gettid)});
}

int64_t Setting(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

void SleepSome(int64_t limit_us) {
  if (limit_us <= 0) return;
  thread_local std::minstd_rand random(
      static_cast<unsigned>(syscall(SYS_gettid)));
  const auto us = static_cast<int64_t>(random()) % (limit_us + 1);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace fake

extern "C" {

// Clears the log, and starts it.
void fakeLogStart() {
  fake::Calls& calls = fake::TheCalls();
  std::lock_guard<std::mutex> lock(calls.mu);
  calls.entries.clear();
  calls.is_on.store(true);
}

// Stops the log and writes it as lines "thread function"; returns its length.
size_t fakeLogStop(char* text, size_t capacity) {
  fake::Calls& calls = fake::TheCalls();
  std::lock_guard<std::mutex> lock(calls.mu);
  calls.is_on.store(false);
  std::string all;
  for (const fake::Entry& entry : calls.entries) {
    all += std::to_string(entry.thread) + " " + entry.function + "\n";
  }
  if (capacity > 0) {
    const size_t count = all.copy(text, capacity - 1);
    text[count] = '\0';
  }
  return all.size();
}

}  // extern "C"
