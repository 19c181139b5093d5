#include "tf_ops/negotiation/stall_monitor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tf_ops/common/log.h"

namespace hvd {
namespace {

// When to ask the ranks if warnings are off.
constexpr double kQuerySeconds = 10.0;
// Another rank blames the coordinator this long after that should have failed
// the call.
constexpr double kCoordinatorGraceSeconds = 3.0;

// Reductions of gradients as old as this are looked at for skipped updates.
constexpr double kSkippedSeconds = 0.5;

// Calls of one name that a rank may still come for.
constexpr size_t kMostMissed = 1024;

// Other ranks may need a moment until they wait for what a rank cannot build.
constexpr double kUnbuiltSeconds = 0.3;

// Of the missing ranks, so many processes are named.
constexpr size_t kMostNamed = 4;

// From when on a rank no longer comes for a missed call.
constexpr Clock::time_point kNever = Clock::time_point::max();
constexpr Clock::time_point kUnknown = kNever - Clock::duration(1);

using Seconds = std::chrono::duration<double>;

constexpr char kStepsAdvice[] =
    ". Do all ranks run equally many steps? Give them equally many batches, as "
    "`hvd.shard` does, and let no rank skip an update alone";
constexpr char kCallAdvice[] =
    ". Do all ranks make this call? It must not stand under `if hvd.rank() == "
    "0`";
constexpr char kNamesAdvice[] =
    ". Calls without `name` are paired in the order in which ranks make or "
    "trace them: pass `name` if that order differs";

bool StartsWith(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

// Whether an optimizer or a tape makes the call.
bool IsOfTraining(const std::string& name) {
  return ReducesGradients(name) || StartsWith(name, "DistributedOptimizer/");
}

// Whether a call may have got its name because its caller gave none: "Horovod"
// begins the name of a node in a graph, and a collective with a dot the others:
// "allreduce.0", "jax.allreduce.call.0", "torch.allreduce.0".
bool IsNameless(const std::string& name) {
  if (StartsWith(name, "Horovod") ||
      name.find("/Horovod") != std::string::npos) {
    return true;
  }
  std::string rest = name;
  for (const char* framework : {"jax.", "torch."}) {
    if (StartsWith(name, framework)) rest = name.substr(std::strlen(framework));
  }
  if (StartsWith(rest, "grouped_")) rest = rest.substr(std::strlen("grouped_"));
  for (const char* kind : {"allreduce.", "allgather.", "alltoall.", "barrier.",
                           "broadcast.", "reducescatter."}) {
    if (StartsWith(rest, kind)) return true;
  }
  return false;
}

std::string CrossingText(const std::string& name, const std::string& other,
                         int rank) {
  std::string text =
      "; rank " + std::to_string(rank) + " waits for '" + other + "' instead";
  if (IsOfTraining(name) || IsOfTraining(other)) return text + kStepsAdvice;
  if (IsNameless(name) || IsNameless(other)) return text + kNamesAdvice;
  return text;
}

std::string SetName(int process_set_id) {
  return "process set " + std::to_string(process_set_id);
}

}  // namespace

StallMonitor::StallMonitor(const StallOptions& options,
                           const std::vector<int>* global_ranks,
                           const JoinRound* joins)
    : options_(options), global_ranks_(*global_ranks), joins_(*joins) {}

StallMonitor::Findings StallMonitor::Check(
    const std::vector<const Call*>& pending, Clock::time_point now) {
  Findings findings;
  FailSkipped(pending, now, &findings);
  FailUnbuilt(pending, now, &findings);
  if (!findings.given_up.empty()) return findings;  // the others next time
  const double warning = options_.warning_seconds;
  const double timeout = options_.timeout_seconds;
  const double query = warning > 0 ? warning : kQuerySeconds;
  std::vector<const Call*> late;
  for (const Call* call : pending) {
    if (call->is_complete) continue;
    const Seconds waited = now - call->first_arrival;
    if (timeout > 0 && waited >= Seconds(timeout)) {
      late.push_back(call);
      continue;
    }
    if (waited < Seconds(query) || (warning <= 0 && timeout <= 0)) continue;
    Watched* watched = &watched_[call->name];
    if (warning > 0 && !watched->warned) {
      watched->warned = true;
      findings.warnings.push_back(Warn(pending, *call));
    }
    // Ask repeatedly: a rank cannot always see what it has in flight.
    if (timeout > 0 && waited >= Seconds(query * (watched->num_queries + 1))) {
      Ask(*call, watched, &findings);
    }
  }
  for (const Call* call : late) FindCrossing(pending, *call);
  for (const Call* call : late) {
    GiveUp(
        *call,
        Status::Stalled(WaitingText(*call) + " within " +
                        SecondsToString(Seconds(timeout)) + Advice(call->name)),
        /*may_come=*/true, now, &findings);
  }
  return findings;
}

std::string StallMonitor::Warn(const std::vector<const Call*>& pending,
                               const Call& call) {
  FindCrossing(pending, call);
  const int process_set_id = call.leader->process_set_id;
  return "'" + call.name + "'" +
         (process_set_id == 0 ? "" : " (" + SetName(process_set_id) + ")") +
         ": " + WaitingText(call) + " for " +
         SecondsToString(Seconds(options_.warning_seconds)) +
         MissingText(call) + Advice(call.name);
}

std::string StallMonitor::Advice(const std::string& name) {
  const std::string& crossing = watched_[name].crossing;
  if (!crossing.empty()) return crossing;
  return IsOfTraining(name) ? kStepsAdvice : kCallAdvice;
}

// Looks for a call that a missing rank has made and a waiting rank has not.
void StallMonitor::FindCrossing(const std::vector<const Call*>& pending,
                                const Call& call) {
  if (!watched_[call.name].crossing.empty()) return;
  for (const Call* other : pending) {
    int here = -1;
    int there = -1;
    for (int rank = 0; rank < size(); ++rank) {
      if (call.HasCome(rank) == other->HasCome(rank)) continue;
      (call.HasCome(rank) ? here : there) = rank;
    }
    if (here < 0 || there < 0) continue;
    watched_[call.name].crossing =
        CrossingText(call.name, other->name, GlobalRank(there));
    std::string* theirs = &watched_[other->name].crossing;
    if (theirs->empty()) {
      *theirs = CrossingText(other->name, call.name, GlobalRank(here));
    }
    return;
  }
}

void StallMonitor::Ask(const Call& call, Watched* watched, Findings* findings) {
  ++watched->num_queries;
  if (!watched->asked.empty()) return;  // they have not answered the last one
  Query query;
  query.name = call.name;
  query.waiting = WaitingRanks(call);
  for (int rank = 0; rank < size(); ++rank) {
    if (joins_.has(rank)) continue;
    watched->asked.push_back(rank);
    query.ranks.push_back(rank);
  }
  findings->responses.push_back(std::move(query));
}

// Decides once all have answered: a missing rank that waits elsewhere will not
// come. But if a waiting rank has the name in another set too, the program uses
// it in both, and the others may still come.
StallMonitor::Findings StallMonitor::OnElsewhere(const Call& call, int rank,
                                                 int32_t process_set_id,
                                                 Clock::time_point now) {
  Findings findings;
  const auto found = watched_.find(call.name);
  if (found == watched_.end()) return findings;
  Watched* watched = &found->second;
  const auto asked =
      std::find(watched->asked.begin(), watched->asked.end(), rank);
  if (asked == watched->asked.end()) return findings;
  watched->asked.erase(asked);
  if (call.HasCome(rank)) {
    if (process_set_id != kNotElsewhere) watched->is_in_two_sets = true;
  } else if (process_set_id >= 0) {
    watched->elsewhere.push_back({SetName(process_set_id), GlobalRank(rank)});
  }
  if (!watched->asked.empty() || call.is_complete) return findings;
  if (std::exchange(watched->is_in_two_sets, false)) watched->elsewhere.clear();
  if (watched->elsewhere.empty()) return findings;
  std::vector<ValueOnRank> values;
  for (int waiting : WaitingRanks(call)) {
    values.push_back({SetName(call.leader->process_set_id), waiting});
  }
  values.insert(values.end(), watched->elsewhere.begin(),
                watched->elsewhere.end());
  GiveUp(call, Disagreement("the process set", values), /*may_come=*/true, now,
         &findings);
  return findings;
}

// A rank has come for a call in a later step than that of a reduction for which
// others wait: it has left that step without its part. Those others have not
// come for the later call, so neither call will ever be complete.
void StallMonitor::FailSkipped(const std::vector<const Call*>& pending,
                               Clock::time_point now, Findings* findings) {
  std::unordered_map<const Call*, Status> failed;
  for (const Call* call : pending) {
    if (call->is_complete || !ReducesGradients(call->name) ||
        now - call->first_arrival < Seconds(kSkippedSeconds)) {
      continue;
    }
    for (const Call* later : pending) {
      const int ahead = RankAhead(*later, *call);
      if (later->is_complete || ahead < 0) continue;
      std::vector<ValueOnRank> steps = StepsOf(*call, global_ranks_);
      steps.push_back({ToString(later->steps.of(ahead)), GlobalRank(ahead)});
      failed[call] = failed[later] = UnequalSteps(steps);
    }
  }
  for (const auto& [call, error] : failed) {
    GiveUp(*call, error, /*may_come=*/false, now, findings);
  }
}

// A rank that has come for `later` alone, after the step in which another one,
// that has not, waits for `call`. -1: none.
int StallMonitor::RankAhead(const Call& later, const Call& call) const {
  int waiting = -1;  // in the earliest step that is known
  int ahead = -1;    // in the latest
  for (int rank = 0; rank < size(); ++rank) {
    if (call.HasCome(rank) == later.HasCome(rank)) continue;
    if (call.HasCome(rank)) {
      const TrainingStep step = call.steps.of(rank);
      if (step != 0 && (waiting < 0 || step < call.steps.of(waiting))) {
        waiting = rank;
      }
    } else if (ahead < 0 || later.steps.of(rank) > later.steps.of(ahead)) {
      ahead = rank;
    }
  }
  const bool has_left = waiting >= 0 && ahead >= 0 &&
                        IsLater(later.steps.of(ahead), call.steps.of(waiting));
  return has_left ? ahead : -1;
}

void StallMonitor::OnFailedProgram(int rank, const Status& failure,
                                   Clock::time_point now) {
  failed_[rank] = {
      failure.WithContext("rank " + std::to_string(GlobalRank(rank)) +
                          " could not build its program"),
      now};
  // Then none of them waits for another one.
  if (failed_.size() == global_ranks_.size()) failed_.clear();
}

void StallMonitor::FailUnbuilt(const std::vector<const Call*>& pending,
                               Clock::time_point now, Findings* findings) {
  for (auto it = failed_.begin(); it != failed_.end();) {
    const auto& [rank, failed] = *it;
    bool any = false;
    for (const Call* call : pending) {
      const Clock::time_point since =
          std::max(call->first_arrival, failed.since);
      const std::vector<std::string>& given_up = findings->given_up;
      if (call->is_complete || call->HasCome(rank) || joins_.has(rank) ||
          now - since < Seconds(kUnbuiltSeconds) ||
          std::find(given_up.begin(), given_up.end(), call->name) !=
              given_up.end()) {
        continue;
      }
      GiveUp(*call, failed.failure, /*may_come=*/false, now, findings);
      any = true;
    }
    it = any ? failed_.erase(it) : std::next(it);
  }
}

StallMonitor::Findings StallMonitor::Refuse(const Call& call, int rank,
                                            const Status& failure,
                                            Clock::time_point now) {
  Findings findings;
  // Nobody has waited: that a rank has not come yet does not mean that it has
  // skipped a call, nor does it if that rank comes later.
  told_late_.erase(call.name);
  GiveUp(call,
         failure.WithContext("rank " + std::to_string(GlobalRank(rank)) +
                             " cannot take part"),
         /*may_come=*/true, now, &findings, /*was_awaited=*/false);
  return findings;
}

void StallMonitor::GiveUp(const Call& call, Status error, bool may_come,
                          Clock::time_point now, Findings* findings,
                          bool was_awaited) {
  const std::vector<ValueOnRank>& elsewhere = watched_[call.name].elsewhere;
  Missed missed;
  missed.failure.name = call.name;
  missed.failure.error = std::move(error);
  missed.failure.is_misplaced = !elsewhere.empty();
  missed.over.assign(global_ranks_.size(), now);
  missed.since = now;
  missed.was_awaited = was_awaited;
  // A rank that was told of the call before this one, and has not come for this
  // one, had skipped that: it came when the others came for this one.
  const auto told = told_late_.find(call.name);
  Failure failure = missed.failure;
  bool any_missed = false;
  for (int rank = 0; rank < size(); ++rank) {
    if (call.HasCome(rank)) {
      failure.ranks.push_back(rank);
      continue;
    }
    bool will_come = may_come && !joins_.has(rank);
    if (told != told_late_.end() && told->second[static_cast<size_t>(rank)]) {
      will_come = false;
      for (Missed& earlier : missed_[call.name]) {
        Clock::time_point& over = earlier.over[static_cast<size_t>(rank)];
        over = std::min(over, now);
      }
    }
    for (const ValueOnRank& other : elsewhere) {
      will_come = will_come && other.rank != GlobalRank(rank);
    }
    if (will_come) missed.over[static_cast<size_t>(rank)] = kNever;
    any_missed = any_missed || will_come;
  }
  if (told != told_late_.end()) told_late_.erase(told);
  findings->responses.push_back(std::move(failure));
  findings->given_up.push_back(call.name);
  if (any_missed) {
    std::deque<Missed>* const all = &missed_[call.name];
    if (all->size() == kMostMissed) all->pop_front();
    all->push_back(std::move(missed));
  }
  DropMissed([](const Missed&) { return false; });
}

template <typename IsOver>
void StallMonitor::DropMissed(IsOver is_over) {
  for (auto it = missed_.begin(); it != missed_.end();) {
    std::deque<Missed>& all = it->second;
    const auto is_past = [&](const Missed& missed) {
      const std::vector<Clock::time_point>& over = missed.over;
      return std::find(over.begin(), over.end(), kNever) == over.end() ||
             is_over(missed);
    };
    all.erase(std::remove_if(all.begin(), all.end(), is_past), all.end());
    it = all.empty() ? missed_.erase(it) : std::next(it);
  }
}

bool StallMonitor::AnswerLate(const std::string& name, int rank,
                              Clock::time_point now, Failure* failure) {
  const auto found = missed_.find(name);
  if (found == missed_.end()) return false;
  const size_t index = static_cast<size_t>(rank);
  const auto missed = std::find_if(
      found->second.begin(), found->second.end(),
      [&](const Missed& one) { return one.over[index] == kNever; });
  if (missed == found->second.end()) return false;
  missed->over[index] = now;
  if (missed->was_awaited) {
    std::vector<bool>& told = told_late_[name];
    told.resize(missed->over.size());
    told[index] = true;
  }
  *failure = missed->failure;
  failure->ranks = {rank};
  DropMissed([](const Missed&) { return false; });
  return true;
}

void StallMonitor::OnJoin(int rank) {
  for (auto& [name, all] : missed_) {
    for (Missed& missed : all) {
      Clock::time_point& over = missed.over[static_cast<size_t>(rank)];
      if (over == kNever) over = kUnknown;
    }
  }
  DropMissed([](const Missed&) { return false; });
}

// A rank that had come for a missed call before made this one after it; so did
// one that had not come for it, or it would have come for it first.
void StallMonitor::OnMeeting(const Call& call) {
  told_late_.erase(call.name);
  for (auto it = failed_.begin(); it != failed_.end();) {
    const bool is_over = it->second.since < call.first_arrival;
    it = is_over ? failed_.erase(it) : std::next(it);
  }
  DropMissed([&](const Missed& missed) {
    return missed.since < call.first_arrival ||
           (call.last_rank >= 0 &&
            missed.over[static_cast<size_t>(call.last_rank)] <
                call.last_arrival);
  });
}

std::vector<int> StallMonitor::WaitingRanks(const Call& call) const {
  std::vector<int> waiting;
  for (int rank = 0; rank < size(); ++rank) {
    if (call.HasCome(rank)) waiting.push_back(GlobalRank(rank));
  }
  return waiting;
}

std::vector<int> StallMonitor::MissingRanks(const Call& call) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (!call.HasCome(rank) && !joins_.has(rank)) missing.push_back(rank);
  }
  return missing;
}

std::string StallMonitor::MissingText(const Call& call) const {
  if (options_.processes.empty()) return "";
  const std::vector<int> missing = MissingRanks(call);
  std::string text = " (since " + TimeOfDay(Seconds(options_.warning_seconds));
  for (size_t i = 0; i < std::min(missing.size(), kMostNamed); ++i) {
    text += "; rank " + std::to_string(GlobalRank(missing[i])) + " is " +
            options_.processes[static_cast<size_t>(missing[i])];
  }
  return text + ")";
}

std::string StallMonitor::WaitingText(const Call& call) const {
  const std::vector<int> waiting = WaitingRanks(call);
  std::vector<int> missing;
  for (int rank : MissingRanks(call)) missing.push_back(GlobalRank(rank));
  return RanksToString(waiting) +
         (waiting.size() == 1 ? " waits, " : " wait, ") +
         RanksToString(missing) +
         (missing.size() == 1 ? " has not come" : " have not come");
}

Status CheckCoordinator(const StallOptions& options, int rank, int coordinator,
                        std::chrono::duration<double> waited) {
  const double timeout = options.timeout_seconds;
  if (timeout <= 0 || waited.count() < timeout + kCoordinatorGraceSeconds) {
    return Status::Ok();
  }
  return Status::Stalled("rank " + std::to_string(rank) + " waits, and rank " +
                         std::to_string(coordinator) +
                         ", the coordinator, does not answer");
}

}  // namespace hvd
