// What is wrong with a request although all ranks agree on it.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/mismatch.h"

namespace hvd {

// InvalidArgument that says what must hold and what came. `by_rank` agree and
// hold no nulls. The coordinator asks this once the ranks agree, so that a bad
// value on one rank alone is an error on all ranks, and nobody is left
// waiting.
Status ValidateParams(const ParamsByRank& by_rank,
                      const std::vector<int>& global_ranks);

// Internal if `rows`, which a response tells (see ResponseItem), do not fit
// what `rank` of `size` asks for, or ask for more than memory can hold.
Status CheckRows(const RequestParams& params, int rank, int size,
                 const std::vector<std::vector<int64_t>>& rows);

}  // namespace hvd
