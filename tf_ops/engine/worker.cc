#include "tf_ops/engine/worker.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <utility>

#include "tf_ops/engine/finish.h"
#include "tf_ops/engine/gpu_executor.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kStallCheckInterval{100};
constexpr std::chrono::seconds kMisplacedFor{60};

CoordinatorOptions AsCoordinatorOptions(const EngineOptions& options) {
  CoordinatorOptions result;
  result.fusion_threshold_bytes = options.fusion_threshold_bytes;
  result.cache_capacity = options.cache_capacity;
  result.stalls.warning_seconds = options.stall_warning_seconds;
  result.stalls.timeout_seconds = options.stall_timeout_seconds;
  result.global_ranks = options.global_ranks;
  return result;
}

EngineOptions WithGlobalRanks(EngineOptions options, int size) {
  if (options.global_ranks.empty()) {
    options.global_ranks.resize(static_cast<size_t>(size));
    std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
  }
  return options;
}

}  // namespace

Worker::Worker(HostSlabs* slabs, ControlChannel* control,
               Membership* membership, Doorbell* doorbell,
               const EngineOptions& options)
    : slabs_(slabs),
      membership_(membership),
      doorbell_(doorbell),
      options_(WithGlobalRanks(options, membership->size())),
      negotiator_(control, AsCoordinatorOptions(options_)) {}

Worker::~Worker() = default;

// Says everything new in as few messages as can be.
void Worker::Admit(std::vector<Request> requests) {
  if (requests.empty()) return;
  const Clock::time_point now = Clock::now();
  if (table_.empty()) pending_since_ = now;
  std::vector<IdRun> ready;
  std::vector<RankMessage> messages;
  const bool had_joined = table_.has_join();
  for (Request& request : requests) {
    AdmitOne(std::move(request), now, &ready, &messages);
  }
  num_cache_hits_.store(table_.num_hits(), std::memory_order_relaxed);
  num_cache_misses_.store(table_.num_misses(), std::memory_order_relaxed);
  if (!broken_.ok()) {
    FailAll(broken_);
    return;
  }
  if (!ready.empty()) {
    messages.emplace_back();
    messages.back().type = RankMessage::Type::kReady;
    messages.back().ids = std::move(ready);
  }
  if (table_.has_join() && !had_joined) {
    // Last: what this rank has submitted before counts.
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
                      std::vector<IdRun>* ready,
                      std::vector<RankMessage>* messages) {
  if (!misplaced_.empty()) misplaced_.erase(request.name);
  if (request.gpu.ordinal >= 0 && request.failure.ok()) {
    if (gpu_ordinal_ < 0) gpu_ordinal_ = request.gpu.ordinal;
    request.gpu.is_second = request.gpu.ordinal != gpu_ordinal_;
  }
  if (table_.has_join()) {
    auto refused = std::make_unique<PendingRequest>();
    refused->request = std::move(request);
    Finish(std::move(refused),
           Status::InvalidArgument(
               "rank " + std::to_string(global_rank()) +
               " has joined; it may submit more when join has returned"));
  } else if (request.kind == CollectiveKind::kJoin) {
    table_.AdmitJoin(std::move(request));
  } else {
    table_.Admit(std::move(request), now, ready, messages);
  }
}

bool Worker::Progress(int64_t max_bytes) {
  if (!broken_.ok()) return false;
  if (gpu_ != nullptr && gpu_->is_broken()) Break(gpu_->status());
  // Look who is gone before reading what they said: their words count.
  const Status peers = membership_->CheckPeers();
  CheckStalls();
  std::vector<Response> responses;
  Status status;
  // The coordinator says more only when it owes nobody a collective, so that
  // all ranks are free to hear it.
  if (!negotiator_.is_coordinator() || responses_.empty()) {
    status = negotiator_.Exchange(&responses);
  }
  for (Response& response : responses) {
    responses_.push_back(std::move(response));
  }
  bool worked = false;
  if (status.ok() && !responses_.empty() &&
      (max_bytes == kNoLimit || NumBytes(responses_.front()) <= max_bytes)) {
    const Response response = std::move(responses_.front());
    responses_.pop_front();
    status = Run(response);
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

void Worker::MeasurePending() {
  if (pending_since_ == Clock::time_point() || !table_.empty()) return;
  const std::chrono::nanoseconds time = Clock::now() - pending_since_;
  pending_since_ = Clock::time_point();
  pending_ns_.fetch_add(static_cast<uint64_t>(time.count()),
                        std::memory_order_relaxed);
}

std::vector<Completion> Worker::TakeFinished() {
  if (!finished_.empty()) MeasurePending();
  return std::exchange(finished_, {});
}

void Worker::AddStats(EngineStats* stats) const {
  stats->num_collectives += num_collectives_.load();
  stats->num_bytes += num_bytes_.load();
  stats->num_cache_hits += num_cache_hits_.load();
  stats->num_cache_misses += num_cache_misses_.load();
  stats->pending_ns += pending_ns_.load();
}

// What it moves, roughly: it is compared with a round number.
int64_t Worker::NumBytes(const Response& response) const {
  if (response.type != Response::Type::kExecute) return 0;
  int64_t num_bytes = 0;
  for (const ResponseItem& item : response.items) {
    const RequestParams* params = ParamsOfItem(item);
    if (params == nullptr) continue;
    if (params->device != DeviceKind::kCpu) return kNoLimit;
    num_bytes += params->num_bytes();
  }
  return num_bytes;
}

// Of this rank, or what a rank that has joined goes by.
const RequestParams* Worker::ParamsOfItem(const ResponseItem& item) const {
  if (item.cached_id != 0) {
    const KnownRequest* known = table_.Find(item.cached_id);
    return known == nullptr ? nullptr : known->params.get();
  }
  const PendingRequest* pending = table_.Peek(item.name);
  return pending == nullptr ? item.params.get() : pending->params.get();
}

bool Worker::Concerns(const Response& response) const {
  return response.ranks.empty() ||
         std::find(response.ranks.begin(), response.ranks.end(),
                   membership_->rank()) != response.ranks.end();
}

Status Worker::Run(const Response& response) {
  if (!Concerns(response)) return Status::Ok();
  switch (response.type) {
    case Response::Type::kExecute:
      return RunItems(response);
    case Response::Type::kError:
      if (response.is_misplaced) {
        misplaced_[response.items[0].name] = Clock::now();
      }
      Finish(table_.Take(response.items[0].name), response.error);
      return Status::Ok();
    case Response::Type::kEvict:
      return Forget(response);
    case Response::Type::kJoined:
      return EndJoin(response);
    case Response::Type::kQuery:
      return AnswerQuery(response);
  }
  return Status::Internal("unknown response");
}

Status Worker::FindReady(const ResponseItem& item, ReadyRequest* ready) {
  const KnownRequest* known =
      item.cached_id == 0 ? nullptr : table_.Find(item.cached_id);
  if (item.cached_id != 0 && known == nullptr) {
    return Status::Internal("the coordinator speaks of unknown id " +
                            std::to_string(item.cached_id));
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
  ready->rows = known == nullptr ? item.rows : known->rows;
  if (item.new_id != 0) {
    table_.Remember(item.new_id, item, ready->pending->params);
  }
  return Status::Ok();
}

Status Worker::RunItems(const Response& response) {
  std::vector<ReadyRequest> ready;
  ready.reserve(response.items.size());
  Status status;
  for (const ResponseItem& item : response.items) {
    ReadyRequest one;
    status = FindReady(item, &one);
    if (!status.ok()) break;
    ready.push_back(std::move(one));
  }
  ExecuteOptions options;
  options.global_ranks = &options_.global_ranks;
  options.divisor = response.divisor;
  if (status.ok() && !ready.empty() &&
      ready[0].pending->params->device != DeviceKind::kCpu) {
    return RunOnGpu(options, std::move(ready));
  }
  if (status.ok()) status = Execute(slabs_, options, ready);
  uint64_t num_bytes = 0;
  for (ReadyRequest& one : ready) {
    num_bytes += static_cast<uint64_t>(one.pending->params->num_bytes());
    if (one.is_neutral) continue;
    if (status.ok() && one.pending->params->kind == CollectiveKind::kAlltoall) {
      const std::vector<int64_t> rows = ReceivedRows(one, membership_->rank());
      FinishWithValues(std::move(one.pending), rows);
    } else {
      Finish(std::move(one.pending), status);
    }
  }
  num_collectives_.fetch_add(1, std::memory_order_relaxed);
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
  return status;
}

Status Worker::RunOnGpu(const ExecuteOptions& options,
                        std::vector<ReadyRequest> ready) {
  if (gpu_ == nullptr) {
    gpu_ =
        std::make_unique<GpuExecutor>(slabs_, membership_, doorbell_, options_);
  }
  uint64_t num_bytes = 0;
  for (const ReadyRequest& one : ready) {
    num_bytes += static_cast<uint64_t>(one.pending->params->num_bytes());
  }
  num_collectives_.fetch_add(1, std::memory_order_relaxed);
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
  return gpu_->Launch(gpu_ordinal_, options, std::move(ready));
}

Status Worker::EndJoin(const Response& response) {
  if (!table_.has_join()) {
    return Status::Internal("the coordinator ends a join of others");
  }
  if (response.error.ok()) {
    FinishWithValues(table_.TakeJoin(), {response.last_rank});
  } else {
    Finish(table_.TakeJoin(), response.error);
  }
  return Status::Ok();
}

Status Worker::AnswerQuery(const Response& response) {
  RankMessage message;
  message.type = RankMessage::Type::kElsewhere;
  message.name = response.items[0].name;
  if (options_.pending_elsewhere != nullptr) {
    const std::vector<int> waiting(response.waiting.begin(),
                                   response.waiting.end());
    message.process_set_id = options_.pending_elsewhere(message.name, waiting);
  }
  return negotiator_.Say(message);
}

Status Worker::Forget(const Response& response) {
  for (const IdRun& run : response.ids) {
    for (uint32_t i = 0; i < run.count; ++i) table_.Forget(run.first + i);
  }
  RankMessage message;
  message.type = RankMessage::Type::kForgotten;
  message.ids = response.ids;
  return negotiator_.Say(message);
}

void Worker::FinishWithValues(std::unique_ptr<PendingRequest> pending,
                              const std::vector<int64_t>& values) {
  Status status;
  if (pending->request.take_values != nullptr) {
    status = pending->request.take_values(values);
  }
  Finish(std::move(pending), status);
}

void Worker::Finish(std::unique_ptr<PendingRequest> pending,
                    const Status& status) {
  hvd::Finish(std::move(pending), status, global_rank(), &finished_);
}

void Worker::FailAll(const Status& status) {
  if (gpu_ != nullptr) gpu_->End(status);
  for (std::unique_ptr<PendingRequest>& pending : table_.TakeAll()) {
    Finish(std::move(pending), status);
  }
}

void Worker::Break(const Status& status) {
  if (broken_.ok()) {
    broken_ = status;
    responses_.clear();
    // Of a shutdown the others have heard; of a removal they need not.
    if (status.code() != StatusCode::kShutdown) {
      membership_->DeclareBroken(status.message());
    }
  }
  FailAll(broken_);
}

void Worker::CheckStalls() {
  const Clock::time_point now = Clock::now();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + kStallCheckInterval;
  const PendingRequest* oldest = table_.Oldest();
  std::vector<std::string> warnings;
  const Status status = negotiator_.CheckStalls(
      now,
      oldest == nullptr ? std::nullopt : std::make_optional(oldest->submitted),
      &warnings);
  for (const std::string& line : warnings) Log("warning: " + line);
  if (!status.ok()) Break(status);
}

void Worker::Log(const std::string& text) const {
  std::fprintf(stderr, "[hvd_keras, rank %d] %s\n", global_rank(),
               text.c_str());
}

}  // namespace hvd
