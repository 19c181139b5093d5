#include "tf_ops/host/doorbell.h"

#include <sched.h>

namespace hvd {

void Doorbell::Ring(int rank) {
  RankDoorbell* const rung = bell(rank);
  rung->count.fetch_add(1);
  if (rung->watched.load() != 0) return;
  if (rung->sleeping.load() != 0) FutexWakeAll(&rung->count);
}

void Doorbell::RingAll() {
  for (int member = 0; member < region_.num_members(); ++member) Ring(member);
}

void Doorbell::Wait(uint32_t ticket, std::chrono::microseconds timeout,
                    bool spin) {
  RankDoorbell* const own = bell(rank_);
  if (spin) {
    for (int i = 0; i < kMinSpins; ++i) {
      if (own->count.load(std::memory_order_acquire) != ticket) return;
      CpuPause();
    }
    for (int i = 0; i < kNumYields; ++i) {
      sched_yield();
      if (own->count.load(std::memory_order_acquire) != ticket) return;
    }
  }
  own->sleeping.store(1);
  if (own->count.load() == ticket) FutexWait(&own->count, ticket, timeout);
  own->sleeping.store(0);
}

bool Doorbell::Watch(uint32_t ticket, Clock::time_point end) {
  const RankDoorbell& own = *bell(rank_);
  do {
    const int num_spins = watch_spins_.Next();
    for (int i = 0; i < num_spins; ++i) {
      if (own.count.load(std::memory_order_acquire) != ticket) {
        watch_spins_.Helped(i);
        return true;
      }
      CpuPause();
    }
    watch_spins_.WasInVain();
    sched_yield();
  } while (Clock::now() < end);
  return own.count.load() != ticket;
}

}  // namespace hvd
