// Finds what ranks disagree on, and says it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/core/message.h"

namespace hvd {

// Ok if the requests of all ranks under one name belong together; otherwise
// Mismatch with each value and the ranks that hold it. `by_rank` has no nulls.
Status CheckAgreement(
    const std::vector<std::shared_ptr<const RequestParams>>& by_rank);

// "rank 1", "ranks 0, 2 and 3"
std::string RanksToString(const std::vector<int>& ranks);

}  // namespace hvd
