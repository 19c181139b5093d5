// Splits the communicators of process sets off that of all ranks: then they
// need not connect and examine the machine again.
#pragma once

#include <functional>
#include <memory>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"

namespace hvd {

// Holds the communicator of a process set until its engine takes it.
// Thread-safe.
class GpuSplit {
 public:
  GpuSplit() = default;
  ~GpuSplit();  // aborts what nobody has taken
  GpuSplit(const GpuSplit&) = delete;
  GpuSplit& operator=(const GpuSplit&) = delete;

  void Put(Gpu* gpu, std::unique_ptr<Communicator> communicator) EXCLUDES(mu_);
  bool is_of(const Gpu* gpu) EXCLUDES(mu_);  // whether there is one, on `gpu`
  std::unique_ptr<Communicator> Take() EXCLUDES(mu_);

 private:
  Mutex mu_;
  Gpu* gpu_ GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<Communicator> communicator_ GUARDED_BY(mu_);
};

// Makes the Request::with_communicator of a barrier that splits. All ranks
// submit the barrier: members with the `split` of the set's engine, others with
// null.
using WithCommunicator =
    std::function<Status(Gpu* gpu, Communicator* communicator, int rank,
                         const Communicator::Look& look)>;
WithCommunicator SplitInto(std::shared_ptr<GpuSplit> split);

}  // namespace hvd
