// What collectives use on a GPU: streams, each with its part of the fusion
// buffer, and what orders its work.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "tf_ops/common/status.h"
#include "tf_ops/gpu/gpu.h"

namespace hvd {

// A stream and its own part of the fusion buffer.
struct GpuTrack {
  CudaStream stream = nullptr;
  std::byte* fusion_buffer = nullptr;
  size_t fusion_buffer_bytes = 0;
};

// One thread at a time uses it.
class GpuTracks {
 public:
  // Gets those of `gpu`, which process sets share if they launch in one order,
  // or makes new ones of `num_bytes` together. `gpu` is the thread's GPU.
  static Status Get(Gpu* gpu, size_t num_bytes, bool may_share,
                    std::shared_ptr<GpuTracks>* tracks);
  ~GpuTracks();  // any thread; waits for the GPU
  GpuTracks(const GpuTracks&) = delete;
  GpuTracks& operator=(const GpuTracks&) = delete;

  // Launches alternate between tracks: one is packed while another is reduced.
  const GpuTrack& Next() { return tracks_[++turn_ % kNumTracks]; }
  // The last NCCL calls, perhaps of another process set; null: none.
  std::shared_ptr<GpuEvent>* last_calls() { return &last_calls_; }

 private:
  static constexpr size_t kNumTracks = 2;

  explicit GpuTracks(Gpu* gpu) : gpu_(gpu) {}
  Status Make(size_t num_bytes);

  Gpu* const gpu_;
  std::array<GpuTrack, kNumTracks> tracks_;
  size_t turn_ = 0;
  std::shared_ptr<GpuEvent> last_calls_;
};

}  // namespace hvd
