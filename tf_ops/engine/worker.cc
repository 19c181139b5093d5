#include "tf_ops/engine/worker.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tf_ops/common/log.h"
#include "tf_ops/engine/finish.h"
#include "tf_ops/engine/phase_teller.h"
#include "tf_ops/engine/ready_request.h"
#include "tf_ops/negotiation/tuning.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kStallCheckInterval{100};
constexpr std::chrono::seconds kMisplacedFor{60};
// The first rank's engine looks for stalls at least once a second.
constexpr double kFewestSilentSeconds = 1.5;
constexpr double kMostSilentSeconds = 3.0;

CoordinatorOptions AsCoordinatorOptions(const EngineOptions& options) {
  CoordinatorOptions result;
  result.fusion_threshold_bytes = options.fusion_threshold_bytes;
  result.cache_capacity = options.cache_capacity;
  result.stalls.warning_seconds = options.stall_warning_seconds;
  result.stalls.timeout_seconds = options.stall_timeout_seconds;
  result.global_ranks = options.global_ranks;
  result.hosts = options.hosts;
  result.tuning = options.tuning;
  if (!options.processes.empty()) {
    for (int rank : options.global_ranks) {
      result.stalls.processes.push_back(
          options.processes[static_cast<size_t>(rank)]);
    }
  }
  return result;
}

RankPlace PlaceOf(int rank, const EngineOptions& options) {
  RankPlace place;
  place.rank = rank;
  place.size = static_cast<int>(options.global_ranks.size());
  for (size_t i = 0; i < options.hosts.size(); ++i) {
    if (options.hosts[i] == options.hosts[static_cast<size_t>(rank)]) {
      place.host_ranks.push_back(static_cast<int>(i));
    }
  }
  return place;
}

// Whether a ResponseItem tells the rows of the ranks.
bool HasRows(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kAlltoall;
}

}  // namespace

Worker::Worker(DataPlanes* planes, ControlChannel* control, ControlLinks* links,
               Membership* membership, int rank, const EngineOptions& options,
               EventLog* log, std::atomic<int64_t>* cycle_time_us)
    : planes_(*planes),
      membership_(membership),
      first_rank_(membership),
      options_(options),
      place_(PlaceOf(rank, options_)),
      log_(log),
      cycle_time_us_(cycle_time_us),
      links_(links),
      negotiator_(control, links, rank, AsCoordinatorOptions(options_)) {}

// Tells the coordinator everything new in as few messages as possible.
void Worker::Admit(std::vector<Request>* requests) {
  if (requests->empty()) return;
  const Clock::time_point now = Clock::now();
  std::vector<RankMessage> messages;
  const bool had_joined = table_.has_join();
  for (Request& request : *requests) {
    AdmitOne(std::move(request), now, &messages);
  }
  if (!broken_.ok()) {
    FailAll(broken_);
    return;
  }
  if (table_.has_join() && !had_joined) {
    // Last, so that what this rank submitted before the join counts.
    messages.emplace_back();
    messages.back().type = RankMessage::Type::kJoin;
    messages.back().average_over_active =
        table_.join().request.average_over_active;
  }
  for (const RankMessage& message : messages) {
    const Status status = negotiator_.Say(message);
    if (!status.ok()) Break(status);
  }
}

void Worker::AdmitOne(Request&& request, Clock::time_point now,
                      std::vector<RankMessage>* messages) {
  if (!misplaced_.empty()) misplaced_.erase(request.name);
  planes_.Admit(&request);
  if (table_.has_join()) {
    auto refused = std::make_unique<PendingRequest>();
    refused->request = std::move(request);
    TellAdmitted(refused->request);
    Finish(std::move(refused),
           Status::InvalidArgument(
               "rank " + std::to_string(global_rank()) +
               " has joined; it may submit again once join has returned"));
  } else if (request.kind == CollectiveKind::kJoin) {
    table_.AdmitJoin(std::move(request));
    TellAdmitted(table_.join().request);
  } else {
    const RequestTable::Admission admission =
        table_.Admit(std::move(request), now, messages);
    Event::Cache cache = Event::Cache::kUnused;
    if (admission.as == RequestTable::Admission::kKnown) {
      cache = Event::Cache::kHit;
    } else if (admission.as == RequestTable::Admission::kNew) {
      cache = Event::Cache::kMiss;
    }
    TellAdmitted(*admission.request, cache);
  }
}

void Worker::TellAdmitted(const Request& request, Event::Cache cache) {
  Event event;
  event.step = Event::Step::kAdmitted;
  event.request = &request;
  event.time = request.submitted;
  event.cache = cache;
  log_->Tell(event);
}

void Worker::TellNegotiated(const Response& response) {
  ++num_heard_;
  if (!log_->has_readers()) return;
  const Status ok;
  Event event;
  event.step = Event::Step::kNegotiated;
  event.status = &ok;
  event.time = log_->Now();
  event.collective_id = num_heard_;
  const auto tell = [&](const PendingRequest* pending) {
    if (pending == nullptr) return;  // this rank has joined, or is late
    event.request = &pending->request;
    log_->Tell(event);
  };
  if (const auto* execution = std::get_if<Execution>(&response)) {
    for (const ResponseItem& item : execution->items) {
      event.last_rank = item.last_rank;
      event.late_by = item.late_by;
      tell(PendingOf(item));
    }
  } else if (const auto* failure = std::get_if<Failure>(&response)) {
    if (!Concerns(failure->ranks, place_.rank)) return;
    event.status = &failure->error;
    event.last_rank = failure->last_rank;
    event.late_by = failure->late_by;
    tell(table_.Peek(failure->name));
  } else if (const auto* end = std::get_if<JoinEnd>(&response)) {
    if (!Concerns(end->ranks, place_.rank) || !table_.has_join()) return;
    event.status = &end->error;
    tell(&table_.join());
  }
}

const PendingRequest* Worker::PendingOf(const ResponseItem& item) const {
  if (item.cached_id == 0) return table_.Peek(item.name);
  const KnownRequest* known = table_.Find(item.cached_id);
  return known == nullptr ? nullptr : known->named->pending.get();
}

void Worker::TellBegun(const std::vector<ReadyRequest>& ready) {
  Event event;
  event.step = Event::Step::kBegun;
  event.time = log_->Now();
  event.collective_id = num_run_;
  event.is_first = true;
  for (const ReadyRequest& one : ready) {
    event.request = &one.pending->request;
    event.is_neutral = one.is_neutral;
    log_->Tell(event);
    event.is_first = false;
  }
}

bool Worker::Progress(int64_t max_bytes) {
  if (!broken_.ok()) return false;
  const Status planes = planes_.Poll();
  if (!planes.ok()) Break(planes);
  // Check who is gone before reading: what they sent before still counts.
  const Status peers = membership_->CheckPeers();
  CheckStalls();
  std::vector<Response> responses;
  Status status;
  // A leader first runs what it has announced: until then other ranks may wait
  // for it in a collective and read no more.
  if (!negotiator_.is_leader() || responses_.empty()) {
    status = negotiator_.Exchange(&responses);
  }
  for (Response& response : responses) {
    TellNegotiated(response);
    responses_.push_back(std::move(response));
  }
  bool worked = false;
  if (status.ok() && !responses_.empty() &&
      (max_bytes == kNoLimit || IsSmall(responses_.front(), max_bytes))) {
    const Response response = std::move(responses_.front());
    responses_.pop_front();
    ++num_run_;
    status = std::visit([this](const auto& one) { return Run(one); }, response);
    worked = true;
  }
  if (!status.ok()) {
    Break(status);
  } else if (!peers.ok() && responses_.empty() && must_watch()) {
    Break(peers);
  }
  return worked;
}

bool Worker::has_request(const std::string& name) const {
  if (table_.Peek(name) != nullptr) return true;
  const auto misplaced = misplaced_.find(name);
  return misplaced != misplaced_.end() &&
         Clock::now() - misplaced->second < kMisplacedFor;
}

std::vector<Completion> Worker::TakeFinished() {
  return std::exchange(finished_, {});
}

// An estimate is enough: `max_bytes` is a round number.
bool Worker::IsSmall(const Response& response, int64_t max_bytes) {
  const auto* execution = std::get_if<Execution>(&response);
  if (execution == nullptr) return true;
  int64_t num_bytes = 0;
  for (const ResponseItem& item : execution->items) {
    const RequestParams* params = ParamsOfItem(item);
    if (params == nullptr) continue;
    if (!planes_.Of(params->device)->is_for_callers()) return false;
    num_bytes += params->num_bytes();
  }
  return num_bytes <= max_bytes;
}

const RequestParams* Worker::ParamsOfItem(const ResponseItem& item) const {
  if (item.cached_id != 0) {
    const KnownRequest* known = table_.Find(item.cached_id);
    return known == nullptr ? nullptr : known->params.get();
  }
  const PendingRequest* pending = table_.Peek(item.name);
  return pending == nullptr ? item.params.get() : pending->params.get();
}

Status Worker::FindReady(const ResponseItem& item, ReadyRequest* ready) {
  const KnownRequest* known =
      item.cached_id == 0 ? nullptr : table_.Find(item.cached_id);
  if (item.cached_id != 0 && known == nullptr) {
    return Status::Internal("the coordinator sent unknown id " +
                            std::to_string(item.cached_id));
  }
  if (const RequestParams* params = ParamsOfItem(item);
      known == nullptr && params != nullptr) {
    HVD_RETURN_IF_ERROR(CheckRows(*params, place_, item));
  }
  const std::string& name = known == nullptr ? item.name : known->name;
  ready->pending = known == nullptr ? table_.Take(name) : table_.Take(*known);
  if (ready->pending == nullptr) {
    const RequestParams* params = ParamsOfItem(item);
    if (!table_.has_join() || params == nullptr) {
      return Status::Internal("the coordinator runs '" + name +
                              "', which this rank has not submitted");
    }
    *ready = MakeNeutral(name, *params);
  }
  ready->pending->collective_id = num_run_;
  ready->pending->has_begun = true;
  if (HasRows(ready->pending->request.kind)) {
    ready->rows = known == nullptr ? item.rows : known->rows;
    ready->host_rows = known == nullptr ? item.host_rows : known->host_rows;
  }
  ready->member = static_cast<size_t>(membership_->members().rank());
  if (item.new_id != 0) {
    table_.Remember(item.new_id, item, ready->pending->params);
  }
  return Status::Ok();
}

Status Worker::Run(const Execution& execution) {
  std::vector<ReadyRequest> ready;
  ready.reserve(execution.items.size());
  Status status;
  for (const ResponseItem& item : execution.items) {
    ready.emplace_back();
    status = FindReady(item, &ready.back());
    if (status.ok()) continue;
    ready.pop_back();
    break;
  }
  TellBegun(ready);
  if (status.ok() && !ready.empty()) {
    RunOptions options;
    options.global_ranks = &options_.global_ranks;
    options.divisor = execution.divisor;
    const PhaseTeller teller(log_, num_run_,
                             ready[0].pending->request.process_set_id);
    status = planes_.Of(ready[0].pending->params->device)->Run(options, &ready);
  }
  const Clock::time_point now = log_->Now();
  for (ReadyRequest& one : ready) {  // what has ended
    if (one.is_neutral) continue;
    Finish(std::move(one.pending), status.ok() ? one.outcome : status, now);
  }
  return status;
}

Status Worker::Run(const Failure& failure) {
  if (!Concerns(failure.ranks, place_.rank)) return Status::Ok();
  if (failure.is_misplaced) misplaced_[failure.name] = Clock::now();
  std::unique_ptr<PendingRequest> pending = table_.Take(failure.name);
  if (pending != nullptr) pending->collective_id = num_run_;
  Finish(std::move(pending), failure.error);
  return Status::Ok();
}

Status Worker::Run(const Eviction& eviction) {
  for (const IdRun& run : eviction.ids) {
    for (uint32_t i = 0; i < run.count; ++i) table_.Forget(run.first + i);
  }
  RankMessage message;
  message.type = RankMessage::Type::kForgotten;
  message.ids = eviction.ids;
  return negotiator_.Say(message);
}

Status Worker::Run(const JoinEnd& end) {
  if (!Concerns(end.ranks, place_.rank)) return Status::Ok();
  if (!table_.has_join()) {
    return Status::Internal(
        "the coordinator ended a join that this rank has not submitted");
  }
  std::unique_ptr<PendingRequest> join = table_.TakeJoin();
  join->collective_id = num_run_;
  Status outcome = end.error;
  if (outcome.ok() && join->request.take_values != nullptr) {
    outcome = join->request.take_values({end.last_rank});
  }
  Finish(std::move(join), outcome);
  return Status::Ok();
}

Status Worker::Run(const Query& query) {
  if (!Concerns(query.ranks, place_.rank)) return Status::Ok();
  RankMessage message;
  message.type = RankMessage::Type::kElsewhere;
  message.name = query.name;
  if (options_.pending_elsewhere != nullptr) {
    const std::vector<int> waiting(query.waiting.begin(), query.waiting.end());
    message.process_set_id = options_.pending_elsewhere(message.name, waiting);
  }
  return negotiator_.Say(message);
}

Status Worker::Run(const Tunables& tuned) {
  cycle_time_us_->store(tuned.cycle_time_us);
  if (options_.tuning != nullptr) {
    options_.tuning->NoteChange({num_run_, tuned});
  }
  return Status::Ok();
}

void Worker::Finish(std::unique_ptr<PendingRequest> pending,
                    const Status& status, Clock::time_point time) {
  hvd::Finish(std::move(pending), status, time, global_rank(), log_,
              &finished_);
}

void Worker::FailAll(const Status& status) {
  planes_.End(status);
  for (std::unique_ptr<PendingRequest>& pending : table_.TakeAll()) {
    Finish(std::move(pending), status);
  }
}

void Worker::Break(const Status& status) {
  if (broken_.ok()) {
    broken_ = status;
    responses_.clear();
    // The others know of a shutdown already, and need not know of a removal.
    if (status.code() != StatusCode::kShutdown) {
      membership_->DeclareBroken(status);
      if (links_ != nullptr) links_->TellLosses();
    }
  }
  FailAll(broken_);
}

void Worker::CheckStalls() {
  const Clock::time_point now = Clock::now();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + kStallCheckInterval;
  if (membership_->members().rank() == 0) first_rank_.NoteLooks(now);
  const Status leader = first_rank_.CheckAlive(now);
  if (!leader.ok() && must_watch()) return Break(leader);
  const PendingRequest* oldest = table_.Oldest();
  std::vector<std::string> warnings;
  const Status status = negotiator_.CheckStalls(
      now,
      oldest == nullptr ? std::nullopt : std::make_optional(oldest->admitted),
      &warnings);
  for (const std::string& line : warnings) LogWarning(global_rank(), line);
  if (oldest != nullptr) WarnOfFirst(now, now - oldest->admitted);
  if (!status.ok()) Break(status);
}

void Worker::WarnOfFirst(Clock::time_point now,
                         std::chrono::duration<double> waited) {
  const double patience = options_.stall_warning_seconds;
  if (membership_->members().rank() == 0 || patience <= 0 ||
      waited.count() < patience) {
    return;
  }
  const std::chrono::duration<double> silence(
      std::clamp(patience, kFewestSilentSeconds, kMostSilentSeconds));
  const std::string line = first_rank_.WarnOfSilence(
      now, std::chrono::duration_cast<std::chrono::milliseconds>(silence));
  if (!line.empty()) LogWarning(global_rank(), line);
}

}  // namespace hvd
