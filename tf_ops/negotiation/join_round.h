// Which ranks have joined: they have no more data and wait until all ranks have
// joined. The others go on without them.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/negotiation/message.h"

namespace hvd {

// Not thread-safe: a part of the coordinator. When all ranks have joined the
// next round begins.
class JoinRound {
 public:
  // Borrows `global_ranks`, one for each rank.
  explicit JoinRound(const std::vector<int>* global_ranks);

  // `rank` joins. True if it counts as joined from now on; false if the join
  // fails because ranks want different averages.
  bool Join(int rank, bool average_over_active);

  int num_joined() const { return static_cast<int>(num_joined_); }
  bool has(int rank) const { return ranks_[static_cast<size_t>(rank)].joined; }
  bool average_over_active() const { return average_over_active_; }

  // Appends the answers to joins, and begins a new round if all have joined.
  void TakeResponses(std::vector<Response>* responses);

 private:
  struct State {
    bool joined = false;
    bool average_over_active = false;
    bool owes_error = false;  // its join fails with `error_`
  };

  void Fail();
  void Reset();

  const std::vector<int>& global_ranks_;
  std::vector<State> ranks_;  // by rank
  size_t num_joined_ = 0;
  int last_rank_ = 0;
  bool average_over_active_ = false;
  Status error_;
  std::vector<JoinEnd> failed_;  // to be told
};

}  // namespace hvd
