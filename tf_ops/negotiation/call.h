// A collective by its name, as the ranks submit it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tf_ops/common/futex.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/mismatch.h"

namespace hvd {

struct Call {
  std::string name;
  ParamsByRank arrived;  // the request of each rank; null: not yet
  int num_arrived = 0;
  bool is_complete = false;         // all ranks have come, or have joined
  Clock::time_point first_arrival;  // once a rank has come
  Clock::time_point last_arrival;   // likewise
  int last_rank = -1;               // the rank of the last arrival

  bool HasCome(int rank) const {
    return arrived[static_cast<size_t>(rank)] != nullptr;
  }
  // The request of the first rank that has come; there must be one.
  const std::shared_ptr<const RequestParams>& Leader() const {
    size_t rank = 0;
    while (arrived[rank] == nullptr) ++rank;
    return arrived[rank];
  }
};

}  // namespace hvd
