// Which ranks have come for a call, and with what.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "tf_ops/negotiation/rank_groups.h"
#include "tf_ops/negotiation/request_params.h"

namespace hvd {

// The requests of all ranks under one id. They are mostly equal and then take
// the memory of one.
class KnownParams {
 public:
  KnownParams() = default;
  explicit KnownParams(Params of_all) : of_all_(std::move(of_all)) {}
  explicit KnownParams(ParamsByRank by_rank);

  const Params& of(int rank) const {
    return by_rank_.empty() ? of_all_ : by_rank_[static_cast<size_t>(rank)];
  }

 private:
  Params of_all_;
  ParamsByRank by_rank_;  // if they differ
};

// Not thread-safe: a part of the coordinator. A group that comes as a whole, by
// an id, costs as little as one rank.
class Arrivals {
 public:
  explicit Arrivals(const RankGroups* groups)
      : groups_(*groups), whole_(static_cast<size_t>(groups->num_groups())) {}

  int num_ranks() const { return num_ranks_; }  // that have come
  bool has(int rank) const {
    return whole_[static_cast<size_t>(groups_.group_of(rank))] ||
           (!told_.empty() && told_[static_cast<size_t>(rank)] != nullptr);
  }

  void Add(int rank, const Params& params);
  // All ranks of `group` come with what is known of them. False, and nothing
  // is done, if it is not sure that none of them has come before.
  bool AddKnown(int group);

  // By rank; null: has not come. `known`: for the groups of AddKnown.
  ParamsByRank ByRank(const KnownParams& known) const;
  void Clear();

 private:
  const RankGroups& groups_;
  int num_ranks_ = 0;
  std::vector<bool> whole_;  // by group: AddKnown
  ParamsByRank told_;        // by rank: Add; empty: none
};

}  // namespace hvd
