// A collective by its name, as the ranks submit it.
#pragma once

#include <string>

#include "tf_ops/common/futex.h"
#include "tf_ops/negotiation/arrivals.h"
#include "tf_ops/negotiation/request_params.h"
#include "tf_ops/negotiation/training_step.h"

namespace hvd {

struct Call {
  explicit Call(const RankGroups* groups) : arrivals(groups) {}

  std::string name;
  Arrivals arrivals;
  StepsOfRanks steps;               // of the ranks that have come
  Params leader;                    // the request of a rank that has come
  bool is_complete = false;         // all ranks have come, or have joined
  Clock::time_point first_arrival;  // once a rank has come
  Clock::time_point last_arrival;   // likewise
  int last_rank = -1;               // the rank of the last arrival

  bool HasCome(int rank) const { return arrivals.has(rank); }
};

}  // namespace hvd
