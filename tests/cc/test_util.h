// Checks, and ranks to run them on: threads over memory, or real processes.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/host/in_memory/in_memory.h"
#include "tf_ops/host/shm/shm.h"

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, \
                   #condition);                                             \
      std::abort();                                                         \
    }                                                                       \
  } while (false)

#define CHECK_OK(expression)                                  \
  do {                                                        \
    const ::hvd::Status check_status_ = (expression);         \
    if (!check_status_.ok()) {                                \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
                   check_status_.message().c_str());          \
      std::abort();                                           \
    }                                                         \
  } while (false)

namespace hvd {

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using RankBody = std::function<void(std::unique_ptr<Transport>)>;

// Runs `body` on `size` threads.
inline void RunThreads(int size, const RankBody& body) {
  auto group = InMemoryTransport::CreateGroup(size);
  std::vector<std::thread> threads;
  for (auto& transport : group) {
    threads.emplace_back(
        [&body, t = std::move(transport)]() mutable { body(std::move(t)); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs `body` in `size` processes and returns their wait statuses. The
// calling process must have no other thread.
inline std::vector<int> RunProcesses(int size, const RankBody& body) {
  ShmSegment segment;
  CHECK_OK(ShmTransport::CreateSegment(size, &segment));
  std::vector<pid_t> pids(static_cast<size_t>(size));
  std::vector<int> writers;
  const size_t num_bytes = pids.size() * sizeof(pid_t);
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      CHECK(read(ends[0], pids.data(), num_bytes) ==
            static_cast<ssize_t>(num_bytes));
      std::unique_ptr<ShmTransport> transport;
      CHECK_OK(ShmTransport::Attach(segment, rank, pids, &transport));
      body(std::move(transport));
      std::_Exit(0);
    }
    close(ends[0]);
    writers.push_back(ends[1]);
    pids[static_cast<size_t>(rank)] = pid;
  }
  for (int writer : writers) {
    CHECK(write(writer, pids.data(), num_bytes) ==
          static_cast<ssize_t>(num_bytes));
    close(writer);
  }
  std::vector<int> statuses;
  for (pid_t pid : pids) {
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    statuses.push_back(status);
  }
  close(segment.fd);
  return statuses;
}

inline void CheckAllExitedWell(const std::vector<int>& statuses) {
  for (int status : statuses) {
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace hvd
