// A request that all ranks have agreed to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/negotiation/request_table.h"

namespace hvd {

struct ReadyRequest {
  std::unique_ptr<PendingRequest> pending;
  std::vector<std::vector<int64_t>> rows;  // see ResponseItem
  // A rank that has joined takes part with neutral values, in memory of its
  // own, one piece for each tensor.
  bool is_neutral = false;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  Status outcome;  // how it has ended, see DataPlane::Run
};

// The part of a rank that has joined in an allreduce of the others.
ReadyRequest MakeNeutral(const std::string& name, const RequestParams& params);

// Alltoall: the rows that `rank` receives from each rank.
std::vector<int64_t> ReceivedRows(const ReadyRequest& ready, int rank);

// Of output `index` on `rank`, one of `size`, where the engine has to know it:
// allgather, alltoall, reducescatter.
Shape OutputShape(const ReadyRequest& ready, size_t index, int rank, int size);

// The memory of the outputs on `rank`, one of `size`: that of the tensors, or
// new memory where the request has `allocate_output`. After an error there are
// those before the first that could not be had.
Status AllocateOutputs(const ReadyRequest& ready, int rank, int size,
                       std::vector<void*>* outputs);
// "could not allocate output 1 of shape [2, 3]"
std::string AllocationText(size_t index, const Shape& shape);

}  // namespace hvd
