// Ranks as processes of one host: a sealed memfd that leaves nothing behind,
// and pidfds that tell at once who died.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/fd.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/transport.h"

namespace hvd {

// Where the region is: file `fd` of process `pid`, proved by `token`.
struct ShmSegment {
  pid_t pid = 0;
  int fd = -1;
  std::string token;  // kTokenBytes random bytes
};

class ShmTransport : public Transport {
 public:
  // Makes the region of `size` ranks in this process; its caller closes
  // `segment->fd` once every rank has attached.
  static Status CreateSegment(int size, ShmSegment* segment);

  // Maps the region and begins to watch the processes `pids` (by rank).
  static Status Attach(const ShmSegment& segment, int rank,
                       const std::vector<pid_t>& pids,
                       std::unique_ptr<ShmTransport>* transport);

  // Maps the region of a process set, see BindToJob(); `job` does the watching.
  static Status AttachSet(const ShmSegment& segment, int rank,
                          std::shared_ptr<Transport> job,
                          const std::vector<int>& global_ranks,
                          std::unique_ptr<ShmTransport>* transport);

  ~ShmTransport() override;

 private:
  using Transport::Transport;
  Status StartWatching(const std::vector<pid_t>& pids);
  void Watch();

  std::vector<Fd> pidfds_;  // by rank; none for this one
  Fd stop_fd_;              // an eventfd that ends the watcher
  std::thread watcher_;
};

}  // namespace hvd
