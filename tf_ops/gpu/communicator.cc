#include "tf_ops/gpu/communicator.h"

#include <optional>
#include <thread>
#include <utility>

#include "tf_ops/common/futex.h"
#include "tf_ops/gpu/libraries.h"

namespace hvd {
namespace {

// A collective that a lost rank has finished may finish here in a moment.
constexpr std::chrono::milliseconds kGrace{300};

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
  std::unique_ptr<Communicator> made(new Communicator(*nccl));
  {
    MutexLock lock(&made->mu_);
    NcclConfig config;
    const int result =
        nccl->CommInitRankConfig(&made->comm_, size, id, rank, &config);
    if (result != kNcclSuccess && result != kNcclInProgress) {
      return Unsuccessful(*nccl, result, "ncclCommInitRankConfig");
    }
  }
  HVD_RETURN_IF_ERROR(made->WaitUntilDone(look).WithContext(
      "NCCL could not connect the GPUs of " + std::to_string(size) + " ranks"));
  *communicator = std::move(made);
  return Status::Ok();
}

Status Communicator::Split(bool is_member, int rank, const Look& look,
                           std::unique_ptr<Communicator>* part) {
  NcclComm raw = nullptr;  // NCCL may write it until the wait below has ended
  NcclConfig config;
  {
    MutexLock lock(&mu_);
    if (comm_ == nullptr) return ended_;
    const int color = is_member ? 0 : kNcclSplitNoColor;
    HVD_RETURN_IF_ERROR(AsStatus(
        nccl_.CommSplit(comm_, color, rank, &raw, &config), "ncclCommSplit"));
  }
  const Status status = WaitUntilDone(look);
  // An abort ends NCCL's work, so that it no longer writes `raw`.
  if (!status.ok()) Abort(status);
  if (raw != nullptr) {
    part->reset(new Communicator(nccl_));
    MutexLock lock(&(*part)->mu_);
    (*part)->comm_ = raw;
  }
  return status;
}

Communicator::~Communicator() {
  Abort(Status::Internal("the communicator was destroyed"));
}

Status Communicator::Run(const Calls& calls, const Look& look) {
  {
    MutexLock lock(&mu_);
    if (comm_ == nullptr) return ended_;
    HVD_RETURN_IF_ERROR(AsStatus(nccl_.GroupStart(), "ncclGroupStart"));
    const Status status = calls(nccl_, comm_);
    // Even after an error: later calls of this thread would join the group.
    const int result = nccl_.GroupEnd();
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
      MutexLock lock(&mu_);
      if (comm_ == nullptr) return ended_;
      HVD_RETURN_IF_ERROR(AsStatus(nccl_.CommGetAsyncError(comm_, &state),
                                   "ncclCommGetAsyncError"));
    }
    if (state == kNcclSuccess) return Status::Ok();
    if (state != kNcclInProgress) return Unsuccessful(nccl_, state, "NCCL");
    const Status status = look();
    const bool is_lost = status.code() == StatusCode::kPeerLost;
    if (is_lost && !lost.has_value()) lost = Clock::now();
    if (!status.ok() && !(is_lost && Clock::now() - *lost < kGrace)) {
      Abort(status);
      return status;
    }
    poll.Pause();
  }
}

Status Communicator::CheckHealth() {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return ended_;
  int state = kNcclSuccess;
  HVD_RETURN_IF_ERROR(AsStatus(nccl_.CommGetAsyncError(comm_, &state),
                               "ncclCommGetAsyncError"));
  if (state == kNcclSuccess || state == kNcclInProgress) return Status::Ok();
  return Unsuccessful(nccl_, state, "NCCL");
}

void Communicator::Abort(const Status& why) {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return;
  nccl_.CommAbort(std::exchange(comm_, nullptr));
  ended_ = why;
}

void Communicator::Close(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  const Status closed = Status::Shutdown("the communicator was closed");
  int result;
  {
    MutexLock lock(&mu_);
    if (comm_ == nullptr) return;
    result = nccl_.CommFinalize(comm_);
  }
  Status status = AsStatus(result, "ncclCommFinalize");
  if (status.ok()) {
    status = WaitUntilDone([end] {
      return Clock::now() < end ? Status::Ok() : Status::Stalled("");
    });
  }
  if (!status.ok()) return Abort(closed);
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return;
  nccl_.CommDestroy(std::exchange(comm_, nullptr));
  ended_ = closed;
}

Status Communicator::AsStatus(int result, const std::string& what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return Status::Ok();
  return Unsuccessful(nccl_, result, what);
}

}  // namespace hvd
