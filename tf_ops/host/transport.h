// How the ranks of one host reach each other: slabs of shared memory with
// sequence flags for data, byte streams to and from rank 0 for control, a
// doorbell for each rank, and the knowledge of who is gone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/host/region.h"

namespace hvd {

// A waiter spins, then yields, then sleeps.
inline constexpr int kMinSpins = 50;  // about a microsecond
inline constexpr int kMaxSpins = 1000;
inline constexpr int kNumYields = 40;

// How long to spin. A peer that runs answers soon, but it may need this very
// core, be it because there are more ranks than cores or because of the model's
// threads or others' work; and a core that is yielded may be gone for long. So
// it follows from what spinning was good for. Not thread-safe.
class SpinLimit {
 public:
  int Next() {
    // Now and then as long as can be: times change.
    return ++num_waits_ % kProbeInterval == 0 ? kMaxSpins : limit_;
  }
  // What was waited for came after so many spins.
  void Helped(int num_spins) {
    if (num_spins > kMinSpins) limit_ = kMaxSpins;
  }
  void WasInVain() { limit_ = limit_ / 2 > kMinSpins ? limit_ / 2 : kMinSpins; }

 private:
  static constexpr unsigned kProbeInterval = 64;

  int limit_ = kMaxSpins;
  unsigned num_waits_ = 0;
};

// Which sequence of a rank a waiter looks at.
enum class Flag { kIn = 0, kOut = 1 };

// One thread at a time may call this, but for RingOwnDoorbell, Interrupt,
// Leave, NoteExitReason, NoteFailure and the queries of the last section, which
// any thread may.
class Transport {
 public:
  // `memory` holds an initialised region.
  Transport(std::shared_ptr<void> memory, int rank);
  virtual ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // What the rank is called in the whole job, and in messages.
  int global_rank(int rank) const {
    return job_ == nullptr ? rank : global_ranks_[static_cast<size_t>(rank)];
  }

  // Makes this the transport of a process set of `job`, the transport of all
  // ranks of the job: rank i of the set is `global_ranks[i]` there, and `job`
  // knows who died. Before any other thread uses this one.
  void BindToJob(std::shared_ptr<Transport> job, std::vector<int> global_ranks)
      EXCLUDES(sets_mu_);

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
  void Interrupt(const std::string& reason);
  // Shutdown after Interrupt, else ok. Any thread.
  Status CheckInterrupt() const;

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
  // Between these two rings wake no sleeper: the caller, one thread at a time,
  // looks for them itself, and rings if it leaves some undone.
  void BeginWatch();
  void EndWatch();
  // Looks for a ring until `end`, and never sleeps; lets others have the core.
  // True if it rang.
  bool WatchDoorbell(uint32_t ticket, Clock::time_point end);
  void RingDoorbell(int rank);
  void RingOwnDoorbell() { RingDoorbell(rank_); }

  // ---- Crowds ----
  // Whether any rank has said that it has many requests in flight: then calls
  // do not follow one on the other, and those to come are better run together.
  bool is_crowded() const { return region_.header()->num_crowded.load() > 0; }
  void SetCrowded(bool crowded) {
    if (crowded == crowded_) return;
    crowded_ = crowded;
    region_.header()->num_crowded.fetch_add(crowded ? 1u : -1u);
  }

  // ---- Membership ----
  // Tells the peers that this rank goes, or cannot go on; `reason` is quoted.
  void Leave(const std::string& reason);
  void DeclareBroken(const std::string& reason);
  // What peers quote if this process ends without Leave().
  void NoteExitReason(const std::string& reason);
  // This rank has failed and will Leave(). For ranks that share no process set
  // with it, the end of its process is then a death.
  void NoteFailure(const std::string& reason);

  // PeerLost naming the first rank that is gone, or ok. For a process set also
  // if a rank of the job outside of it has died, but not if it has left.
  Status CheckPeers() const;
  bool IsGone(int rank) const;

 protected:
  // For subclasses: `rank` was found dead. Any thread.
  void MarkDead(int rank) EXCLUDES(sets_mu_);
  // How messages call `rank`; before any thread runs.
  void SetLabel(int rank, std::string label);

  const std::shared_ptr<void> memory_;
  const RegionView region_;

 private:
  Status WaitSlowly(int peer, std::atomic<uint32_t>* word, uint32_t value);
  void GoAway(RankState state, const std::string& reason);
  Status GoneStatus(int rank) const;
  bool IsDead(int rank) const;
  bool IsAnyDead() const;
  // Of the job: PeerLost naming a rank whose process has ended otherwise than
  // in peace, or ok.
  Status CheckDeaths() const;

  const int rank_;
  const int size_;
  uint32_t next_chunk_ = 0;
  bool crowded_ = false;  // this rank has said so
  SpinLimit data_spins_;
  SpinLimit doorbell_spins_;
  std::chrono::milliseconds wait_timeout_{60000};
  std::vector<std::vector<uint8_t>> outboxes_;  // by peer: not yet sent
  std::vector<std::string> labels_;             // by rank
  std::vector<std::atomic<bool>> dead_;         // by rank
  std::atomic<bool> any_dead_{false};
  std::string interrupt_reason_;  // written before `interrupted_`
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> failed_{false};

  // Of a process set:
  std::shared_ptr<Transport> job_;  // null: this is the one of the job
  std::vector<int> global_ranks_;
  // Of the job: whom to ring when a rank died.
  Mutex sets_mu_;
  std::vector<Transport*> sets_ GUARDED_BY(sets_mu_);
};

}  // namespace hvd
