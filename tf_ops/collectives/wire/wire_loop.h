// The wire of a host: carries the data of its ranks to the other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "tf_ops/collectives/wire/host_sum.h"
#include "tf_ops/collectives/wire/low_rank_job.h"
#include "tf_ops/collectives/wire/residuals.h"
#include "tf_ops/collectives/wire/wire_job.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_group.h"
#include "tf_ops/wire/wire.h"

namespace hvd {

// Runs the jobs that member 0 sends over the control channel, one after the
// other, on the slots of the wire's own slab. For one thread.
class WireLoop {
 public:
  // `group` is the wire's, the last member of the region. Borrows both.
  WireLoop(HostGroup* group, Wire* wire);
  WireLoop(const WireLoop&) = delete;
  WireLoop& operator=(const WireLoop&) = delete;

  // Returns Shutdown after Membership::EndWire or Interrupt. Any other error is
  // for good, and the ranks hear of it.
  Status Run();
  // Whether transfers were in flight when Run returned. This loop and the
  // memory of the region must then stay.
  bool has_transfers() const {
    return num_transfers_ > 0 || host_sum_.has_transfers();
  }

 private:
  struct Chunk;
  using Steps = Status (WireLoop::*)(const WireJob&, Chunk*);

  Status CauseOf(const Status& status) const;
  Status RunJobs();
  Status NextJob(WireJob* job);
  Status RunJob(const WireJob& job);
  // Steps each of `num_chunks` chunks until it has ended, several at a time.
  Status RunChunks(const WireJob& job, uint32_t num_chunks, Steps step);
  Status StepBlocks(const WireJob& job, Chunk* chunk);
  Status StepPacked(const WireJob& job, Chunk* chunk);
  Status StepFlat(const WireJob& job, Chunk* chunk);
  Status StepBroadcast(const WireJob& job, Chunk* chunk);
  Status StepAlltoall(const WireJob& job, Chunk* chunk);
  Status StepLowRank(const WireJob& job, Chunk* chunk);

  // Calls f(to, from) for the hosts that this one sends to, and receives from,
  // one after the other.
  template <typename F>
  Status ForEachPeer(F f) const {
    for (int hop = 1; hop < num_hosts_; ++hop) {
      HVD_RETURN_IF_ERROR(f((host_ + hop) % num_hosts_,
                            (host_ + num_hosts_ - hop) % num_hosts_));
    }
    return Status::Ok();
  }

  // Combine the parts of chunk `chunk` that all hosts have of `size` bytes,
  // own ones at `own`, into `out`.
  void ReduceParts(const WireJob& job, const Chunk& chunk, const std::byte* own,
                   size_t size, std::byte* out);
  // Sends to, or receives from, `host`, unless there is nothing to send.
  Status Send(int host, int phase, const std::byte* data, size_t num_bytes,
              Chunk* chunk);
  Status Receive(int host, int phase, std::byte* data, size_t num_bytes,
                 Chunk* chunk);
  // Drops the transfers that have ended.
  Status PollAll(std::deque<Chunk>* chunks);
  void LearnFromNews();
  // Learns from a job that took so long how long a nap may be.
  void LearnNap(Clock::duration taken);
  // Waits a moment for news.
  Status Idle();

  std::byte* slot(const WireJob& job, const Chunk& chunk) const;
  std::byte* staging(const Chunk& chunk);

  HostGroup* const group_;
  Wire* const wire_;
  const int host_;
  const int num_hosts_;
  std::vector<uint8_t> inbox_;
  std::unique_ptr<BlockLayout> layout_;    // kBlocks; kAlltoall: what is sent
  std::unique_ptr<BlockLayout> received_;  // kAlltoall
  std::vector<std::unique_ptr<std::byte[]>> staging_;  // by chunk in flight
  std::vector<const void*> sources_;                   // by host
  Residuals residuals_;
  LowRankStates low_rank_;
  HostSum host_sum_;
  std::vector<WireTransfer*> polled_;  // of PollAll
  Clock::time_point last_news_;
  Clock::duration spin_;           // this long after news
  Clock::duration nap_;            // in the next job of several chunks
  Clock::duration job_nap_;        // in this job, at least
  size_t num_received_bytes_ = 0;  // of this job
  size_t num_transfers_ = 0;       // in flight
};

}  // namespace hvd
