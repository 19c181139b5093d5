// Which ranks speak to the coordinator with one voice: those of a host.
#pragma once

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace hvd {

class RankGroups {
 public:
  // `group_of[rank]`: its group, counted from 0. Empty: each rank is a group of
  // its own, as on one host.
  RankGroups(size_t num_ranks, std::vector<int> group_of)
      : group_of_(std::move(group_of)) {
    if (group_of_.empty()) {
      group_of_.resize(num_ranks);
      std::iota(group_of_.begin(), group_of_.end(), 0);
    }
    for (size_t rank = 0; rank < group_of_.size(); ++rank) {
      const size_t group = static_cast<size_t>(group_of_[rank]);
      if (group >= ranks_of_.size()) ranks_of_.resize(group + 1);
      ranks_of_[group].push_back(static_cast<int>(rank));
    }
  }

  int num_ranks() const { return static_cast<int>(group_of_.size()); }
  int num_groups() const { return static_cast<int>(ranks_of_.size()); }
  int group_of(int rank) const { return group_of_[static_cast<size_t>(rank)]; }
  // In ascending order.
  const std::vector<int>& ranks_of(int group) const {
    return ranks_of_[static_cast<size_t>(group)];
  }
  bool has(int group, int rank) const {
    return rank >= 0 && rank < num_ranks() && group_of(rank) == group;
  }
  // Whether all of `ranks` are of `group`, in ascending order, once each.
  bool HasAll(int group, const std::vector<int>& ranks) const {
    int last = -1;
    for (int rank : ranks) {
      if (rank <= last || !has(group, rank)) return false;
      last = rank;
    }
    return true;
  }

 private:
  std::vector<int> group_of_;               // by rank
  std::vector<std::vector<int>> ranks_of_;  // by group
};

}  // namespace hvd
