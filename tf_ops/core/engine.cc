#include "tf_ops/core/engine.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>

#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/core/completion_queue.h"
#include "tf_ops/core/executor.h"
#include "tf_ops/core/negotiator.h"
#include "tf_ops/core/request_table.h"
#include "tf_ops/transport/transport.h"

namespace hvd {
namespace {

using std::chrono::microseconds;

// How long the engine sleeps at most: while something is pending it has to
// look for stalls.
constexpr microseconds kIdleSleep{1000000};
constexpr microseconds kPendingSleep{100000};
// A rank blames a silent coordinator this much after the coordinator itself
// would have spoken.
constexpr double kCoordinatorGraceSeconds = 3.0;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

CoordinatorOptions AsCoordinatorOptions(const EngineOptions& options) {
  CoordinatorOptions result;
  result.fusion_threshold_bytes = options.fusion_threshold_bytes;
  result.cache_capacity = options.cache_capacity;
  result.stall_warning_seconds = options.stall_warning_seconds;
  result.stall_timeout_seconds = options.stall_timeout_seconds;
  return result;
}

// Threads: any thread calls Submit; `thread_` owns everything that is not
// guarded by `mu_` or atomic; callbacks run on the completion queue's thread.
class EngineImpl : public Engine {
 public:
  EngineImpl(std::unique_ptr<Transport> transport,
             const EngineOptions& options);
  ~EngineImpl() override { Shutdown("the engine was destroyed"); }

  void Submit(Request request) override EXCLUDES(mu_);
  void Shutdown(const std::string& reason) override EXCLUDES(mu_);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  EngineStats stats() const override;
  void NoteExitReason(const std::string& reason) override {
    transport_->NoteExitReason(reason);
  }

 private:
  void Run();
  bool TakeSubmissions() EXCLUDES(mu_);
  void CheckStalls();
  Status RunResponses();
  Status RunResponse(const Response& response);
  Status RunItems(const Response& response);
  void Forget(const Response& response);
  void Finish(std::unique_ptr<PendingRequest> pending, const Status& status,
              std::vector<Completion>* completions);
  void FailPending(const Status& status);
  void Break(const Status& status);
  void Log(const std::string& text) const;

  const std::unique_ptr<Transport> transport_;
  const EngineOptions options_;
  const int rank_;
  const int size_;
  CompletionQueue completions_;

  Mutex mu_;
  std::vector<Request> submitted_ GUARDED_BY(mu_);
  bool stop_ GUARDED_BY(mu_) = false;
  Mutex join_mu_;
  std::atomic<bool> stopping_{false};

  // The engine's thread alone:
  RequestTable table_;
  Negotiator negotiator_;
  std::vector<Response> responses_;  // to be run
  Status broken_;                    // why nothing works any more
  bool warned_of_coordinator_ = false;

  std::atomic<uint64_t> num_requests_{0};
  std::atomic<uint64_t> num_collectives_{0};
  std::atomic<uint64_t> num_bytes_{0};
  std::atomic<uint64_t> num_cache_hits_{0};
  std::atomic<uint64_t> num_cache_misses_{0};

  std::thread thread_;  // last: it uses all of the above
};

EngineImpl::EngineImpl(std::unique_ptr<Transport> transport,
                       const EngineOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      rank_(transport_->rank()),
      size_(transport_->size()),
      negotiator_(transport_.get(), AsCoordinatorOptions(options)) {
  transport_->set_wait_timeout(std::chrono::milliseconds(
      static_cast<int64_t>(options.stall_timeout_seconds * 1000)));
  thread_ = std::thread([this] { Run(); });
}

void EngineImpl::Submit(Request request) {
  num_requests_.fetch_add(1, std::memory_order_relaxed);
  Status status;
  if (request.name.empty() || request.tensors.empty()) {
    status = Status::InvalidArgument(
        std::string(CollectiveKindName(request.kind)) + " '" + request.name +
        "' must have a name and at least one tensor");
  }
  if (status.ok()) {
    MutexLock lock(&mu_);
    if (!stop_) {
      submitted_.push_back(std::move(request));
    } else {
      status = Status::NotInitialized(
          std::string(CollectiveKindName(request.kind)) + " '" + request.name +
          "' came after shutdown()");
    }
  }
  if (status.ok()) {
    transport_->RingOwnDoorbell();
  } else {
    request.done(status);
  }
}

void EngineImpl::Shutdown(const std::string& reason) {
  MutexLock join_lock(&join_mu_);
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  // Whatever this rank owes its peers is in their sight already: it finishes a
  // collective only after its last post. One that it is in the middle of is
  // given up, for the peers may not come.
  transport_->Leave(reason);
  stopping_.store(true);
  transport_->Interrupt();
  thread_.join();
}

EngineStats EngineImpl::stats() const {
  EngineStats stats;
  stats.num_requests = num_requests_.load();
  stats.num_collectives = num_collectives_.load();
  stats.num_bytes = num_bytes_.load();
  stats.num_cache_hits = num_cache_hits_.load();
  stats.num_cache_misses = num_cache_misses_.load();
  return stats;
}

void EngineImpl::Run() {
  while (!stopping_.load()) {
    const uint32_t ticket = transport_->DoorbellTicket();
    // Look who is gone before reading what they said: their words count.
    const Status peers = transport_->CheckPeers();
    bool worked = TakeSubmissions();
    CheckStalls();
    Status status;
    if (broken_.ok()) status = negotiator_.Exchange(&responses_);
    worked = worked || !responses_.empty();
    if (status.ok()) status = RunResponses();
    if (!status.ok()) Break(status);
    if (!peers.ok() && !table_.empty()) Break(peers);
    if (worked) continue;
    const bool waiting = !table_.empty() || negotiator_.has_pending();
    transport_->WaitDoorbell(ticket, waiting ? kPendingSleep : kIdleSleep,
                             /*spin=*/!table_.empty());
  }
  TakeSubmissions();
  FailPending(Status::Shutdown("shutdown() was called on rank " +
                               std::to_string(rank_) +
                               " while the collective was in flight"));
}

// Says everything new in as few messages as can be.
bool EngineImpl::TakeSubmissions() {
  std::vector<Request> requests;
  {
    MutexLock lock(&mu_);
    requests.swap(submitted_);
  }
  if (requests.empty()) return false;
  if (options_.cycle_time_ms > 0) {
    std::this_thread::sleep_for(
        microseconds(static_cast<int64_t>(options_.cycle_time_ms * 1000)));
    MutexLock lock(&mu_);
    for (Request& late : submitted_) requests.push_back(std::move(late));
    submitted_.clear();
  }
  std::vector<IdRun> ready;
  std::vector<RankMessage> messages;
  for (Request& request : requests) {
    table_.Admit(std::move(request), &ready, &messages);
  }
  num_cache_hits_.store(table_.num_hits(), std::memory_order_relaxed);
  num_cache_misses_.store(table_.num_misses(), std::memory_order_relaxed);
  if (!broken_.ok()) {
    FailPending(broken_);
    return true;
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
  return true;
}

Status EngineImpl::RunResponses() {
  std::vector<Response> responses;
  responses.swap(responses_);
  for (const Response& response : responses) {
    HVD_RETURN_IF_ERROR(RunResponse(response));
  }
  return Status::Ok();
}

Status EngineImpl::RunResponse(const Response& response) {
  switch (response.type) {
    case Response::Type::kExecute:
      return RunItems(response);
    case Response::Type::kError: {
      std::vector<Completion> completions;
      Finish(table_.Take(response.items[0].name), response.error, &completions);
      completions_.Push(std::move(completions));
      return Status::Ok();
    }
    case Response::Type::kEvict:
      Forget(response);
      return Status::Ok();
  }
  return Status::Internal("unknown response");
}

Status EngineImpl::RunItems(const Response& response) {
  std::vector<ReadyRequest> ready;
  ready.reserve(response.items.size());
  for (const ResponseItem& item : response.items) {
    const KnownRequest* known =
        item.cached_id == 0 ? nullptr : table_.Find(item.cached_id);
    if (item.cached_id != 0 && known == nullptr) {
      return Status::Internal("the coordinator speaks of unknown id " +
                              std::to_string(item.cached_id));
    }
    const std::string& name = known == nullptr ? item.name : known->name;
    ReadyRequest one;
    one.pending = table_.Take(name);
    if (one.pending == nullptr) {
      return Status::Internal("the coordinator runs '" + name +
                              "', which this rank has not submitted");
    }
    one.first_dims = known == nullptr ? item.first_dims : known->first_dims;
    if (item.new_id != 0) {
      table_.Remember(item.new_id, item, one.pending->params);
    }
    ready.push_back(std::move(one));
  }
  const Status status = Execute(transport_.get(), ready);
  std::vector<Completion> completions;
  uint64_t num_bytes = 0;
  for (ReadyRequest& one : ready) {
    num_bytes += static_cast<uint64_t>(one.pending->params.num_bytes());
    Finish(std::move(one.pending), status, &completions);
  }
  num_collectives_.fetch_add(1, std::memory_order_relaxed);
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
  completions_.Push(std::move(completions));
  return status;
}

void EngineImpl::Forget(const Response& response) {
  for (const IdRun& run : response.ids) {
    for (uint32_t i = 0; i < run.count; ++i) table_.Forget(run.first + i);
  }
  RankMessage message;
  message.type = RankMessage::Type::kForgotten;
  message.ids = response.ids;
  const Status status = negotiator_.Say(message);
  if (!status.ok()) Break(status);
}

void EngineImpl::Finish(std::unique_ptr<PendingRequest> pending,
                        const Status& status,
                        std::vector<Completion>* completions) {
  if (pending == nullptr) return;  // this rank had not come
  if (status.ok() && pending->duplicates.empty()) {
    completions->push_back(
        Completion{std::move(pending->request.done), status});
    return;
  }
  const std::string what =
      std::string(CollectiveKindName(pending->request.kind)) + " '" +
      pending->request.name + "'";
  for (Request& duplicate : pending->duplicates) {
    const Status early = Status::InvalidArgument(
        "rank " + std::to_string(rank_) +
        " submitted it before its last call had finished");
    completions->push_back(
        Completion{std::move(duplicate.done),
                   (status.ok() ? early : status).WithContext(what)});
  }
  completions->push_back(
      Completion{std::move(pending->request.done), status.WithContext(what)});
}

void EngineImpl::FailPending(const Status& status) {
  std::vector<Completion> completions;
  for (std::unique_ptr<PendingRequest>& pending : table_.TakeAll()) {
    Finish(std::move(pending), status, &completions);
  }
  completions_.Push(std::move(completions));
}

void EngineImpl::Break(const Status& status) {
  if (broken_.ok()) {
    broken_ = status;
    responses_.clear();
    transport_->DeclareBroken(status.message());
  }
  FailPending(broken_);
}

void EngineImpl::CheckStalls() {
  for (const std::string& line : negotiator_.CheckStalls(Clock::now())) {
    Log("warning: " + line);
  }
  if (negotiator_.is_coordinator() || table_.empty()) {
    warned_of_coordinator_ = false;
    return;
  }
  const PendingRequest& oldest = table_.Oldest();
  const double waited = SecondsSince(oldest.submitted);
  const double warning = options_.stall_warning_seconds;
  const double timeout = options_.stall_timeout_seconds;
  const std::string text = "'" + oldest.request.name + "' waits on rank " +
                           std::to_string(rank_) +
                           ", and rank 0, the coordinator, does not answer";
  if (timeout > 0 && waited > timeout + kCoordinatorGraceSeconds) {
    Break(Status::Stalled(text));
  } else if (warning > 0 && !warned_of_coordinator_ &&
             waited > warning + kCoordinatorGraceSeconds) {
    warned_of_coordinator_ = true;
    Log("warning: " + text);
  }
}

void EngineImpl::Log(const std::string& text) const {
  std::fprintf(stderr, "[hvd_keras, rank %d] %s\n", rank_, text.c_str());
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(std::unique_ptr<Transport> transport,
                                       const EngineOptions& options) {
  return std::make_unique<EngineImpl>(std::move(transport), options);
}

}  // namespace hvd
