// How an engine sleeps until there is work, and how others wake it.
#include <sched.h>

#include "tf_ops/host/transport.h"

namespace hvd {

using std::chrono::microseconds;

uint32_t Transport::DoorbellTicket() const {
  return region_.area(rank_)->doorbell.count.load();
}

void Transport::WaitDoorbell(uint32_t ticket, microseconds timeout, bool spin) {
  RankDoorbell* bell = &region_.area(rank_)->doorbell;
  if (spin) {
    for (int i = 0; i < kMinSpins; ++i) {
      if (bell->count.load(std::memory_order_acquire) != ticket) return;
      CpuPause();
    }
    for (int i = 0; i < kNumYields; ++i) {
      sched_yield();
      if (bell->count.load(std::memory_order_acquire) != ticket) return;
    }
  }
  bell->sleeping.store(1);
  if (bell->count.load() == ticket) FutexWait(&bell->count, ticket, timeout);
  bell->sleeping.store(0);
}

void Transport::BeginWatch() { region_.area(rank_)->doorbell.watched.store(1); }

void Transport::EndWatch() { region_.area(rank_)->doorbell.watched.store(0); }

bool Transport::WatchDoorbell(uint32_t ticket, Clock::time_point end) {
  const RankDoorbell& bell = region_.area(rank_)->doorbell;
  do {
    const int num_spins = doorbell_spins_.Next();
    for (int i = 0; i < num_spins; ++i) {
      if (bell.count.load(std::memory_order_acquire) != ticket) {
        doorbell_spins_.Helped(i);
        return true;
      }
      CpuPause();
    }
    doorbell_spins_.WasInVain();
    sched_yield();
  } while (Clock::now() < end);
  return bell.count.load() != ticket;
}

void Transport::RingDoorbell(int rank) {
  RankDoorbell* bell = &region_.area(rank)->doorbell;
  bell->count.fetch_add(1);
  if (bell->watched.load() != 0) return;
  if (bell->sleeping.load() != 0) FutexWakeAll(&bell->count);
}

}  // namespace hvd
