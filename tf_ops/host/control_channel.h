// Byte streams between rank 0 and every other member of a region: the ranks of
// a host and its wire.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/membership.h"
#include "tf_ops/host/region.h"

namespace hvd {

// Checks every counter that it shares with a peer. If one makes no sense, calls
// fail with Internal, naming the peer, and the stream is lost. For one thread
// at a time.
class ControlChannel {
 public:
  // Borrows both.
  ControlChannel(RegionView region, int rank, const Membership* membership,
                 Doorbell* doorbell);
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }  // ranks

  // Queues `bytes`, of any length, and sends nothing yet.
  void Send(int peer, const std::vector<uint8_t>& bytes);
  // Sends what fits.
  Status Flush();
  // Whether something is left to send.
  bool has_unsent() const;
  // Sends everything, waiting for the readers, which must not be waiting for
  // this rank. Drops what a lost rank has not read. Fails as HostSlabs::Wait.
  Status FlushAll();

  // Appends what `peer` has sent to `*bytes`; `*received`: if anything.
  Status Receive(int peer, std::vector<uint8_t>* bytes, bool* received);

  void set_wait_timeout(std::chrono::milliseconds timeout) {
    wait_timeout_ = timeout;  // 0: for ever
  }

 private:
  // The streams from and to `peer`.
  ControlRing* Incoming(int peer) const;
  ControlRing* Outgoing(int peer) const;
  Status CheckCounters(int peer, uint64_t num_written, uint64_t num_read) const;
  // Sets `*sent` if it sent anything.
  Status SendWhatFits(int peer, bool* sent);

  const RegionView region_;
  const int rank_;
  const int size_;
  const Membership& membership_;
  Doorbell& doorbell_;
  std::vector<std::vector<uint8_t>> outboxes_;  // by peer: not yet sent
  std::chrono::milliseconds wait_timeout_{60000};
};

}  // namespace hvd
