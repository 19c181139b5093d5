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
  HostRows host_rows;                      // likewise
  // A rank that has joined takes part with neutral values, which are kept in
  // `memory`, one piece for each tensor.
  bool is_neutral = false;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  Status outcome;  // how it has ended, see DataPlane::Run
};

// What a rank that has joined contributes to an allreduce of the others.
ReadyRequest MakeNeutral(const std::string& name, const RequestParams& params);

// Alltoall: the rows that `rank` receives from each rank.
std::vector<int64_t> ReceivedRows(const ReadyRequest& ready, int rank);

// The shape of output `index` on `rank`, one of `size`, for allgather, alltoall
// and reducescatter.
Shape OutputShape(const ReadyRequest& ready, size_t index, int rank, int size);

// Appends the memory of the outputs on `rank`, one of `size`: the tensors' own,
// or from `allocate_output` if the request has it. After an error it has
// appended those before the one that failed.
Status AllocateOutputs(const ReadyRequest& ready, int rank, int size,
                       std::vector<void*>* outputs);
// "could not allocate output 1 of shape [2, 3]"
std::string AllocationText(size_t index, const Shape& shape);

}  // namespace hvd
