// Which rank of a process set is on which host.
#pragma once

#include <cstddef>
#include <vector>

namespace hvd {

// Ranks are those of the process set. The members of a host's region are its
// ranks in this order; see region.h.
struct HostLayout {
  std::vector<std::vector<int>> ranks;  // by host, then by member
  int host = 0;                         // this one
  int member = 0;                       // this rank

  int num_hosts() const { return static_cast<int>(ranks.size()); }
  const std::vector<int>& local_ranks() const {
    return ranks[static_cast<size_t>(host)];
  }
  int rank() const { return local_ranks()[static_cast<size_t>(member)]; }
  int size() const {
    size_t size = 0;
    for (const std::vector<int>& of_host : ranks) size += of_host.size();
    return static_cast<int>(size);
  }
};

}  // namespace hvd
