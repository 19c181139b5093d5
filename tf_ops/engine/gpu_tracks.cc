#include "tf_ops/engine/gpu_tracks.h"

#include <map>
#include <utility>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {
namespace {

struct Shared {
  Mutex mu;
  std::map<const Gpu*, std::weak_ptr<GpuTracks>> by_gpu GUARDED_BY(mu);
};

Shared& TheShared() {
  static auto* const shared = new Shared();
  return *shared;
}

}  // namespace

Status GpuTracks::Get(Gpu* gpu, size_t num_bytes, bool may_share,
                      std::shared_ptr<GpuTracks>* tracks) {
  Shared& shared = TheShared();
  MutexLock lock(&shared.mu);
  *tracks = may_share ? shared.by_gpu[gpu].lock() : nullptr;
  if (*tracks != nullptr) return Status::Ok();
  std::shared_ptr<GpuTracks> made(new GpuTracks(gpu));
  HVD_RETURN_IF_ERROR(made->Make(num_bytes));
  if (may_share) shared.by_gpu[gpu] = made;
  *tracks = std::move(made);
  return Status::Ok();
}

Status GpuTracks::Make(size_t num_bytes) {
  for (GpuTrack& track : tracks_) {
    HVD_RETURN_IF_ERROR(gpu_->CreateStream(/*urgent=*/true, &track.stream));
    void* memory = nullptr;
    HVD_RETURN_IF_ERROR(gpu_->Allocate(
        num_bytes / kNumTracks,
        "the fusion buffer of the collectives (HVD_GPU_FUSION_BUFFER)",
        &memory));
    track.fusion_buffer = static_cast<std::byte*>(memory);
    track.fusion_buffer_bytes = num_bytes / kNumTracks;
  }
  return Status::Ok();
}

GpuTracks::~GpuTracks() {
  const Gpu::Visit visit(*gpu_);
  for (const GpuTrack& track : tracks_) {
    gpu_->Free(track.fusion_buffer);
    if (track.stream != nullptr) gpu_->cuda().StreamDestroy(track.stream);
  }
}

}  // namespace hvd
