#include "tf_ops/engine/gpu_split.h"

#include <utility>

namespace hvd {

GpuSplit::~GpuSplit() {
  MutexLock lock(&mu_);
  if (communicator_ == nullptr) return;
  const Gpu::Visit visit(*gpu_);  // this thread is not ours
  communicator_.reset();
}

void GpuSplit::Put(Gpu* gpu, std::unique_ptr<Communicator> communicator) {
  MutexLock lock(&mu_);
  gpu_ = gpu;
  communicator_ = std::move(communicator);
}

bool GpuSplit::is_of(const Gpu* gpu) {
  MutexLock lock(&mu_);
  return communicator_ != nullptr && gpu_ == gpu;
}

std::unique_ptr<Communicator> GpuSplit::Take() {
  MutexLock lock(&mu_);
  return std::move(communicator_);
}

WithCommunicator SplitInto(std::shared_ptr<GpuSplit> split) {
  return
      [split = std::move(split)](Gpu* gpu, Communicator* communicator, int rank,
                                 const Communicator::Look& look) -> Status {
        std::unique_ptr<Communicator> part;
        HVD_RETURN_IF_ERROR(
            communicator->Split(split != nullptr, rank, look, &part));
        if (split != nullptr) split->Put(gpu, std::move(part));
        return Status::Ok();
      };
}

}  // namespace hvd
