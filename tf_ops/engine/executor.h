// Runs one response: finds this rank's requests and moves the data.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"
#include "tf_ops/negotiation/request_table.h"

namespace hvd {

// A request about to be run.
struct ReadyRequest {
  std::unique_ptr<PendingRequest> pending;
  std::vector<std::vector<int64_t>> rows;  // see ResponseItem
  // A rank that has joined takes part with neutral values, in memory of its
  // own, one piece for each tensor.
  bool is_neutral = false;
  std::vector<std::unique_ptr<std::byte[]>> memory;
};

// What all requests of a response share.
struct ExecuteOptions {
  const std::vector<int>* global_ranks = nullptr;  // by rank of the slabs
  int divisor = 0;                                 // see Response
};

// Runs requests of one kind as one collective. They are alike but for their
// tensors. After an error the ranks are out of step for good.
Status Execute(HostSlabs* slabs, const ExecuteOptions& options,
               const std::vector<ReadyRequest>& ready);

// The part of a rank that has joined in an allreduce of the others.
ReadyRequest MakeNeutral(const std::string& name, const RequestParams& params);

// Alltoall: the rows that `rank` receives from each rank.
std::vector<int64_t> ReceivedRows(const ReadyRequest& ready, int rank);

}  // namespace hvd
