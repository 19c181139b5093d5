// What a process set has on this rank's GPU: streams, buffers, and the
// communicator with the GPUs of the other ranks.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/host/host_slabs.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// A stream, and the part of the fusion buffer that is used on it alone.
struct GpuTrack {
  CudaStream stream = nullptr;
  std::byte* fusion_buffer = nullptr;
  size_t fusion_buffer_bytes = 0;
};

// Open is for one thread, the rest for any once it has succeeded.
class GpuConnection {
 public:
  // Borrows all of them.
  GpuConnection(HostSlabs* slabs, const Membership* membership,
                const EngineOptions& options)
      : slabs_(slabs), membership_(membership), options_(options) {}
  ~GpuConnection();  // aborts the communicator, unless Close was called
  GpuConnection(const GpuConnection&) = delete;
  GpuConnection& operator=(const GpuConnection&) = delete;

  // All ranks call it at about the same time. They tell each other, over shared
  // memory, whether their GPU can be used, so that all of them refuse if one
  // has to, and the id of the communicator. `ordinal`: -1 if the rank has used
  // none; it is the one of its local rank. After an error the ranks are in
  // step still, unless `*is_fatal`.
  Status Open(int ordinal, bool* is_fatal);
  bool is_open() const { return communicator_ != nullptr; }

  // In peace, with nothing in flight.
  void Close();

  Gpu* gpu() const { return gpu_; }
  Communicator* communicator() const { return communicator_.get(); }
  // Launches take turns, so that one is packed while another is reduced.
  static constexpr size_t kNumTracks = 2;
  const GpuTrack& track(size_t turn) const {
    return tracks_[turn % kNumTracks];
  }
  // A communicator of this rank alone. For the thread of Open.
  Status MakeScaler(Communicator** communicator);

  // Not ok if it makes no sense to wait for the other ranks.
  Status Look() const;

 private:
  Status Prepare(int ordinal);  // this rank's own part
  // `*is_split`: whether the communicator of this rank, later of all ranks, is
  // there already.
  Status AgreeToConnect(const Status& own, NcclUniqueId* id, bool* is_split,
                        bool* is_fatal);

  HostSlabs* const slabs_;
  const Membership* const membership_;
  const EngineOptions& options_;
  Gpu* gpu_ = nullptr;
  std::array<GpuTrack, kNumTracks> tracks_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> scaler_;
};

}  // namespace hvd
