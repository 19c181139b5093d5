#include "tf_ops/engine/engine.h"

#include <sys/prctl.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <utility>

#include "tf_ops/collectives/hierarchical/hierarchical_collectives.h"
#include "tf_ops/collectives/host/host_collectives.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/completion_queue.h"
#include "tf_ops/engine/data_planes.h"
#include "tf_ops/engine/event_log.h"
#include "tf_ops/engine/schedule.h"
#include "tf_ops/engine/worker.h"
#include "tf_ops/host/host_group.h"
#include "tf_ops/negotiation/tensor_rows.h"
#include "tf_ops/negotiation/tuning.h"

namespace hvd {
namespace {

using std::chrono::microseconds;

EngineOptions WithRanks(EngineOptions options, const HostLayout& layout,
                        int size) {
  options.hosts.clear();
  for (int host = 0; host < layout.num_hosts(); ++host) {
    options.hosts.resize(static_cast<size_t>(size));
    for (int rank : layout.ranks[static_cast<size_t>(host)]) {
      options.hosts[static_cast<size_t>(rank)] = host;
    }
  }
  if (options.global_ranks.empty()) {
    options.global_ranks.resize(static_cast<size_t>(size));
    std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
  }
  return options;
}

int64_t CycleTimeOf(const EngineOptions& options) {
  return options.tuning != nullptr
             ? options.tuning->options().begin.cycle_time_us
             : static_cast<int64_t>(options.cycle_time_ms * 1000);
}

std::unique_ptr<Collectives> MakeCollectives(HostGroup* group,
                                             const HostLayout& layout) {
  if (layout.num_hosts() < 2) {
    return std::make_unique<HostCollectives>(group->slabs());
  }
  return std::make_unique<HierarchicalCollectives>(
      group->slabs(), group->control(), group->membership(), layout);
}

std::string KindAndName(const Request& request) {
  return std::string(CollectiveKindName(request.kind)) + " '" + request.name +
         "'";
}

// Any thread calls Submit. The worker belongs to the thread that holds
// `work_mu_`, mostly the engine's own, `thread_`. A submitting thread may take
// it for a moment: if a small collective is ready very soon, this saves waking
// the engine's thread and the completion thread.
class EngineImpl : public Engine {
 public:
  EngineImpl(std::shared_ptr<HostGroup> group, const EngineOptions& options,
             const HostLayout& layout, std::unique_ptr<ControlLinks> links);
  ~EngineImpl() override { Shutdown("the engine was destroyed"); }

  void Submit(Request request) override EXCLUDES(mu_, work_mu_);
  void Shutdown(const std::string& reason) override EXCLUDES(mu_);
  void Remove(const std::string& reason) override EXCLUDES(mu_);
  std::optional<bool> IsInFlight(const std::string& name,
                                 std::chrono::milliseconds patience) override
      EXCLUDES(mu_, work_mu_);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  EngineStats stats() const override { return log_.stats(); }
  const EngineOptions& options() const override { return options_; }
  std::shared_ptr<Membership> membership() const override {
    return {group_, membership_};
  }
  void NoteExitReason(const std::string& reason) override {
    membership_->NoteExitReason(reason);
  }
  void NoteFailure(const std::string& reason) override {
    membership_->NoteFailure(reason);
  }

 private:
  void Run() EXCLUDES(mu_, work_mu_);
  // Ends a request that the engine does not take.
  void Refuse(const Request& request, const Status& why);
  // After Shutdown or Remove it fails and leaves `*request` as it is.
  // `*has_enough`: enough has come to stop gathering.
  Status Enqueue(Request* request, bool* has_enough) EXCLUDES(mu_);
  // Makes pending and later requests fail with `why`. False if they already do.
  bool RefuseMore(const Status& why) EXCLUDES(mu_);
  void Stop();
  // Hands the worker what was submitted.
  void AdmitSubmitted() REQUIRES(work_mu_) EXCLUDES(mu_);
  // With HVD_CYCLE_TIME: if a request has come, waits for more.
  void WaitForCycle() EXCLUDES(mu_, work_mu_);
  // Returns what to call back. `*must_ring`: the engine's thread must go on.
  std::vector<Completion> WorkAsCaller(bool* must_ring) REQUIRES(work_mu_);

  const std::shared_ptr<HostGroup> group_;
  const std::unique_ptr<ControlLinks> links_;  // null: not needed
  const std::unique_ptr<Collectives> collectives_;
  const int rank_;
  const int size_;
  Doorbell* const doorbell_;
  Crowd* const crowd_;
  Membership* const membership_;
  const EngineOptions options_;
  EventLog log_;
  std::atomic<int64_t> cycle_time_us_;
  CompletionQueue completions_;

  Mutex mu_;  // held for a moment at a time
  std::vector<Request> submitted_ GUARDED_BY(mu_);
  int64_t submitted_bytes_ GUARDED_BY(mu_) = 0;
  Status stopped_ GUARDED_BY(mu_);  // not ok: why Submit fails

  Mutex work_mu_;  // held while collectives run; lock before `mu_`
  DataPlanes planes_ GUARDED_BY(work_mu_);
  Worker worker_ GUARDED_BY(work_mu_);
  std::vector<Request> admitted_ GUARDED_BY(work_mu_);  // empty between calls
  Patience patience_ GUARDED_BY(work_mu_);

  Mutex join_mu_;
  std::atomic<bool> gathering_{false};  // the engine's thread will look soon
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> num_submitted_{0};
  std::thread thread_;  // last: it uses all of the above
};

EngineImpl::EngineImpl(std::shared_ptr<HostGroup> group,
                       const EngineOptions& options, const HostLayout& layout,
                       std::unique_ptr<ControlLinks> links)
    : group_(std::move(group)),
      links_(std::move(links)),
      collectives_(MakeCollectives(group_.get(), layout)),
      rank_(collectives_->rank()),
      size_(collectives_->size()),
      doorbell_(group_->doorbell()),
      crowd_(group_->crowd()),
      membership_(group_->membership()),
      options_(WithRanks(options, layout, size_)),
      log_(options.observers),
      cycle_time_us_(CycleTimeOf(options)),
      planes_(collectives_.get(), membership_, doorbell_, options_, &log_),
      worker_(&planes_, group_->control(), links_.get(), membership_, rank_,
              options_, &log_, &cycle_time_us_) {
  group_->set_wait_timeout(std::chrono::milliseconds(
      static_cast<int64_t>(options.stall_timeout_seconds * 1000)));
  group_->set_wait_warning(std::chrono::milliseconds(
      static_cast<int64_t>(options.stall_warning_seconds * 1000)));
  thread_ = std::thread([this] { Run(); });
}

void EngineImpl::Refuse(const Request& request, const Status& why) {
  Event event;
  event.step = Event::Step::kEnded;
  event.request = &request;
  event.status = &why;
  event.is_refused = true;
  log_.Tell(event);
  request.done(why);
}

void EngineImpl::Submit(Request request) {
  static std::atomic<uint64_t> last_number{0};
  request.number = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
  request.submitted = Clock::now();
  num_submitted_.fetch_add(1, std::memory_order_relaxed);
  const bool is_bare = request.kind == CollectiveKind::kBarrier ||
                       request.kind == CollectiveKind::kJoin;
  if (request.name.empty() || request.tensors.empty() != is_bare) {
    const std::string must = is_bare
                                 ? " must have a name and no tensor"
                                 : " must have a name and at least one tensor";
    return Refuse(request,
                  Status::InvalidArgument(KindAndName(request) + must));
  }
  const bool is_on_gpu = request.gpu.ordinal >= 0;
  if (request.failure.ok()) {
    request.failure = PrepareSubmit(options_, rank(), size(), &request);
  }
  Status taken;
  // Others hear of a death while they wait for peers; a rank that is alone in
  // its process set never does.
  if (size() == 1) {
    taken = membership_->CheckPeers().WithContext(KindAndName(request));
  }
  bool has_enough = false;  // to end the gathering
  if (taken.ok()) taken = Enqueue(&request, &has_enough);
  if (!taken.ok()) return Refuse(request, taken);
  std::vector<Completion> finished;
  bool must_ring = true;
  // A thread that feeds a GPU must not be held up.
  if (!is_on_gpu && cycle_time_us_.load() <= 0) {
    if (crowd_->is_crowded()) {
      must_ring = has_enough || !gathering_.load();
    } else if (work_mu_.try_lock()) {
      finished = WorkAsCaller(&must_ring);
      work_mu_.unlock();
    }
  }
  if (must_ring) doorbell_->RingOwn();
  for (Completion& completion : finished) completion.done(completion.status);
}

Status EngineImpl::Enqueue(Request* request, bool* has_enough) {
  MutexLock lock(&mu_);
  if (!stopped_.ok()) {
    return Status::NotInitialized(KindAndName(*request) +
                                  " was submitted after " + stopped_.message());
  }
  submitted_bytes_ += static_cast<int64_t>(NumBytes(*request));
  *has_enough = submitted_bytes_ >= kEnoughBytes;
  submitted_.push_back(std::move(*request));
  return Status::Ok();
}

std::optional<bool> EngineImpl::IsInFlight(const std::string& name,
                                           std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  while (!work_mu_.try_lock()) {
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(microseconds(100));
  }
  bool found = worker_.has_request(name);
  work_mu_.unlock();
  MutexLock lock(&mu_);
  for (const Request& request : submitted_) {
    found = found || request.name == name;
  }
  return found;
}

// The two lists take turns, so that a thousand requests make neither grow anew.
void EngineImpl::AdmitSubmitted() {
  {
    MutexLock lock(&mu_);
    submitted_bytes_ = 0;
    submitted_.swap(admitted_);
  }
  worker_.Admit(&admitted_);
  admitted_.clear();
}

std::vector<Completion> EngineImpl::WorkAsCaller(bool* must_ring) {
  if (stopping_.load()) return {};
  const std::chrono::nanoseconds patience = patience_.Next();
  Clock::time_point end;  // of the wait for other ranks, if there is one
  bool waited = false;
  bool is_large = false;
  doorbell_->BeginWatch();
  uint32_t ticket;
  bool go_on;
  do {
    ticket = doorbell_->Ticket();
    AdmitSubmitted();
    while (worker_.Progress(kMaxBytesOfCaller)) {
    }
    if (worker_.has_responses()) {  // too large for this thread
      is_large = true;
      break;
    }
    if (!worker_.has_requests()) {
      go_on = doorbell_->Ticket() != ticket;
      continue;
    }
    if (!waited) end = Clock::now() + patience;
    waited = true;
    go_on = Clock::now() < end && doorbell_->Watch(ticket, end);
  } while (go_on);
  if (waited && !is_large && patience.count() > 0) {
    patience_.Learn(!worker_.has_requests());
  }
  doorbell_->EndWatch();
  // The engine's thread takes over what is left, and what was submitted
  // meanwhile: during the watch its ring woke nobody.
  *must_ring = worker_.has_requests() || is_large || stopping_.load() ||
               doorbell_->Ticket() != ticket;
  crowd_->Set(worker_.num_requests() >= kManyRequests);
  return worker_.TakeFinished();
}

void EngineImpl::Shutdown(const std::string& reason) {
  MutexLock join_lock(&join_mu_);
  const std::string who =
      std::to_string(membership_->members().own_global_rank());
  if (!RefuseMore(Status::Shutdown("shutdown() was called on rank " + who))) {
    return;
  }
  // Peers can already read all they need of finished collectives, which end
  // only after this rank's last post. A running collective is given up, as the
  // peers may not come. This precedes Leave: else this rank would hear from the
  // peers that they have lost a rank.
  membership_->Interrupt("shutdown() was called while the collective ran");
  membership_->Leave(reason);
  Stop();
}

void EngineImpl::Remove(const std::string& reason) {
  MutexLock join_lock(&join_mu_);
  if (!RefuseMore(Status::Shutdown(reason))) return;
  membership_->Interrupt(reason);
  Stop();
}

bool EngineImpl::RefuseMore(const Status& why) {
  MutexLock lock(&mu_);
  if (!stopped_.ok()) return false;
  stopped_ = why;
  return true;
}

void EngineImpl::Stop() {
  stopping_.store(true);
  doorbell_->RingOwn();
  thread_.join();
}

// Sleeps without a lock, so that others may use the engine meanwhile.
void EngineImpl::WaitForCycle() {
  const microseconds time(cycle_time_us_.load());
  if (time.count() <= 0) return;
  {
    MutexLock lock(&mu_);
    if (submitted_.empty()) return;
  }
  std::this_thread::sleep_for(time);
}

void EngineImpl::Run() {
  (void)prctl(PR_SET_NAME, "hvd_engine");
  uint64_t last_num_submitted = 0;
  while (true) {
    // Read before `stopping_`, which is set before its ring.
    const uint32_t ticket = doorbell_->Ticket();
    if (stopping_.load()) break;
    WaitForCycle();
    bool worked;
    size_t num_requests;
    bool must_watch;
    {
      MutexLock lock(&work_mu_);
      AdmitSubmitted();
      worked = worker_.Progress(kNoLimit);
      num_requests = worker_.num_requests();
      crowd_->Set(num_requests >= kManyRequests);
      must_watch = worker_.must_watch();
      completions_.Push(worker_.TakeFinished());
    }
    if (worked) continue;
    const uint64_t num_submitted = num_submitted_.load();
    const bool more_came = num_submitted != last_num_submitted;
    last_num_submitted = num_submitted;
    if (more_came && crowd_->is_crowded()) {
      gathering_.store(true);
      doorbell_->Wait(ticket, kGatherTime, /*spin=*/false);
      gathering_.store(false);
    } else {
      doorbell_->Wait(ticket, must_watch ? kPendingSleep : kIdleSleep,
                      /*spin=*/num_requests > 0);
    }
  }
  Status why;
  {
    MutexLock lock(&mu_);
    why = Status::Shutdown(stopped_.message() +
                           " while the collective was in flight");
  }
  MutexLock lock(&work_mu_);
  AdmitSubmitted();
  worker_.FailAll(why);
  crowd_->Set(false);
  completions_.Push(worker_.TakeFinished());
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(std::shared_ptr<HostGroup> group,
                                       const EngineOptions& options,
                                       const HostLayout& layout,
                                       std::unique_ptr<ControlLinks> links) {
  return std::make_unique<EngineImpl>(std::move(group), options, layout,
                                      std::move(links));
}

}  // namespace hvd
