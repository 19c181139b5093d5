// One rank's part in the negotiation: tells the coordinator what this rank is
// ready for, and hears from it what to run. Rank 0 has the coordinator itself.
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
#include "tf_ops/negotiation/message.h"

namespace hvd {

// Not thread-safe: the worker alone uses it.
class Negotiator {
 public:
  // Borrows `control`. `options` has the global ranks.
  Negotiator(ControlChannel* control, const CoordinatorOptions& options);

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

  bool is_coordinator() const { return coordinator_ != nullptr; }
  // Whether a rank waits for another one; only the coordinator knows.
  bool has_pending() const {
    return coordinator_ != nullptr && coordinator_->has_pending();
  }

 private:
  Status ReceiveRequests();
  Status ReceiveResponses(std::vector<Response>* responses);

  ControlChannel* const control_;
  const CoordinatorOptions options_;
  const MessageLimits limits_;
  std::unique_ptr<Coordinator> coordinator_;   // on rank 0
  std::vector<std::vector<uint8_t>> inboxes_;  // by peer: an incomplete frame
};

}  // namespace hvd
