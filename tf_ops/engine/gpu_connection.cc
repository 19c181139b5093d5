#include "tf_ops/engine/gpu_connection.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/engine/gpu_split.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kClosePatience{1000};

// What the ranks tell each other before they connect.
struct Hello {
  uint8_t is_able = 0;
  uint8_t is_split = 0;  // it has a split communicator
  char problem[510] = {};
  NcclUniqueId id = {};  // of rank 0
};

// A call that blocks cannot be aborted when a rank dies.
Status CheckNcclSettings() {
  const char* const value = std::getenv("NCCL_COMM_BLOCKING");
  if (value == nullptr || std::string(value) != "1") return Status::Ok();
  return Status::InvalidArgument(
      "NCCL_COMM_BLOCKING must not be 1: NCCL would wait for ranks that have "
      "died");
}

}  // namespace

GpuConnection::~GpuConnection() {
  if (gpu_ == nullptr) return;
  const Gpu::Visit visit(*gpu_);  // this thread is not ours
  communicator_.reset();
  scaler_.reset();
  for (const GpuTrack& track : tracks_) {
    gpu_->Free(track.fusion_buffer);
    if (track.stream != nullptr) gpu_->cuda().StreamDestroy(track.stream);
  }
}

void GpuConnection::Close() {
  if (!is_open()) return;
  const Gpu::Visit visit(*gpu_);
  communicator_->Close(kClosePatience);
}

Status GpuConnection::Open(int ordinal, bool* is_fatal) {
  NcclUniqueId id = {};
  Status own = Prepare(ordinal);
  if (own.ok() && collectives_->rank() == 0) own = Communicator::MakeId(&id);
  bool is_split = options_.gpu.split != nullptr && own.ok() &&
                  options_.gpu.split->is_of(gpu_);
  HVD_RETURN_IF_ERROR(AgreeToConnect(own, &id, &is_split, is_fatal));
  if (is_split) {
    communicator_ = options_.gpu.split->Take();
    return Status::Ok();
  }
  const Clock::time_point begin = Clock::now();
  const auto look = [this, begin]() -> Status {
    HVD_RETURN_IF_ERROR(Look());
    const std::chrono::duration<double> waited = Clock::now() - begin;
    const double timeout = options_.stall_timeout_seconds;
    if (timeout <= 0 || waited.count() < timeout) return Status::Ok();
    return Status::Stalled("rank " +
                           std::to_string(membership_->own_global_rank()) +
                           " waited too long for the other ranks to connect "
                           "their GPUs");
  };
  const Status status =
      Communicator::Create(gpu_, id, collectives_->rank(), collectives_->size(),
                           look, &communicator_);
  *is_fatal = !status.ok();  // others may still be connecting
  return status;
}

Status GpuConnection::Prepare(int ordinal) {
  HVD_RETURN_IF_ERROR(CheckNcclSettings());
  if (ordinal < 0) {
    const int local_rank = options_.gpu.local_rank;
    ordinal = local_rank < Gpu::Count() ? local_rank : 0;
  }
  HVD_RETURN_IF_ERROR(Gpu::Get(ordinal, &gpu_));
  HVD_RETURN_IF_ERROR(gpu_->Use());
  const size_t num_bytes =
      static_cast<size_t>(options_.gpu.fusion_buffer_bytes) / kNumTracks;
  for (GpuTrack& track : tracks_) {
    if (track.stream == nullptr) {
      HVD_RETURN_IF_ERROR(gpu_->CreateStream(/*urgent=*/true, &track.stream));
    }
    if (track.fusion_buffer != nullptr) continue;
    void* memory = nullptr;
    HVD_RETURN_IF_ERROR(gpu_->Allocate(
        num_bytes,
        "the fusion buffer of the collectives (HVD_GPU_FUSION_BUFFER)",
        &memory));
    track.fusion_buffer = static_cast<std::byte*>(memory);
    track.fusion_buffer_bytes = num_bytes;
  }
  return Status::Ok();
}

// All ranks get the same outcome: the error of the first rank that has one.
Status GpuConnection::AgreeToConnect(const Status& own, NcclUniqueId* id,
                                     bool* is_split, bool* is_fatal) {
  const size_t size = static_cast<size_t>(collectives_->size());
  Hello mine;
  mine.is_able = own.ok() ? 1 : 0;
  mine.is_split = *is_split ? 1 : 0;
  own.message().copy(mine.problem, sizeof(mine.problem) - 1);
  mine.id = *id;
  std::vector<Hello> hellos(size);
  std::vector<TensorList> lists;
  for (Hello& hello : hellos) {
    lists.emplace_back(std::vector<ListTensor>{{&mine, &hello, sizeof(Hello)}});
  }
  const Status status = collectives_->Allgather(lists);
  *is_fatal = !status.ok();
  HVD_RETURN_IF_ERROR(status);
  for (size_t rank = 0; rank < size; ++rank) {
    *is_split = *is_split && hellos[rank].is_split != 0;
    if (hellos[rank].is_able != 0) continue;
    return Status::Internal(
        "rank " + std::to_string(options_.global_ranks[rank]) +
        " cannot run collectives on its GPU: " + hellos[rank].problem);
  }
  *id = hellos[0].id;
  return Status::Ok();
}

Status GpuConnection::MakeScaler(Communicator** communicator) {
  if (scaler_ == nullptr) {
    NcclUniqueId id = {};
    HVD_RETURN_IF_ERROR(Communicator::MakeId(&id));
    HVD_RETURN_IF_ERROR(Communicator::Create(
        gpu_, id, 0, 1, [this] { return Look(); }, &scaler_));
  }
  *communicator = scaler_.get();
  return Status::Ok();
}

Status GpuConnection::Look() const {
  HVD_RETURN_IF_ERROR(membership_->CheckInterrupt());
  return membership_->CheckPeers();
}

}  // namespace hvd
