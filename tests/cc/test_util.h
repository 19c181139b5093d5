// Ranks to run checks on: threads over memory, or real processes.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/check.h"
#include "tests/cc/rank_processes.h"
#include "tf_ops/collectives/host/host_collectives.h"
#include "tf_ops/host/in_memory/in_memory.h"

namespace hvd {

// What is said of ranks that wait for a call of the user's.
inline std::string Advised(const std::string& text) {
  return text +
         ". Do all ranks make this call? It must not stand under `if "
         "hvd.rank() == 0`";
}

// Runs `body(rank)` on `size` threads. If one throws, as a failed REQUIRE does,
// calls `abandon(rank)` at once, so that the others do not wait for it, and
// throws the first exception again when all have ended. Defined in
// test_main.cc, like the deadline of each test, which prints stacks and aborts.
void RunOnThreads(
    int size, const std::function<void(int rank)>& body,
    const std::function<void(int rank)>& abandon = [](int) {});

// Runs `body` on `size` threads, with a group each.
inline void RunThreads(int size, const std::function<void(HostGroup*)>& body) {
  const auto groups = CreateInMemory(size);
  RunOnThreads(
      size, [&](int rank) { body(groups[static_cast<size_t>(rank)].get()); },
      [&](int failed) {
        for (const auto& group : groups) {
          if (group->rank() != failed) group->membership()->MarkDead(failed);
        }
      });
}
inline void RunThreads(int size, const std::function<void(HostSlabs*)>& body) {
  RunThreads(size, [&body](HostGroup* group) { body(group->slabs()); });
}
inline void RunThreads(int size,
                       const std::function<void(Collectives*)>& body) {
  RunThreads(size, [&body](HostSlabs* slabs) {
    HostCollectives collectives(slabs);
    body(&collectives);
  });
}

// On 1 rank, on 2, and so on up to `max_size`.
template <typename Body>
void RunThreadsUpTo(int max_size, const Body& body) {
  for (int size = 1; size <= max_size; ++size) RunThreads(size, body);
}

// Runs `body` in `size` processes and returns their wait statuses: not 0 if a
// check has failed there. The calling process must have no other thread.
std::vector<int> RunProcesses(int size, const RankBody& body);

// Ends a process that a test has forked: with 1 if a check has failed there.
[[noreturn]] void EndChild();

inline void CheckAllExitedWell(const std::vector<int>& statuses) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    CAPTURE(rank);
    CHECK(statuses[rank] == 0);
  }
}

}  // namespace hvd
