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
#include "tf_ops/host/region.h"

namespace hvd {

// Where the region is: file `fd` of process `pid`, proved by `token`.
struct ShmSegment {
  pid_t pid = 0;
  int fd = -1;
  std::string token;  // kTokenBytes random bytes
  RegionShape shape;
};

// Makes a region in this process; its caller closes `segment->fd` once all
// members have attached.
Status CreateSegment(const RegionShape& shape, ShmSegment* segment);

// Maps the region and begins to watch the processes `pids` (by member). See
// Membership for `epoch`, and SetPlace for `host` and `global_ranks`: empty if
// there is one host.
Status AttachSegment(const ShmSegment& segment, int member,
                     const std::vector<pid_t>& pids, uint64_t epoch,
                     std::unique_ptr<HostGroup>* group,
                     const std::string& host = "",
                     const std::vector<int>& global_ranks = {});

// Maps the region as its wire, which watches nobody: its leader ends it.
Status AttachAsWire(const ShmSegment& segment, uint64_t epoch,
                    std::unique_ptr<HostGroup>* group);

// Maps the region of a process set, see Membership::BindToJob. The watch of
// `job` serves the set too.
Status AttachSegmentOfSet(const ShmSegment& segment, int member,
                          std::shared_ptr<Membership> job,
                          const std::vector<int>& job_members,
                          std::unique_ptr<HostGroup>* group);

}  // namespace hvd
