#include "tf_ops/negotiation/arrivals.h"

#include <algorithm>
#include <utility>

namespace hvd {

KnownParams::KnownParams(ParamsByRank by_rank) {
  const bool are_one =
      std::all_of(by_rank.begin(), by_rank.end(),
                  [&](const Params& params) { return params == by_rank[0]; });
  if (are_one) {
    of_all_ = std::move(by_rank[0]);
  } else {
    by_rank_ = std::move(by_rank);
  }
}

void Arrivals::Add(int rank, const Params& params) {
  if (!has(rank)) ++num_ranks_;
  if (told_.empty()) told_.resize(static_cast<size_t>(groups_.num_ranks()));
  told_[static_cast<size_t>(rank)] = params;
}

bool Arrivals::AddKnown(int group) {
  const size_t index = static_cast<size_t>(group);
  if (!told_.empty() || whole_[index]) return false;
  whole_[index] = true;
  num_ranks_ += static_cast<int>(groups_.ranks_of(group).size());
  return true;
}

ParamsByRank Arrivals::ByRank(const KnownParams& known) const {
  ParamsByRank by_rank = told_;
  by_rank.resize(static_cast<size_t>(groups_.num_ranks()));
  for (int rank = 0; rank < groups_.num_ranks(); ++rank) {
    Params& params = by_rank[static_cast<size_t>(rank)];
    if (params == nullptr && has(rank)) params = known.of(rank);
  }
  return by_rank;
}

void Arrivals::Clear() {
  num_ranks_ = 0;
  std::fill(whole_.begin(), whole_.end(), false);
  told_.clear();
}

}  // namespace hvd
