// How the ranks of one host reach each other: slabs of shared memory with
// sequence flags for data, byte streams to and from rank 0 for control, a
// doorbell for each rank, and the knowledge of who is gone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/region.h"

namespace hvd {

// Which sequence of a rank a waiter looks at.
enum class Flag { kIn = 0, kOut = 1 };

// One thread at a time may call this, but for RingOwnDoorbell, Interrupt,
// Leave, NoteExitReason and the queries of the last section, which any thread
// may.
class Transport {
 public:
  // Borrows `region`, which the subclass keeps alive and has initialised.
  Transport(RegionView region, int rank);
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // ---- Data ----
  // Collectives number their chunks without gaps, alike on all ranks; chunk c
  // lives in slot c % kNumSlots of a rank's slab. The contract of posting:
  // who posts kIn = c + 1 has finished to read the peers' slabs of all chunks
  // up to c - 3. See collectives/pipeline.h.
  uint32_t next_chunk() const { return next_chunk_; }
  void AdvanceChunks(uint32_t num_chunks) { next_chunk_ += num_chunks; }
  std::byte* slot(int rank, uint32_t chunk) const {
    return region_.slab(rank) + (chunk % kNumSlots) * kSlotBytes;
  }

  void Post(Flag flag, uint32_t value);

  // Returns once `peer` has posted `value` or more. PeerLost if it is gone
  // without having done so, Stalled after the wait timeout.
  Status Wait(int peer, Flag flag, uint32_t value);
  Status WaitAll(Flag flag, uint32_t value);  // every other rank

  // Makes Wait and WaitDoorbell return soon, Wait with Shutdown, now and from
  // now on. Any thread.
  void Interrupt();

  void set_wait_timeout(std::chrono::milliseconds timeout) {
    wait_timeout_ = timeout;  // 0: for ever
  }

  // ---- Control: rank 0 with every other rank ----
  // Queues `bytes`, of any length, and sends what fits; Flush sends more.
  void SendControl(int peer, const std::vector<uint8_t>& bytes);
  bool Flush();  // true if nothing is left to send
  // Sends all of it, waiting for the readers, who must not be waiting for this
  // rank. What a rank that is gone does not read is dropped. Fails as Wait().
  Status FlushAll();
  // Appends what `peer` has sent to `*bytes`; false if that was nothing.
  bool ReceiveControl(int peer, std::vector<uint8_t>* bytes);

  // ---- Doorbell ----
  // Read the ticket, look for work, then wait with it: a ring in between
  // makes the wait return at once.
  uint32_t DoorbellTicket() const;
  // `spin`: look for a while before sleeping, for an answer that is near.
  void WaitDoorbell(uint32_t ticket, std::chrono::microseconds timeout,
                    bool spin);
  void RingDoorbell(int rank);
  void RingOwnDoorbell() { RingDoorbell(rank_); }

  // ---- Membership ----
  // Tells the peers that this rank goes, or cannot go on; `reason` is quoted.
  void Leave(const std::string& reason);
  void DeclareBroken(const std::string& reason);
  // What peers quote if this process ends without Leave().
  void NoteExitReason(const std::string& reason);

  // PeerLost naming the first rank that is gone, or ok.
  Status CheckPeers() const;
  bool IsGone(int rank) const;

 protected:
  // For subclasses: `rank` was found dead. Any thread.
  void MarkDead(int rank);
  // How messages call `rank`; before any thread runs.
  void SetLabel(int rank, std::string label);

  const RegionView region_;

 private:
  Status WaitSlowly(int peer, std::atomic<uint32_t>* word, uint32_t value);
  void GoAway(RankState state, const std::string& reason);
  Status GoneStatus(int rank) const;

  const int rank_;
  const int size_;
  const int num_data_spins_;
  const int num_doorbell_spins_;
  uint32_t next_chunk_ = 0;
  std::chrono::milliseconds wait_timeout_{60000};
  std::vector<std::vector<uint8_t>> outboxes_;  // by peer: not yet sent
  std::vector<std::string> labels_;             // by rank
  std::vector<std::atomic<bool>> dead_;         // by rank
  std::atomic<bool> any_dead_{false};
  std::atomic<bool> interrupted_{false};
};

}  // namespace hvd
