// What a process set has on this rank's GPU: streams, buffers, and the
// communicator with the GPUs of the other ranks.
#pragma once

#include <cstddef>
#include <memory>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/gpu_tracks.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/gpu/scale.h"
#include "tf_ops/host/launch_order.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// One thread calls Open; once it has succeeded, any thread may call the rest.
class GpuConnection {
 public:
  // Borrows all of them.
  GpuConnection(Collectives* collectives, Membership* membership,
                const EngineOptions& options)
      : collectives_(collectives), membership_(membership), options_(options) {}
  // Aborts the communicator, unless Close was called. If NCCL hangs, it keeps
  // the streams and the buffers too, and says so.
  ~GpuConnection();
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
  // Meets the ranks of this host that go on too, for their kernels use memory
  // of each other's GPUs; then begins to abort the communicator. Any thread.
  // Waits a second at most.
  void Abandon(const Status& why) EXCLUDES(abandon_mu_);

  Gpu* gpu() const { return gpu_; }
  Communicator* communicator() const { return communicator_.get(); }
  GpuTracks* tracks() const { return tracks_.get(); }
  const GpuScaler* scaler() const { return scaler_; }
  // Null: the set is a part of the job that is on several hosts. It launches
  // its work as it comes.
  LaunchOrder* order() const { return order_.get(); }
  // Whether the switch between all GPUs of the set can sum (NVLS).
  bool sums_in_switch() const { return sums_in_switch_; }

  // An error if waiting for the other ranks has become useless.
  Status Look() const;

 private:
  Status Prepare(int ordinal);  // this rank's own part
  // `*is_split`: whether this rank (returned: every rank) already has a split
  // communicator.
  Status AgreeToConnect(const Status& own, NcclUniqueId* id, bool* is_split,
                        bool* is_fatal);

  Collectives* const collectives_;
  Membership* const membership_;
  const EngineOptions& options_;
  Gpu* gpu_ = nullptr;
  const GpuScaler* scaler_ = nullptr;
  std::shared_ptr<GpuTracks> tracks_;
  std::unique_ptr<LaunchOrder> order_;
  std::unique_ptr<Communicator> communicator_;
  bool sums_in_switch_ = false;
  Mutex abandon_mu_;
  bool is_abandoned_ GUARDED_BY(abandon_mu_) = false;
};

}  // namespace hvd
