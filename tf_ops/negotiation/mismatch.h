// Finds what ranks disagree on, and words the error.
#pragma once

#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/call.h"
#include "tf_ops/negotiation/request_params.h"

namespace hvd {

// Ok if the requests of all ranks under one name agree; otherwise Mismatch with
// each value and the global ranks that hold it.
Status CheckAgreement(const ParamsByRank& by_rank,
                      const std::vector<int>& global_ranks);

// Mismatch: "ranks disagree on {what}: {value} on rank 1; ...".
struct ValueOnRank {
  std::string value;
  int rank;
};
Status Disagreement(const std::string& what,
                    const std::vector<ValueOnRank>& values);

// Of those that have come, with their global numbers.
std::vector<ValueOnRank> StepsOf(const Call& call,
                                 const std::vector<int>& global_ranks);
// Mismatch: a rank has skipped an update of its weights, or made one more.
Status UnequalSteps(const std::vector<ValueOnRank>& steps);

// "rank 1", "ranks 0, 2 and 3"
std::string RanksToString(const std::vector<int>& ranks);

}  // namespace hvd
