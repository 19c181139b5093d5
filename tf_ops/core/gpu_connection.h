// What a process set has on this rank's GPU: a stream, a buffer, and the
// communicator with the GPUs of the other ranks.
#pragma once

#include <cstddef>
#include <memory>

#include "tf_ops/common/status.h"
#include "tf_ops/core/engine.h"
#include "tf_ops/transport/nccl/communicator.h"
#include "tf_ops/transport/nccl/gpu.h"
#include "tf_ops/transport/transport.h"

namespace hvd {

// Open is for one thread, the rest for any once it has succeeded.
class GpuConnection {
 public:
  // Borrows both.
  GpuConnection(Transport* transport, const EngineOptions& options)
      : transport_(transport), options_(options) {}
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
  CudaStream stream() const { return stream_; }
  Communicator* communicator() const { return communicator_.get(); }
  std::byte* fusion_buffer() const {
    return static_cast<std::byte*>(fusion_buffer_);
  }
  // A communicator of this rank alone. For the thread of Open.
  Status MakeScaler(Communicator** communicator);

  // Not ok if it makes no sense to wait for the other ranks.
  Status Look() const;

 private:
  Status Prepare(int ordinal);  // this rank's own part
  Status AgreeToConnect(const Status& own, NcclUniqueId* id, bool* is_fatal);

  Transport* const transport_;
  const EngineOptions& options_;
  Gpu* gpu_ = nullptr;
  CudaStream stream_ = nullptr;
  void* fusion_buffer_ = nullptr;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> scaler_;
};

}  // namespace hvd
