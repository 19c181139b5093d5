#include "tf_ops/core/engine.h"

#include <atomic>
#include <thread>
#include <utility>

#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/core/completion_queue.h"
#include "tf_ops/core/worker.h"
#include "tf_ops/transport/transport.h"

namespace hvd {
namespace {

using std::chrono::microseconds;

// How long the engine sleeps at most: while something is pending it has to
// look for stalls.
constexpr microseconds kIdleSleep{1000000};
constexpr microseconds kPendingSleep{100000};
// A thread that submits runs no more than this itself: it has other work.
constexpr int64_t kMaxBytesOfCaller = 64 << 10;

// Threads: any thread calls Submit. The worker belongs to the thread that
// holds `work_mu_`: mostly the engine's own, `thread_`; for a moment a thread
// that submits, which saves the wake-up of the engine, and of the completion
// thread, where a small collective is ready at once.
class EngineImpl : public Engine {
 public:
  EngineImpl(std::unique_ptr<Transport> transport,
             const EngineOptions& options);
  ~EngineImpl() override { Shutdown("the engine was destroyed"); }

  void Submit(Request request) override EXCLUDES(mu_, work_mu_);
  void Shutdown(const std::string& reason) override EXCLUDES(mu_);
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  EngineStats stats() const override;
  void NoteExitReason(const std::string& reason) override {
    transport_->NoteExitReason(reason);
  }

 private:
  void Run() EXCLUDES(mu_, work_mu_);
  bool Enqueue(Request* request) EXCLUDES(mu_);
  std::vector<Request> TakeSubmitted() EXCLUDES(mu_);
  // Returns what is to be called back; `*must_ring` if the engine's thread
  // has to go on.
  std::vector<Completion> WorkAsCaller(bool* must_ring) REQUIRES(work_mu_);

  const std::unique_ptr<Transport> transport_;
  const EngineOptions options_;
  CompletionQueue completions_;

  Mutex mu_;  // held for a moment at a time
  std::vector<Request> submitted_ GUARDED_BY(mu_);
  bool stop_ GUARDED_BY(mu_) = false;

  Mutex work_mu_;  // held while collectives run; before `mu_`
  Worker worker_ GUARDED_BY(work_mu_);

  Mutex join_mu_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> num_requests_{0};
  std::thread thread_;  // last: it uses all of the above
};

EngineImpl::EngineImpl(std::unique_ptr<Transport> transport,
                       const EngineOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      worker_(transport_.get(), options) {
  transport_->set_wait_timeout(std::chrono::milliseconds(
      static_cast<int64_t>(options.stall_timeout_seconds * 1000)));
  thread_ = std::thread([this] { Run(); });
}

void EngineImpl::Submit(Request request) {
  num_requests_.fetch_add(1, std::memory_order_relaxed);
  const auto what = [&request] {
    return std::string(CollectiveKindName(request.kind)) + " '" + request.name +
           "'";
  };
  if (request.name.empty() || request.tensors.empty()) {
    request.done(Status::InvalidArgument(
        what() + " must have a name and at least one tensor"));
    return;
  }
  if (!Enqueue(&request)) {
    request.done(Status::NotInitialized(what() + " came after shutdown()"));
    return;
  }
  std::vector<Completion> finished;
  bool must_ring = true;
  if (options_.cycle_time_ms <= 0 && work_mu_.try_lock()) {
    finished = WorkAsCaller(&must_ring);
    work_mu_.unlock();
  }
  if (must_ring) transport_->RingOwnDoorbell();
  for (Completion& completion : finished) completion.done(completion.status);
}

bool EngineImpl::Enqueue(Request* request) {
  MutexLock lock(&mu_);
  if (stop_) return false;
  submitted_.push_back(std::move(*request));
  return true;
}

std::vector<Request> EngineImpl::TakeSubmitted() {
  MutexLock lock(&mu_);
  return std::exchange(submitted_, {});
}

std::vector<Completion> EngineImpl::WorkAsCaller(bool* must_ring) {
  if (stopping_.load()) return {};
  worker_.Admit(TakeSubmitted());
  while (worker_.Progress(kMaxBytesOfCaller)) {
  }
  // Whoever found us here has rung.
  *must_ring = worker_.has_requests();
  return worker_.TakeFinished();
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

EngineStats EngineImpl::stats() const NO_THREAD_SAFETY_ANALYSIS {
  EngineStats stats;
  stats.num_requests = num_requests_.load();
  worker_.AddStats(&stats);
  return stats;
}

void EngineImpl::Run() {
  while (true) {
    // Before the look at `stopping_`: its ring comes after it was set.
    const uint32_t ticket = transport_->DoorbellTicket();
    if (stopping_.load()) break;
    bool worked;
    bool has_requests;
    bool must_watch;
    {
      MutexLock lock(&work_mu_);
      std::vector<Request> requests = TakeSubmitted();
      if (!requests.empty() && options_.cycle_time_ms > 0) {
        std::this_thread::sleep_for(
            microseconds(static_cast<int64_t>(options_.cycle_time_ms * 1000)));
        for (Request& late : TakeSubmitted()) {
          requests.push_back(std::move(late));
        }
      }
      worker_.Admit(std::move(requests));
      worked = worker_.Progress(kNoLimit);
      has_requests = worker_.has_requests();
      must_watch = worker_.must_watch();
      completions_.Push(worker_.TakeFinished());
    }
    if (worked) continue;
    transport_->WaitDoorbell(ticket, must_watch ? kPendingSleep : kIdleSleep,
                             /*spin=*/has_requests);
  }
  MutexLock lock(&work_mu_);
  worker_.Admit(TakeSubmitted());
  worker_.FailAll(Status::Shutdown("shutdown() was called on rank " +
                                   std::to_string(rank()) +
                                   " while the collective was in flight"));
  completions_.Push(worker_.TakeFinished());
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(std::unique_ptr<Transport> transport,
                                       const EngineOptions& options) {
  return std::make_unique<EngineImpl>(std::move(transport), options);
}

}  // namespace hvd
