// How an engine sleeps until there is work, and how others wake it.
#pragma once

#include <chrono>
#include <cstdint>

#include "tf_ops/common/futex.h"
#include "tf_ops/host/region.h"
#include "tf_ops/host/spin.h"

namespace hvd {

// The Rings and Ticket are for any thread; Wait is for one thread, the
// engine's; BeginWatch, Watch and EndWatch are for one other thread at a time.
class Doorbell {
 public:
  Doorbell(RegionView region, int rank) : region_(region), rank_(rank) {}
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  void Ring(int rank);
  void RingOwn() { Ring(rank_); }
  void RingAll();

  // Read the ticket, look for work, then wait with it: a ring in between makes
  // the wait return at once.
  uint32_t Ticket() const { return bell(rank_)->count.load(); }

  // Returns at a ring, after `timeout`, or early. `spin`: looks for a while
  // before it sleeps, for an answer that is near.
  void Wait(uint32_t ticket, std::chrono::microseconds timeout, bool spin);

  // Between these two, a ring does not wake the sleeping thread: the caller
  // looks for rings itself, and rings if it leaves some undone.
  void BeginWatch() { bell(rank_)->watched.store(1); }
  void EndWatch() { bell(rank_)->watched.store(0); }
  // Looks for a ring until `end` without sleeping; lets others have the core.
  // True if it rang.
  bool Watch(uint32_t ticket, Clock::time_point end);

 private:
  RankDoorbell* bell(int rank) const { return &region_.area(rank)->doorbell; }

  const RegionView region_;
  const int rank_;
  SpinLimit watch_spins_;
};

}  // namespace hvd
