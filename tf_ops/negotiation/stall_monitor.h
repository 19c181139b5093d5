// Handles calls that some ranks make and others do not, or cannot: warns, asks
// the ranks whether they wait elsewhere, fails the call.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/call.h"
#include "tf_ops/negotiation/join_round.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/mismatch.h"

namespace hvd {

struct StallOptions {
  double warning_seconds = 10.0;  // 0: never warn
  double timeout_seconds = 60.0;  // 0: never fail
  // The process of each rank, "host b, pid 7"; empty: not known.
  std::vector<std::string> processes;
};

// Not thread-safe: a part of the coordinator. Costs nothing while all calls
// are younger than the times in its options.
class StallMonitor {
 public:
  // Borrows `global_ranks`, one for each rank, and `joins`.
  StallMonitor(const StallOptions& options,
               const std::vector<int>* global_ranks, const JoinRound* joins);

  // What the coordinator has to do now.
  struct Findings {
    std::vector<std::string> warnings;  // a line for each call
    std::vector<Response> responses;    // questions and errors for ranks
    std::vector<std::string> given_up;  // calls that those errors end
  };

  // `pending`: all calls that a rank has made and that are not answered yet.
  Findings Check(const std::vector<const Call*>& pending,
                 Clock::time_point now);

  // `rank` has come for `call` but cannot take part because of `failure`. The
  // call fails at once; ranks that come later are told then.
  Findings Refuse(const Call& call, int rank, const Status& failure,
                  Clock::time_point now);

  // `rank` could not build a program: nobody knows which calls that would have
  // made. The next ones that wait for this rank fail soon.
  void OnFailedProgram(int rank, const Status& failure, Clock::time_point now);

  // `rank` answers a question about `call`.
  Findings OnElsewhere(const Call& call, int rank, int32_t process_set_id,
                       Clock::time_point now);

  // The call of this name is no longer pending.
  void Forget(const std::string& name) {
    if (!watched_.empty()) watched_.erase(name);
  }

  // Whether a rank may come for a call that was given up without it.
  bool expects_late() const { return !missed_.empty(); }
  // Whether a meeting may change what it knows.
  bool remembers() const {
    return !missed_.empty() || !told_late_.empty() || !failed_.empty();
  }
  // Whether `rank` comes for such a call; `*failure` then tells it so.
  bool AnswerLate(const std::string& name, int rank, Clock::time_point now,
                  Failure* failure);
  // `rank` has joined: it will not come for any of those.
  void OnJoin(int rank);
  // All ranks have made `call`: whoever missed an earlier call has skipped it.
  void OnMeeting(const Call& call);

 private:
  // What has been done about a call that has waited long.
  struct Watched {
    bool warned = false;
    int num_queries = 0;
    std::vector<int> asked;              // ranks that still owe an answer
    std::vector<ValueOnRank> elsewhere;  // sets in which missing ranks wait
    bool is_in_two_sets = false;         // a waiting rank may have it in two
    std::string crossing;  // for the message: who waits for another name
  };
  // A call that was given up: its failure, without ranks, and from when on each
  // rank no longer comes for it, because it has or will not; never: it may.
  struct Missed {
    Failure failure;
    std::vector<Clock::time_point> over;
    Clock::time_point since;  // when it was given up
    bool was_awaited = true;  // a rank has waited for the others
  };

  struct FailedProgram {
    Status failure;
    Clock::time_point since;
  };

  std::string Warn(const std::vector<const Call*>& pending, const Call& call);
  // What the text says beside who waits for whom; may be empty.
  std::string Advice(const std::string& name);
  void FindCrossing(const std::vector<const Call*>& pending, const Call& call);
  void Ask(const Call& call, Watched* watched, Findings* findings);
  // Fails calls between which ranks have come apart by a skipped update.
  void FailSkipped(const std::vector<const Call*>& pending,
                   Clock::time_point now, Findings* findings);
  // Fails calls of programs that a rank could not build.
  void FailUnbuilt(const std::vector<const Call*>& pending,
                   Clock::time_point now, Findings* findings);
  // Fails it on the ranks that have come, and, if they `may_come`, on the
  // others when they do.
  void GiveUp(const Call& call, Status error, bool may_come,
              Clock::time_point now, Findings* findings,
              bool was_awaited = true);
  // Drops the missed calls that are over, or for which nobody may come.
  template <typename IsOver>
  void DropMissed(IsOver is_over);
  int RankAhead(const Call& later, const Call& call) const;
  std::vector<int> MissingRanks(const Call& call) const;  // in the set
  // Since when which processes are missing.
  std::string MissingText(const Call& call) const;
  std::string WaitingText(const Call& call) const;
  std::vector<int> WaitingRanks(const Call& call) const;  // global numbers

  int size() const { return static_cast<int>(global_ranks_.size()); }
  int GlobalRank(int rank) const {
    return global_ranks_[static_cast<size_t>(rank)];
  }

  const StallOptions options_;
  const std::vector<int>& global_ranks_;
  const JoinRound& joins_;
  std::unordered_map<std::string, Watched> watched_;  // by name of the call
  // Likewise, in the order in which they were given up.
  std::unordered_map<std::string, std::deque<Missed>> missed_;
  // Ranks that came for a missed call, or for the next one: which it was shows
  // when that is given up, too. By name.
  std::unordered_map<std::string, std::vector<bool>> told_late_;
  std::map<int, FailedProgram> failed_;  // by rank
};

// For ranks other than the coordinator, which itself fails stalled calls.
// Stalled if the oldest request of global rank `rank` has waited so long
// (`waited`) that `coordinator` must have stopped.
Status CheckCoordinator(const StallOptions& options, int rank, int coordinator,
                        std::chrono::duration<double> waited);

}  // namespace hvd
