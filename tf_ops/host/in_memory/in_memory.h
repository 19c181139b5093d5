// Ranks as threads of one process: for tests, and for a job of one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tf_ops/host/host_group.h"

namespace hvd {

// A region of `size` ranks in memory of this process.
std::shared_ptr<void> AllocateRegion(int size);

// A group for each of `size` ranks over one region, which lives as long as the
// last of them. Nobody watches for deaths. See Membership for `epoch`.
std::vector<std::unique_ptr<HostGroup>> CreateInMemory(int size,
                                                       uint64_t epoch = 0);

}  // namespace hvd
