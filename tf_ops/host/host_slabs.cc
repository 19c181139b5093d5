#include "tf_ops/host/host_slabs.h"

#include <sched.h>

#include <string>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/log.h"
#include "tf_ops/common/types.h"

namespace hvd {

HostSlabs::HostSlabs(RegionView region, int rank, const Membership* membership)
    : region_(region),
      rank_(rank),
      size_(region.size()),
      slot_bytes_(region.shape().slot_bytes()),
      membership_(*membership) {}

void HostSlabs::Post(Flag flag, uint32_t value) {
  RankFlags* flags = &region_.area(rank_)->flags;
  std::atomic<uint32_t>* word = &flags->seq[static_cast<int>(flag)];
  word->store(value);
  if (flags->num_waiters.load() != 0) FutexWakeAll(word);
}

Status HostSlabs::Wait(int peer, Flag flag, uint32_t value) {
  std::atomic<uint32_t>* word =
      &region_.area(peer)->flags.seq[static_cast<int>(flag)];
  const int num_spins = spins_.Next();
  for (int i = 0; i < num_spins; ++i) {
    if (HasReached(word->load(std::memory_order_acquire), value)) {
      spins_.Helped(i);
      return Status::Ok();
    }
    CpuPause();
  }
  spins_.WasInVain();
  for (int i = 0; i < kNumYields; ++i) {
    sched_yield();
    if (HasReached(word->load(std::memory_order_acquire), value)) {
      return Status::Ok();
    }
  }
  return WaitSlowly(peer, word, value);
}

Status HostSlabs::WaitSlowly(int peer, std::atomic<uint32_t>* word,
                             uint32_t value) {
  std::atomic<uint32_t>* num_waiters = &region_.area(peer)->flags.num_waiters;
  const Clock::time_point begin = Clock::now();
  num_waiters->fetch_add(1);
  Status status;
  bool has_warned = wait_warning_.count() <= 0;
  while (true) {
    const uint32_t seq = word->load();
    if (HasReached(seq, value)) break;
    FutexWait(word, seq, kNap);
    // Checked before the flag: what a peer posted before it went counts.
    status = CheckWaitFor(peer, value);
    if (HasReached(word->load(), value)) {
      status = Status::Ok();
      break;
    }
    if (!status.ok()) break;
    if (!has_warned && Clock::now() - begin > wait_warning_) {
      has_warned = true;
      WarnOf(peer);
    }
    if (wait_timeout_.count() > 0 && Clock::now() - begin > wait_timeout_) {
      status = Status::Stalled(
          membership_.members().label(peer) +
          " stopped in the middle of a collective: nothing came from it for " +
          std::to_string(wait_timeout_.count() / 1000) + " s (rank " +
          std::to_string(membership_.members().own_global_rank()) + " waits)");
      break;
    }
  }
  num_waiters->fetch_sub(1);
  return status;
}

// All ranks of the host wait for the same one.
void HostSlabs::WarnOf(int peer) const {
  if (rank_ != (peer == 0 ? 1 : 0)) return;
  std::string text = membership_.members().label(peer);
  text += peer == size_ ? " has carried no data for "
                        : " has stopped in the middle of a collective: "
                          "nothing has come from it for ";
  text +=
      SecondsToString(wait_warning_) + ", since " + TimeOfDay(wait_warning_);
  if (peer == size_) {
    text += ". Has a rank on another host stopped, or the network?";
  }
  LogWarning(membership_.members().own_global_rank(), text);
}

Status HostSlabs::CheckWaitFor(int peer, uint32_t value) const {
  HVD_RETURN_IF_ERROR(membership_.CheckWaitFor(peer));
  if (peer < size_) return Status::Ok();
  // The wire itself waits for the ranks.
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Status status = membership_.CheckWaitFor(rank);
    if (!HasPosted(rank, Flag::kOut, value)) HVD_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

bool HostSlabs::HasPosted(int peer, Flag flag, uint32_t value) const {
  return HasReached(region_.area(peer)->flags.seq[static_cast<int>(flag)].load(
                        std::memory_order_acquire),
                    value);
}

Status HostSlabs::WaitAll(Flag flag, uint32_t value) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    HVD_RETURN_IF_ERROR(Wait(peer, flag, value));
  }
  return Status::Ok();
}

}  // namespace hvd
