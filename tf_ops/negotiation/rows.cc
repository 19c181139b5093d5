#include "tf_ops/negotiation/rows.h"

#include <algorithm>

namespace hvd {

std::vector<std::vector<int64_t>> RowsOf(const ParamsByRank& by_rank) {
  std::vector<std::vector<int64_t>> rows;
  if (by_rank[0]->kind == CollectiveKind::kAllgather) {
    rows.resize(by_rank[0]->tensors.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const auto& params : by_rank) {
        rows[i].push_back(params->tensors[i].shape[0]);
      }
    }
  } else if (by_rank[0]->kind == CollectiveKind::kAlltoall) {
    const int64_t size = static_cast<int64_t>(by_rank.size());
    for (const auto& params : by_rank) {
      rows.push_back(params->splits);
      if (!rows.back().empty()) continue;
      rows.back().assign(by_rank.size(), params->tensors[0].shape[0] / size);
    }
  }
  return rows;
}

AlltoallRows::AlltoallRows(const std::vector<std::vector<int64_t>>* rows)
    : rows_(*rows) {
  for (size_t from = 0; from < rows_.size(); ++from) {
    for (size_t to = 0; to < rows_.size(); ++to) {
      if (from != to) longest_ = std::max(longest_, rows_[from][to]);
    }
  }
}

HostRows AlltoallRows::Of(const std::vector<int>& ranks) const {
  HostRows host;
  host.longest = longest_;
  for (int rank : ranks) {
    const size_t index = static_cast<size_t>(rank);
    host.sent.push_back(rows_[index]);
    host.received.emplace_back();
    for (const std::vector<int64_t>& sent : rows_) {
      host.received.back().push_back(sent[index]);
    }
  }
  return host;
}

}  // namespace hvd
