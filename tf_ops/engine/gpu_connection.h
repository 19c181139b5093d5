// What a process set has on this rank's GPU: streams, buffers, and the
// communicator with the GPUs of the other ranks.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/common/status.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// A stream and its own part of the fusion buffer.
struct GpuTrack {
  CudaStream stream = nullptr;
  std::byte* fusion_buffer = nullptr;
  size_t fusion_buffer_bytes = 0;
};

// One thread calls Open and MakeScaler; once Open has succeeded, any thread may
// call the rest.
class GpuConnection {
 public:
  // Borrows all of them.
  GpuConnection(Collectives* collectives, const Membership* membership,
                const EngineOptions& options)
      : collectives_(collectives), membership_(membership), options_(options) {}
  ~GpuConnection();  // aborts the communicator, unless Close was called
  GpuConnection(const GpuConnection&) = delete;
  GpuConnection& operator=(const GpuConnection&) = delete;

  // All ranks call it at about the same time. They exchange the communicator's
  // id and whether each GPU can be used; if one cannot, Open fails on all
  // ranks. `ordinal` is -1 on a rank that has used no GPU: it takes that of its
  // local rank. After an error the ranks are still in step, unless `*is_fatal`.
  Status Open(int ordinal, bool* is_fatal);
  bool is_open() const { return communicator_ != nullptr; }

  // Ends the communicator cleanly; nothing may be in flight.
  void Close();

  Gpu* gpu() const { return gpu_; }
  Communicator* communicator() const { return communicator_.get(); }
  // Launches alternate between tracks: one is packed while another is reduced.
  static constexpr size_t kNumTracks = 2;
  const GpuTrack& track(size_t turn) const {
    return tracks_[turn % kNumTracks];
  }
  // Gets a communicator of this rank alone.
  Status MakeScaler(Communicator** communicator);

  // An error if waiting for the other ranks has become useless.
  Status Look() const;

 private:
  Status Prepare(int ordinal);  // this rank's own part
  // `*is_split`: whether this rank (returned: every rank) already has a split
  // communicator.
  Status AgreeToConnect(const Status& own, NcclUniqueId* id, bool* is_split,
                        bool* is_fatal);

  Collectives* const collectives_;
  const Membership* const membership_;
  const EngineOptions& options_;
  Gpu* gpu_ = nullptr;
  std::array<GpuTrack, kNumTracks> tracks_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> scaler_;
};

}  // namespace hvd
