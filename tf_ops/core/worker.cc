#include "tf_ops/core/worker.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tf_ops/core/executor.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kStallCheckInterval{100};
// How much later a rank blames the coordinator.
constexpr double kCoordinatorGraceSeconds = 3.0;

CoordinatorOptions AsCoordinatorOptions(const EngineOptions& options) {
  CoordinatorOptions result;
  result.fusion_threshold_bytes = options.fusion_threshold_bytes;
  result.cache_capacity = options.cache_capacity;
  result.stall_warning_seconds = options.stall_warning_seconds;
  result.stall_timeout_seconds = options.stall_timeout_seconds;
  return result;
}

}  // namespace

Worker::Worker(Transport* transport, const EngineOptions& options)
    : transport_(transport),
      options_(options),
      negotiator_(transport, AsCoordinatorOptions(options)) {}

// Says everything new in as few messages as can be.
void Worker::Admit(std::vector<Request> requests) {
  if (requests.empty()) return;
  std::vector<IdRun> ready;
  std::vector<RankMessage> messages;
  for (Request& request : requests) {
    table_.Admit(std::move(request), &ready, &messages);
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
  for (const RankMessage& message : messages) {
    const Status status = negotiator_.Say(message);
    if (!status.ok()) Break(status);
  }
}

bool Worker::Progress(int64_t max_bytes) {
  if (!broken_.ok()) return false;
  // Look who is gone before reading what they said: their words count.
  const Status peers = transport_->CheckPeers();
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

std::vector<Completion> Worker::TakeFinished() {
  return std::exchange(finished_, {});
}

void Worker::AddStats(EngineStats* stats) const {
  stats->num_collectives += num_collectives_.load();
  stats->num_bytes += num_bytes_.load();
  stats->num_cache_hits += num_cache_hits_.load();
  stats->num_cache_misses += num_cache_misses_.load();
}

// What it moves, roughly: it is compared with a round number.
int64_t Worker::NumBytes(const Response& response) const {
  if (response.type != Response::Type::kExecute) return 0;
  int64_t num_bytes = 0;
  for (const ResponseItem& item : response.items) {
    const KnownRequest* known =
        item.cached_id == 0 ? nullptr : table_.Find(item.cached_id);
    const PendingRequest* pending =
        table_.Peek(known == nullptr ? item.name : known->name);
    if (pending != nullptr) num_bytes += pending->params.num_bytes();
  }
  return num_bytes;
}

Status Worker::Run(const Response& response) {
  switch (response.type) {
    case Response::Type::kExecute:
      return RunItems(response);
    case Response::Type::kError:
      if (!response.ranks.empty() &&
          std::find(response.ranks.begin(), response.ranks.end(),
                    transport_->rank()) == response.ranks.end()) {
        return Status::Ok();
      }
      Finish(table_.Take(response.items[0].name), response.error);
      return Status::Ok();
    case Response::Type::kEvict:
      return Forget(response);
  }
  return Status::Internal("unknown response");
}

Status Worker::RunItems(const Response& response) {
  std::vector<ReadyRequest> ready;
  ready.reserve(response.items.size());
  const auto fail = [&](const std::string& text) {
    const Status status = Status::Internal(text);
    for (ReadyRequest& one : ready) Finish(std::move(one.pending), status);
    return status;
  };
  for (const ResponseItem& item : response.items) {
    const KnownRequest* known =
        item.cached_id == 0 ? nullptr : table_.Find(item.cached_id);
    if (item.cached_id != 0 && known == nullptr) {
      return fail("the coordinator speaks of unknown id " +
                  std::to_string(item.cached_id));
    }
    const std::string& name = known == nullptr ? item.name : known->name;
    ReadyRequest one;
    one.pending = table_.Take(name);
    if (one.pending == nullptr) {
      return fail("the coordinator runs '" + name +
                  "', which this rank has not submitted");
    }
    one.first_dims = known == nullptr ? item.first_dims : known->first_dims;
    if (item.new_id != 0) {
      table_.Remember(item.new_id, item, one.pending->params);
    }
    ready.push_back(std::move(one));
  }
  const Status status = Execute(transport_, ready);
  uint64_t num_bytes = 0;
  for (ReadyRequest& one : ready) {
    num_bytes += static_cast<uint64_t>(one.pending->params.num_bytes());
    Finish(std::move(one.pending), status);
  }
  num_collectives_.fetch_add(1, std::memory_order_relaxed);
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
  return status;
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

void Worker::Finish(std::unique_ptr<PendingRequest> pending,
                    const Status& status) {
  if (pending == nullptr) return;  // this rank had not come
  if (status.ok() && pending->duplicates.empty()) {
    finished_.push_back(Completion{std::move(pending->request.done), status});
    return;
  }
  const std::string what =
      std::string(CollectiveKindName(pending->request.kind)) + " '" +
      pending->request.name + "'";
  for (Request& duplicate : pending->duplicates) {
    const Status early = Status::InvalidArgument(
        "rank " + std::to_string(transport_->rank()) +
        " submitted it before its last call had finished");
    finished_.push_back(
        Completion{std::move(duplicate.done),
                   (status.ok() ? early : status).WithContext(what)});
  }
  finished_.push_back(
      Completion{std::move(pending->request.done), status.WithContext(what)});
}

void Worker::FailAll(const Status& status) {
  for (std::unique_ptr<PendingRequest>& pending : table_.TakeAll()) {
    Finish(std::move(pending), status);
  }
}

void Worker::Break(const Status& status) {
  if (broken_.ok()) {
    broken_ = status;
    responses_.clear();
    transport_->DeclareBroken(status.message());
  }
  FailAll(broken_);
}

void Worker::CheckStalls() {
  const Clock::time_point now = Clock::now();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + kStallCheckInterval;
  for (const std::string& line : negotiator_.CheckStalls(now)) {
    Log("warning: " + line);
  }
  if (!negotiator_.is_coordinator()) CheckCoordinator();
}

// The coordinator itself fails what has waited too long; only if it does not,
// it is the one that has stopped.
void Worker::CheckCoordinator() {
  const double timeout = options_.stall_timeout_seconds;
  if (table_.empty() || timeout <= 0) return;
  const PendingRequest& oldest = table_.Oldest();
  const std::chrono::duration<double> waited = Clock::now() - oldest.submitted;
  if (waited.count() < timeout + kCoordinatorGraceSeconds) return;
  Break(
      Status::Stalled("rank " + std::to_string(transport_->rank()) +
                      " waits, and rank 0, the coordinator, does not answer"));
}

void Worker::Log(const std::string& text) const {
  std::fprintf(stderr, "[hvd_keras, rank %d] %s\n", transport_->rank(),
               text.c_str());
}

}  // namespace hvd
