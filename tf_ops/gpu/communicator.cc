#include "tf_ops/gpu/communicator.h"

#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/keep.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/gpu/libraries.h"

namespace hvd {
namespace {

// A collective that a lost rank has finished may finish here in a moment.
constexpr std::chrono::milliseconds kGrace{300};
// A call into NCCL mostly returns by itself before it must be aborted.
constexpr std::chrono::milliseconds kCallPatience{500};

// Polls often at first, since launches take microseconds, then less often.
class Poll {
 public:
  void Pause() {
    if (++num_pauses_ < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(
          std::chrono::microseconds(num_pauses_ < 1000 ? 20 : 500));
    }
  }

 private:
  int num_pauses_ = 0;
};

Status Unsuccessful(const NcclApi& nccl, int result, const std::string& what) {
  // The last error of the whole process, perhaps one that others have made.
  const char* const last = nccl.GetLastError(nullptr);
  std::string text = what + " failed: " + nccl.GetErrorString(result);
  if (last != nullptr && last[0] != '\0')
    text += std::string(" (") + last + ")";
  return Status::Internal(text);
}

}  // namespace

struct Communicator::Core {
  Core(const NcclApi& api, Gpu* on) : nccl(api), gpu(on) {}

  const NcclApi& nccl;
  Gpu* const gpu;
  Mutex mu;  // held for a moment at a time
  CondVar changed;
  NcclComm comm GUARDED_BY(mu) = nullptr;
  Status ended GUARDED_BY(mu);             // why `comm` is null
  bool is_in_call GUARDED_BY(mu) = false;  // a thread is in NCCL with `comm`
  bool is_ending GUARDED_BY(mu) = false;   // the thread that ends it runs
  bool is_left_behind GUARDED_BY(mu) = false;  // it hangs
  std::thread thread GUARDED_BY(mu);
};

// Lets one thread at a time be in NCCL with the communicator.
class Communicator::Visit {
 public:
  // With `waits`, waits for another thread's call; else ok() may be false.
  Visit(Core* core, bool waits) : core_(core) {
    MutexLock lock(&core_->mu);
    while (waits && core_->is_in_call) core_->changed.Wait(&core_->mu);
    is_busy_ = core_->is_in_call;
    if (is_busy_) return;
    comm_ = core_->comm;
    ended_ = core_->ended;
    core_->is_in_call = comm_ != nullptr;
  }
  ~Visit() {
    if (comm_ == nullptr) return;
    MutexLock lock(&core_->mu);
    core_->is_in_call = false;
    core_->changed.NotifyAll();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  bool is_busy() const { return is_busy_; }       // another thread is in NCCL
  NcclComm comm() const { return comm_; }         // null: it has ended
  const Status& ended() const { return ended_; }  // why
  // After a call: why it was aborted meanwhile, or ok.
  Status Outcome() const {
    MutexLock lock(&core_->mu);
    return core_->ended;
  }

 private:
  Core* const core_;
  NcclComm comm_ = nullptr;
  bool is_busy_ = false;
  Status ended_;
};

Communicator::Communicator(const NcclApi& nccl, Gpu* gpu)
    : nccl_(nccl), core_(std::make_shared<Core>(nccl, gpu)) {}

Status Communicator::MakeId(NcclUniqueId* id) {
  const NcclApi* nccl = nullptr;
  HVD_RETURN_IF_ERROR(OpenNccl(&nccl));
  const int result = nccl->GetUniqueId(id);
  if (result == kNcclSuccess) return Status::Ok();
  return Unsuccessful(*nccl, result, "ncclGetUniqueId");
}

Status Communicator::Create(Gpu* gpu, const NcclUniqueId& id, int rank,
                            int size, const Look& look,
                            std::unique_ptr<Communicator>* communicator) {
  const NcclApi* nccl = nullptr;
  HVD_RETURN_IF_ERROR(OpenNccl(&nccl));
  HVD_RETURN_IF_ERROR(gpu->Use());
  std::unique_ptr<Communicator> made(new Communicator(*nccl, gpu));
  NcclConfig config;
  NcclComm raw = nullptr;
  const int result = nccl->CommInitRankConfig(&raw, size, id, rank, &config);
  {
    MutexLock lock(&made->core_->mu);
    made->core_->comm = raw;
  }
  if (result != kNcclSuccess && result != kNcclInProgress) {
    return Unsuccessful(*nccl, result, "ncclCommInitRankConfig");
  }
  HVD_RETURN_IF_ERROR(made->WaitUntilDone(look).WithContext(
      "NCCL could not connect the GPUs of " + std::to_string(size) + " ranks"));
  *communicator = std::move(made);
  return Status::Ok();
}

Status Communicator::Split(bool is_member, int rank, const Look& look,
                           std::unique_ptr<Communicator>* part) {
  // NCCL may write it until the wait below has ended, or for ever if it hangs.
  const auto raw = std::make_shared<NcclComm>(nullptr);
  NcclConfig config;
  {
    const Visit visit(core_.get(), /*waits=*/true);
    if (visit.comm() == nullptr) return visit.ended();
    const int color = is_member ? 0 : kNcclSplitNoColor;
    HVD_RETURN_IF_ERROR(
        AsStatus(nccl_.CommSplit(visit.comm(), color, rank, raw.get(), &config),
                 "ncclCommSplit"));
  }
  const Status status = WaitUntilDone(look);
  if (!status.ok()) {
    // An abort ends NCCL's work, so that it no longer writes `raw`.
    Abort(status);
    if (!AwaitEnd(kEndPatience)) {
      KeepForever(raw);  // NCCL may still write it
      return status;
    }
  }
  if (*raw != nullptr) {
    part->reset(new Communicator(nccl_, core_->gpu));
    MutexLock lock(&(*part)->core_->mu);
    (*part)->core_->comm = *raw;
  }
  return status;
}

Communicator::~Communicator() {
  Abort(Status::Internal("the communicator was destroyed"));
  (void)AwaitEnd(kEndPatience);
}

Status Communicator::Run(const Calls& calls, const Look& look) {
  {
    const Visit visit(core_.get(), /*waits=*/true);
    if (visit.comm() == nullptr) return visit.ended();
    HVD_RETURN_IF_ERROR(AsStatus(nccl_.GroupStart(), "ncclGroupStart"));
    const Status status = calls(nccl_, visit.comm());
    // Even after an error: later calls of this thread would join the group.
    const int result = nccl_.GroupEnd();
    HVD_RETURN_IF_ERROR(visit.Outcome());
    HVD_RETURN_IF_ERROR(status);
    HVD_RETURN_IF_ERROR(AsStatus(result, "ncclGroupEnd"));
    if (result == kNcclSuccess) return Status::Ok();
  }
  return WaitUntilDone(look);
}

Status Communicator::WaitUntilDone(const Look& look) {
  Poll poll;
  std::optional<Clock::time_point> lost;  // when a rank was first seen gone
  while (true) {
    int state = kNcclSuccess;
    {
      const Visit visit(core_.get(), /*waits=*/true);
      if (visit.comm() == nullptr) return visit.ended();
      HVD_RETURN_IF_ERROR(
          AsStatus(nccl_.CommGetAsyncError(visit.comm(), &state),
                   "ncclCommGetAsyncError"));
    }
    if (state == kNcclSuccess) return Status::Ok();
    if (state != kNcclInProgress) return Unsuccessful(nccl_, state, "NCCL");
    const Status status = look();
    const bool is_lost = status.code() == StatusCode::kPeerLost;
    if (is_lost && !lost.has_value()) lost = Clock::now();
    if (!status.ok() && !(is_lost && Clock::now() - *lost < kGrace)) {
      return status;
    }
    poll.Pause();
  }
}

Status Communicator::CheckHealth() {
  const Visit visit(core_.get(), /*waits=*/false);
  if (visit.is_busy()) return Status::Ok();
  if (visit.comm() == nullptr) return visit.ended();
  int state = kNcclSuccess;
  HVD_RETURN_IF_ERROR(AsStatus(nccl_.CommGetAsyncError(visit.comm(), &state),
                               "ncclCommGetAsyncError"));
  if (state == kNcclSuccess || state == kNcclInProgress) return Status::Ok();
  return Unsuccessful(nccl_, state, "NCCL");
}

void Communicator::Abort(const Status& why) {
  EndOnThread(core_, nccl_.CommAbort, why);
}

void Communicator::Close(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  const Status closed = Status::Shutdown("the communicator was closed");
  Status status;
  {
    const Visit visit(core_.get(), /*waits=*/true);
    if (visit.comm() == nullptr) return;
    status = AsStatus(nccl_.CommFinalize(visit.comm()), "ncclCommFinalize");
  }
  if (status.ok()) {
    status = WaitUntilDone([end] {
      return Clock::now() < end ? Status::Ok() : Status::Stalled("");
    });
  }
  EndOnThread(core_, status.ok() ? nccl_.CommDestroy : nccl_.CommAbort, closed);
  (void)AwaitEnd(kEndPatience);
}

void Communicator::EndOnThread(const std::shared_ptr<Core>& core,
                               int (*end)(NcclComm), const Status& why) {
  NcclComm comm = nullptr;
  {
    MutexLock lock(&core->mu);
    if (core->comm == nullptr) return;
    comm = std::exchange(core->comm, nullptr);
    core->ended = why;
    core->is_ending = true;
  }
  const auto run = [core, end, comm] {
    {
      MutexLock lock(&core->mu);
      const Clock::time_point give_up = Clock::now() + kCallPatience;
      while (core->is_in_call && Clock::now() < give_up) {
        core->changed.WaitFor(&core->mu, kCallPatience);
      }
    }
    // If that fails, the call below does too.
    (void)core->gpu->Use();
    end(comm);
    MutexLock lock(&core->mu);
    core->is_ending = false;
    if (core->is_left_behind) core->gpu->NoteHanging(-1);
    core->changed.NotifyAll();
  };
  MutexLock lock(&core->mu);
  try {
    core->thread = std::thread(run);
  } catch (const std::system_error&) {
    // Too many threads: NCCL keeps what it has, and AwaitEnd tells.
  }
}

bool Communicator::AwaitEnd(std::chrono::milliseconds patience) {
  const Clock::time_point give_up = Clock::now() + patience;
  std::thread thread;
  bool hangs = false;
  {
    MutexLock lock(&core_->mu);
    while (core_->is_ending && !core_->is_left_behind &&
           Clock::now() < give_up) {
      core_->changed.WaitFor(&core_->mu, std::chrono::milliseconds(50));
    }
    hangs = core_->is_ending;
    if (hangs && !std::exchange(core_->is_left_behind, true)) {
      core_->gpu->NoteHanging(1);
    }
    thread = std::move(core_->thread);
  }
  if (!thread.joinable()) return !hangs;
  if (hangs) {
    thread.detach();
  } else {
    thread.join();
  }
  return !hangs;
}

Status Communicator::AsStatus(int result, const std::string& what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return Status::Ok();
  return Unsuccessful(nccl_, result, what);
}

}  // namespace hvd
