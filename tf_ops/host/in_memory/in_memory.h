// Ranks as threads of one process: for tests, and for a job of one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tf_ops/host/host_group.h"
#include "tf_ops/host/region.h"

namespace hvd {

// A region in memory of this process.
std::shared_ptr<void> AllocateRegion(const RegionShape& shape);

// A group for each member of one region, which lives as long as the last of
// them. Nobody watches for deaths. See Membership for `epoch`.
std::vector<std::unique_ptr<HostGroup>> CreateInMemory(const RegionShape& shape,
                                                       uint64_t epoch = 0);

}  // namespace hvd
