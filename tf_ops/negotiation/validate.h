// Finds what is wrong with a request that all ranks agree on.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/mismatch.h"

namespace hvd {

// InvalidArgument says what must hold and what came. `by_rank` must agree and
// hold no nulls. The coordinator calls this, so that a bad value on one rank is
// an error on all, and no rank is left waiting.
Status ValidateParams(const ParamsByRank& by_rank,
                      const std::vector<int>& global_ranks);

// Internal if `rows`, which a response tells (see ResponseItem), do not fit
// what `rank` of `size` asks for, or ask for more than memory can hold.
Status CheckRows(const RequestParams& params, int rank, int size,
                 const std::vector<std::vector<int64_t>>& rows);

}  // namespace hvd
