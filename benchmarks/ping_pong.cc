// Prints how long a flag takes from one core to another, in ns: the median over
// rounds. The cores of a virtual machine may share an L3 cache now and not in a
// minute. Every figure within a host depends on that, so a benchmark that
// compares has to know.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kRounds = 9;
constexpr int kTrips = 2000;

struct alignas(128) Flag {
  std::atomic<int> value{0};
};
Flag ping, pong;

void RunOn(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
}

void Answer() {
  RunOn(1);
  for (int i = 1; i <= kRounds * kTrips; ++i) {
    while (ping.value.load(std::memory_order_acquire) != i) {
    }
    pong.value.store(i, std::memory_order_release);
  }
}

}  // namespace

int main() {
  std::thread other(Answer);
  RunOn(0);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 1; i <= kTrips; ++i) {
      const int value = round * kTrips + i;
      ping.value.store(value, std::memory_order_release);
      while (pong.value.load(std::memory_order_acquire) != value) {
      }
    }
    const std::chrono::duration<double, std::nano> time =
        std::chrono::steady_clock::now() - begin;
    times.push_back(time.count() / (2 * kTrips));
  }
  other.join();
  std::sort(times.begin(), times.end());
  std::printf("%.1f\n", times[kRounds / 2]);
  return 0;
}
