// Finds what is wrong with a request that all ranks agree on.
#pragma once

#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/message.h"

namespace hvd {

// InvalidArgument says what must hold and what came. `by_rank` must agree and
// hold no nulls. The coordinator calls this, so that a bad value on one rank is
// an error on all, and no rank is left waiting.
Status ValidateParams(const ParamsByRank& by_rank,
                      const std::vector<int>& global_ranks);

// A rank among the others of its process set.
struct RankPlace {
  int rank = 0;
  int size = 1;
  // Several hosts: the ranks of this one, this rank included. One host: empty.
  std::vector<int> host_ranks;
};

// Internal if the rows that a response tells (see ResponseItem) do not fit what
// the rank at `place` asks for, or ask for more than memory can hold.
Status CheckRows(const RequestParams& params, const RankPlace& place,
                 const ResponseItem& item);

}  // namespace hvd
