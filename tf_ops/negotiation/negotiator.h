// One rank's part in the negotiation: tells the coordinator what this rank is
// ready for, and hears from it what to run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/control_channel.h"
#include "tf_ops/negotiation/coordinator.h"
#include "tf_ops/negotiation/host_coordinator.h"
#include "tf_ops/negotiation/inbox.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/wire/control_links.h"

namespace hvd {

// Not thread-safe: the worker alone uses it.
//
// The first rank of a host leads it. Others talk to it over the host's control
// channel. Rank 0, a leader, has the coordinator itself. Over several hosts
// each leader has a HostCoordinator, which speaks for the ranks of its host,
// and talks to rank 0 over links; it passes on to its ranks what it hears.
class Negotiator {
 public:
  // Borrows `control` and `links`, which only the leaders of several hosts
  // have; else it is null. `rank`: in the process set. `options` has the global
  // ranks, and for several hosts the hosts.
  Negotiator(ControlChannel* control, ControlLinks* links, int rank,
             const CoordinatorOptions& options);

  // Tells the coordinator; Exchange sends it.
  Status Say(const RankMessage& message);

  // Sends and receives what there is, without waiting, and appends what all
  // ranks have to do now to `*responses`.
  Status Exchange(std::vector<Response>* responses);

  // Looks for missing ranks and appends warnings; an error if the coordinator
  // does not answer. `oldest`: when this rank submitted the oldest request that
  // is still pending; nullopt if none is.
  Status CheckStalls(Clock::time_point now,
                     std::optional<Clock::time_point> oldest,
                     std::vector<std::string>* warnings);

  // Whether other ranks hear from this one what to run.
  bool is_leader() const { return control_->rank() == 0; }
  // Whether a rank waits for another one, as far as this one has to look again.
  bool has_pending() const {
    return (coordinator_ != nullptr && coordinator_->has_pending()) ||
           (host_ != nullptr && host_->holds_back());
  }

 private:
  // Takes in a message of a rank of this host.
  Status TakeIn(int local_rank, const RankMessage& message,
                Clock::time_point now);
  Status ReceiveFromRanks(Clock::time_point now);
  // What this host has to say, to the coordinator.
  Status TellCoordinator(Clock::time_point now);
  // On rank 0: what other hosts say.
  Status ReceiveFromHosts(Clock::time_point now);
  // On other ranks: what the coordinator says, from rank 0 or from the leader.
  Status ReceiveResponses(std::vector<Response>* responses);
  // On rank 0: tells all ranks, and this one.
  void Announce(Response response, std::vector<Response>* responses);
  std::vector<uint8_t> EncodeForHosts(Response* response);
  void TellRanks(const std::vector<uint8_t>& bytes);
  Status Flush(bool all);

  ControlChannel* const control_;
  ControlLinks* const links_;
  const int rank_;
  const CoordinatorOptions options_;
  const RankGroups hosts_;  // if there are several
  const MessageLimits limits_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::unique_ptr<HostCoordinator> host_;     // on leaders of several hosts
  std::vector<Inbox> from_ranks_;             // by local rank
  std::vector<Inbox> from_hosts_;             // by host
};

}  // namespace hvd
