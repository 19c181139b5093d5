// Slabs of shared memory with sequence flags: how data goes between the ranks
// of one host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tf_ops/common/status.h"
#include "tf_ops/host/membership.h"
#include "tf_ops/host/region.h"
#include "tf_ops/host/spin.h"

namespace hvd {

// Which sequence of a rank a waiter looks at.
enum class Flag { kIn = 0, kOut = 1 };

// Collectives number their chunks without gaps, equally on all ranks. Chunk c
// lives in slot c % kNumSlots of a rank's slab. A rank that posts kIn = c + 1
// has finished reading the peers' slabs of all chunks up to c - 3. See
// collectives/host/chunks.h.
//
// For one thread at a time.
class HostSlabs {
 public:
  // Borrows `membership`.
  HostSlabs(RegionView region, int rank, const Membership* membership);
  HostSlabs(const HostSlabs&) = delete;
  HostSlabs& operator=(const HostSlabs&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  size_t slot_bytes() const { return slot_bytes_; }

  uint32_t next_chunk() const { return next_chunk_; }
  void AdvanceChunks(uint32_t num_chunks) { next_chunk_ += num_chunks; }
  std::byte* slot(int rank, uint32_t chunk) const {
    return region_.slab(rank) + (chunk % kNumSlots) * slot_bytes_;
  }

  void Post(Flag flag, uint32_t value);

  // Returns once `peer` has posted `value` or more. PeerLost if it has gone
  // before that, Shutdown after Membership::Interrupt, Stalled after the
  // timeout.
  Status Wait(int peer, Flag flag, uint32_t value);
  Status WaitAll(Flag flag, uint32_t value);  // every other rank
  // Likewise for the wire, which posts kOut once it has all ranks' kOut.
  Status WaitForWire(uint32_t value) { return Wait(size_, Flag::kOut, value); }
  // The same without a wait.
  bool HasPosted(int peer, Flag flag, uint32_t value) const;

  void set_wait_timeout(std::chrono::milliseconds timeout) {
    wait_timeout_ = timeout;  // 0: for ever
  }
  void set_wait_warning(std::chrono::milliseconds after) {
    wait_warning_ = after;  // 0: never
  }

 private:
  Status WaitSlowly(int peer, std::atomic<uint32_t>* word, uint32_t value);
  // Says that nothing comes from `peer`; one rank of this host does.
  void WarnOf(int peer) const;
  // Whether to go on waiting for `peer` to post `value`.
  Status CheckWaitFor(int peer, uint32_t value) const;

  const RegionView region_;
  const int rank_;
  const int size_;
  const size_t slot_bytes_;
  const Membership& membership_;
  uint32_t next_chunk_ = 0;
  SpinLimit spins_;
  std::chrono::milliseconds wait_timeout_{60000};
  std::chrono::milliseconds wait_warning_{0};
};

}  // namespace hvd
