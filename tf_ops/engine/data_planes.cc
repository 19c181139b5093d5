#include "tf_ops/engine/data_planes.h"

#include "tf_ops/engine/cpu_plane.h"
#include "tf_ops/engine/gpu_plane.h"

namespace hvd {

Status PrepareSubmit(const EngineOptions& options, int rank, int size,
                     Request* request) {
  return request->gpu.ordinal < 0 ? AllocateKnownOutputs(rank, size, request)
                                  : MarkReady(options.gpu, request);
}

DataPlanes::DataPlanes(Collectives* collectives, Membership* membership,
                       Doorbell* doorbell, const EngineOptions& options,
                       EventLog* log)
    : collectives_(collectives),
      membership_(membership),
      doorbell_(doorbell),
      options_(options),
      log_(log),
      cpu_(std::make_unique<CpuPlane>(collectives)) {}

DataPlanes::~DataPlanes() = default;

DataPlane* DataPlanes::Of(DeviceKind device) {
  if (device == DeviceKind::kCpu) return cpu_.get();
  if (gpu_ == nullptr) {
    gpu_ = std::make_unique<GpuPlane>(collectives_, membership_, doorbell_,
                                      options_, log_);
  }
  return gpu_.get();
}

void DataPlanes::Admit(Request* request) {
  if (!request->failure.ok()) return;  // it will not run
  Of(request->gpu.ordinal < 0 ? DeviceKind::kCpu : DeviceKind::kGpu)
      ->Admit(request);
}

Status DataPlanes::Poll() {
  HVD_RETURN_IF_ERROR(cpu_->Poll());
  return gpu_ == nullptr ? Status::Ok() : gpu_->Poll();
}

void DataPlanes::End(const Status& why) {
  cpu_->End(why);
  if (gpu_ != nullptr) gpu_->End(why);
}

}  // namespace hvd
