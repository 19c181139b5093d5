// Runs one response: finds this rank's requests and moves the data.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/core/request_table.h"
#include "tf_ops/transport/transport.h"

namespace hvd {

// A request about to be run, and the first dimensions of all ranks if it is
// an allgather.
struct ReadyRequest {
  std::unique_ptr<PendingRequest> pending;
  std::vector<std::vector<int64_t>> first_dims;  // [tensor][rank]
};

// Runs requests of one kind as one collective. They are alike but for their
// tensors. After an error the transport's ranks are out of step for good.
Status Execute(Transport* transport, const std::vector<ReadyRequest>& ready);

}  // namespace hvd
