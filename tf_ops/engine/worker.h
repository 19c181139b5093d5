// The engine's work: one rank's requests from admission to their end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/engine/completion_queue.h"
#include "tf_ops/engine/data_planes.h"
#include "tf_ops/engine/event_log.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/host/control_channel.h"
#include "tf_ops/host/first_rank.h"
#include "tf_ops/host/membership.h"
#include "tf_ops/negotiation/negotiator.h"
#include "tf_ops/negotiation/request_table.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// For one thread at a time.
class Worker {
 public:
  // Borrows all but `options`, which has the global ranks.
  // `links`: see Negotiator; `rank`: in the process set; `cycle_time_us`: how
  // long to wait for more requests before each round, which may be tuned.
  Worker(DataPlanes* planes, ControlChannel* control, ControlLinks* links,
         Membership* membership, int rank, const EngineOptions& options,
         EventLog* log, std::atomic<int64_t>* cycle_time_us);

  // Takes requests in, and leaves them moved from; Progress sends them to the
  // coordinator.
  void Admit(std::vector<Request>* requests);

  // Talks to the other ranks and runs the next response, if there is one and
  // it moves at most `max_bytes`. True if it ran one.
  bool Progress(int64_t max_bytes);

  // Fails every request that is in flight.
  void FailAll(const Status& status);

  // Returns what has ended since the last call. Call it back outside of locks.
  std::vector<Completion> TakeFinished();

  // Whether requests of this rank are in flight.
  bool has_requests() const { return !table_.empty(); }
  size_t num_requests() const { return table_.size(); }
  // Whether a response is waiting that was too large for the last Progress.
  bool has_responses() const { return !responses_.empty(); }
  // Whether a request of this name is in flight, or failed a moment ago because
  // other ranks made the call in another process set: they still wait there and
  // will ask for it.
  bool has_request(const std::string& name) const;
  // Whether this rank has to look for stalls.
  bool must_watch() const {
    return has_requests() || negotiator_.has_pending();
  }

 private:
  void CheckStalls();
  // Whether the response moves at most `max_bytes`, on a plane that submitting
  // threads may run.
  bool IsSmall(const Response& response, int64_t max_bytes);
  // Does what a response says, if it concerns this rank.
  Status Run(const Execution& execution);
  Status Run(const Failure& failure);
  Status Run(const Eviction& eviction);
  Status Run(const JoinEnd& end);
  Status Run(const Query& query);
  Status Run(const Tunables& tuned);
  // Finds what `item` means on this rank. Internal if it means nothing.
  Status FindReady(const ResponseItem& item, ReadyRequest* ready);
  const RequestParams* ParamsOfItem(const ResponseItem& item) const;  // or null
  void AdmitOne(Request&& request, Clock::time_point now,
                std::vector<RankMessage>* messages);
  void TellAdmitted(const Request& request,
                    Event::Cache cache = Event::Cache::kUnused);
  // Counts a response that has come and tells observers of its requests.
  void TellNegotiated(const Response& response);
  void TellBegun(const std::vector<ReadyRequest>& ready);
  // This rank's request for `item`; null: it has none.
  const PendingRequest* PendingOf(const ResponseItem& item) const;
  // `time`: see Finish.
  void Finish(std::unique_ptr<PendingRequest> pending, const Status& status,
              Clock::time_point time = {});
  void Break(const Status& status);
  // Warns if the first rank of this host, which speaks for it, has stopped
  // while a request of this rank has waited so long.
  void WarnOfFirst(Clock::time_point now, std::chrono::duration<double> waited);

  int global_rank() const {
    return options_.global_ranks[static_cast<size_t>(place_.rank)];
  }

  DataPlanes& planes_;
  Membership* const membership_;
  FirstRank first_rank_;
  const EngineOptions options_;
  const RankPlace place_;
  EventLog* const log_;
  std::atomic<int64_t>* const cycle_time_us_;
  ControlLinks* const links_;  // null: it has none
  RequestTable table_;
  Negotiator negotiator_;
  std::deque<Response> responses_;  // to be run, in this order
  // Count responses, which all ranks hear in the same order: they number
  // Event::collective_id.
  uint64_t num_heard_ = 0;
  uint64_t num_run_ = 0;
  std::vector<Completion> finished_;  // to be called back
  // When the call of each name failed; see has_request.
  std::unordered_map<std::string, Clock::time_point> misplaced_;
  Status broken_;  // why nothing works any more
  Clock::time_point next_stall_check_{};
};

}  // namespace hvd
