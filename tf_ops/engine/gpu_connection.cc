#include "tf_ops/engine/gpu_connection.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/keep.h"
#include "tf_ops/common/log.h"
#include "tf_ops/engine/gpu_split.h"
#include "tf_ops/gpu/libraries.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kClosePatience{1000};
constexpr milliseconds kMeetPatience{1000};

// What the ranks tell each other before they connect.
struct Hello {
  uint8_t is_able = 0;
  uint8_t is_split = 0;        // it has a split communicator
  uint8_t may_share = 0;       // its GPU, with other ranks
  uint8_t sums_in_switch = 0;  // its NVSwitch can
  char problem[508] = {};
  char gpu[32] = {};  // see Gpu::Identity
  char bus_id[32] = {};
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

// InvalidArgument, the same on all ranks, if two of them are on one GPU.
Status CheckOwnGpus(const std::vector<Hello>& hellos,
                    const EngineOptions& options) {
  const auto host = [&options](size_t rank) {
    return options.hosts.empty() ? 0 : options.hosts[rank];
  };
  for (size_t b = 0; b < hellos.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (host(a) != host(b) || hellos[a].bus_id[0] == 0 ||
          hellos[a].may_share != 0 ||
          std::strcmp(hellos[a].bus_id, hellos[b].bus_id) != 0) {
        continue;
      }
      const std::string who =
          "rank " + std::to_string(options.global_ranks[a]) + " and rank " +
          std::to_string(options.global_ranks[b]);
      const std::string where = std::string("GPU ") + hellos[a].bus_id;
      if (std::memcmp(hellos[a].gpu, hellos[b].gpu, sizeof(Hello::gpu)) == 0) {
        return Status::InvalidArgument(
            "each rank must have a GPU of its own. Received: " + where +
            " for both " + who +
            ". Start fewer ranks, let hvdrun give out the GPUs "
            "(HVD_GPUS_PER_RANK), or let ranks share one (HVD_GPU_SHARE=1)");
      }
      const NcclApi* nccl = nullptr;
      HVD_RETURN_IF_ERROR(OpenNccl(&nccl));
      if (nccl->version >= kFirstNcclWithSharing) continue;
      return Status::InvalidArgument(
          "NCCL before 2.30 connects no two slices (MIG) of one GPU. "
          "Received: slices of " +
          where + " for " + who);
    }
  }
  return Status::Ok();
}

}  // namespace

GpuConnection::~GpuConnection() {
  if (gpu_ == nullptr) return;
  const Gpu::Visit visit(*gpu_);  // this thread is not ours
  const Status why = Status::Shutdown("the engine was destroyed");
  if (communicator_ != nullptr) communicator_->Abort(why);
  if (communicator_ != nullptr &&
      !communicator_->AwaitEnd(milliseconds(options_.gpu.end_patience_ms))) {
    // Freeing memory would wait for kernels that may never end.
    LogWarning(membership_->members().own_global_rank(),
               "NCCL has not ended its communicator on GPU " +
                   std::to_string(gpu_->ordinal()) +
                   ". The memory of the collectives stays taken until this "
                   "process ends. Restart the process to use the GPU");
    KeepForever(tracks_);
  }
}

void GpuConnection::Close() {
  if (!is_open()) return;
  const Gpu::Visit visit(*gpu_);
  communicator_->Close(kClosePatience);
}

void GpuConnection::Abandon(const Status& why) {
  if (!is_open()) return;
  MutexLock lock(&abandon_mu_);  // who comes second waits for the abort, too
  if (std::exchange(is_abandoned_, true)) return;
  if (why.code() != StatusCode::kPeerLost &&
      why.code() != StatusCode::kShutdown) {
    membership_->DeclareBroken(why);  // or the others would come late
  }
  membership_->Meet(kMeetPatience);
  communicator_->Abort(why);
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
    return Status::Stalled(
        "rank " + std::to_string(membership_->members().own_global_rank()) +
        " waited too long for the other ranks to connect their GPUs");
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
  HVD_RETURN_IF_ERROR(gpu_->CheckHanging());
  HVD_RETURN_IF_ERROR(gpu_->Use());
  HVD_RETURN_IF_ERROR(GpuScaler::Get(*gpu_, &scaler_));
  const bool is_on_one_host =
      std::all_of(options_.hosts.begin(), options_.hosts.end(),
                  [this](int host) { return host == options_.hosts[0]; });
  const bool has_order = is_on_one_host || membership_->members().AreOfJob();
  if (has_order && order_ == nullptr) {
    order_ = std::make_unique<LaunchOrder>(&membership_->members());
  }
  if (tracks_ != nullptr) return Status::Ok();
  return GpuTracks::Get(gpu_,
                        static_cast<size_t>(options_.gpu.fusion_buffer_bytes),
                        /*may_share=*/has_order, &tracks_);
}

// All ranks get the same outcome: the error of the first rank that has one.
Status GpuConnection::AgreeToConnect(const Status& own, NcclUniqueId* id,
                                     bool* is_split, bool* is_fatal) {
  const size_t size = static_cast<size_t>(collectives_->size());
  Hello mine;
  mine.is_able = own.ok() ? 1 : 0;
  mine.is_split = *is_split ? 1 : 0;
  mine.may_share = options_.gpu.may_share ? 1 : 0;
  own.message().copy(mine.problem, sizeof(mine.problem) - 1);
  if (own.ok()) {
    gpu_->Identity().copy(mine.gpu, sizeof(mine.gpu) - 1);
    mine.sums_in_switch = gpu_->IsOnSummingSwitch() ? 1 : 0;
    gpu_->BusId().copy(mine.bus_id, sizeof(mine.bus_id) - 1);
  }
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
  // NCCL does so from 3 ranks on.
  sums_in_switch_ = size > 2 && std::all_of(hellos.begin(), hellos.end(),
                                            [](const Hello& hello) {
                                              return hello.sums_in_switch != 0;
                                            });
  return CheckOwnGpus(hellos, options_);
}

Status GpuConnection::Look() const {
  HVD_RETURN_IF_ERROR(membership_->CheckInterrupt());
  return membership_->CheckPeers();
}

}  // namespace hvd
