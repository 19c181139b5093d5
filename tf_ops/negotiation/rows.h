// The rows of all ranks that a response tells.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/negotiation/message.h"

namespace hvd {

// See ResponseItem::rows. `by_rank` must agree and hold no nulls.
std::vector<std::vector<int64_t>> RowsOf(const ParamsByRank& by_rank);

// What ranks of several hosts have to know of an alltoall. Without it the rows
// of P ranks are P * P values for each of them.
class AlltoallRows {
 public:
  // Borrows `rows`: [from rank][to rank].
  explicit AlltoallRows(const std::vector<std::vector<int64_t>>* rows);

  // For a host with these ranks.
  HostRows Of(const std::vector<int>& ranks) const;

 private:
  const std::vector<std::vector<int64_t>>& rows_;
  int64_t longest_ = 0;
};

}  // namespace hvd
