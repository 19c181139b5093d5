// Ranks as processes of one host: a sealed memfd that leaves nothing behind,
// and pidfds that tell at once who died.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/host/host_group.h"

namespace hvd {

// Where the region is: file `fd` of process `pid`, proved by `token`.
struct ShmSegment {
  pid_t pid = 0;
  int fd = -1;
  std::string token;  // kTokenBytes random bytes
};

// Makes the region of `size` ranks in this process; its caller closes
// `segment->fd` once every rank has attached.
Status CreateSegment(int size, ShmSegment* segment);

// Maps the region and begins to watch the processes `pids` (by rank). See
// Membership for `epoch`.
Status AttachSegment(const ShmSegment& segment, int rank,
                     const std::vector<pid_t>& pids, uint64_t epoch,
                     std::unique_ptr<HostGroup>* group);

// Maps the region of a process set, see Membership::BindToJob. The watch of
// `job` serves the set too.
Status AttachSegmentOfSet(const ShmSegment& segment, int rank,
                          std::shared_ptr<Membership> job,
                          const std::vector<int>& global_ranks,
                          std::unique_ptr<HostGroup>* group);

}  // namespace hvd
