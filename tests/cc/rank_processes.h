// Ranks that are processes over shared memory, for tests and benchmarks.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/host/shm/shm.h"

namespace hvd {

// Ends the process, which cannot go on.
inline void OrDie(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}
inline void OrDie(const Status& status) {
  OrDie(status.ok(), status.message().c_str());
}

using RankBody = std::function<void(std::unique_ptr<HostGroup>)>;

// Runs `body` in `size` processes and returns their wait statuses. The calling
// process must have no other thread.
inline std::vector<int> ForkRanks(int size, const RankBody& body) {
  ShmSegment segment;
  OrDie(CreateSegment({size}, &segment));
  std::vector<pid_t> pids(static_cast<size_t>(size));
  std::vector<int> writers;
  const size_t num_bytes = pids.size() * sizeof(pid_t);
  const auto whole = static_cast<ssize_t>(num_bytes);
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    OrDie(pipe(ends) == 0, "pipe");
    const pid_t pid = fork();
    OrDie(pid >= 0, "fork");
    if (pid == 0) {
      OrDie(read(ends[0], pids.data(), num_bytes) == whole, "read");
      std::unique_ptr<HostGroup> group;
      OrDie(AttachSegment(segment, rank, pids, /*epoch=*/0, &group));
      body(std::move(group));
      std::_Exit(0);
    }
    close(ends[0]);
    writers.push_back(ends[1]);
    pids[static_cast<size_t>(rank)] = pid;
  }
  for (int writer : writers) {
    OrDie(write(writer, pids.data(), num_bytes) == whole, "write");
    close(writer);
  }
  std::vector<int> statuses;
  for (pid_t pid : pids) {
    int status = 0;
    OrDie(waitpid(pid, &status, 0) == pid, "waitpid");
    statuses.push_back(status);
  }
  close(segment.fd);
  return statuses;
}

}  // namespace hvd
