// The data planes of an engine, and which of them runs a request.
#pragma once

#include <memory>

#include "tf_ops/collectives/collectives.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/engine/data_plane.h"
#include "tf_ops/engine/event_log.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// Prepares a request for its plane. The submitting thread calls it on `rank`,
// one of `size`; it does not wait. An error means that this rank cannot take
// part.
Status PrepareSubmit(const EngineOptions& options, int rank, int size,
                     Request* request);

// For one thread at a time.
class DataPlanes {
 public:
  // Borrows all but `options`, which has the global ranks.
  DataPlanes(Collectives* collectives, Membership* membership,
             Doorbell* doorbell, const EngineOptions& options, EventLog* log);
  ~DataPlanes();
  DataPlanes(const DataPlanes&) = delete;
  DataPlanes& operator=(const DataPlanes&) = delete;

  // The plane of requests whose tensors are on `device`.
  DataPlane* Of(DeviceKind device);

  // See DataPlane. Admit goes to the request's plane, the others to all.
  void Admit(Request* request);
  Status Poll();
  void End(const Status& why);

 private:
  Collectives* const collectives_;
  Membership* const membership_;
  Doorbell* const doorbell_;
  const EngineOptions options_;
  EventLog* const log_;
  const std::unique_ptr<DataPlane> cpu_;
  std::unique_ptr<DataPlane> gpu_;  // made for the first tensors on a GPU
};

}  // namespace hvd
