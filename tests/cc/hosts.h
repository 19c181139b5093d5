// Several hosts in one process: ranks and wires are threads.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/hierarchical/hierarchical_collectives.h"
#include "tf_ops/collectives/wire/wire_loop.h"
#include "tf_ops/host/host_layout.h"
#include "tf_ops/wire/loopback/loopback.h"

namespace hvd {

// The groups of all ranks, and a running wire for each host.
class Hosts {
 public:
  // The ranks of each host, in the order of its members.
  explicit Hosts(std::vector<std::vector<int>> ranks)
      : ranks_(std::move(ranks)),
        wires_(CreateLoopbackWires(static_cast<int>(ranks_.size()))) {
    for (const std::vector<int>& of_host : ranks_) {
      groups_.push_back(CreateInMemory(
          RegionShape(static_cast<int>(of_host.size()), /*with_wire=*/true)));
    }
    for (size_t host = 0; host < ranks_.size(); ++host) {
      threads_.emplace_back([this, host] {
        const Status status =
            WireLoop(groups_[host].back().get(), wires_[host].get()).Run();
        if (!status.ok()) MESSAGE(status.message());
      });
    }
  }
  // The ranks have told their wires to end, or Interrupt() was called.
  ~Hosts() {
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return layout(0, 0).size(); }
  HostLayout layout(size_t host, size_t member) const {
    return {ranks_, static_cast<int>(host), static_cast<int>(member)};
  }
  // Where a rank is.
  std::pair<size_t, size_t> Find(int rank) const {
    for (size_t host = 0; host < ranks_.size(); ++host) {
      for (size_t member = 0; member < ranks_[host].size(); ++member) {
        if (ranks_[host][member] == rank) return {host, member};
      }
    }
    return {0, 0};
  }
  HostGroup* group(int rank) const {
    const auto [host, member] = Find(rank);
    return groups_[host][member].get();
  }
  // Ends all waits of all ranks and wires.
  void Interrupt() {
    for (const auto& groups : groups_) {
      for (const auto& group : groups) {
        group->membership()->Interrupt("a test has failed");
      }
    }
  }

 private:
  const std::vector<std::vector<int>> ranks_;
  const std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<std::vector<std::unique_ptr<HostGroup>>> groups_;  // by host
  std::vector<std::thread> threads_;                             // the wires
};

// Runs `body` on a thread for each rank.
inline void RunHosts(const std::vector<std::vector<int>>& ranks,
                     const std::function<void(Collectives*)>& body) {
  Hosts hosts(ranks);
  RunOnThreads(
      hosts.size(),
      [&](int rank) {
        const auto [host, member] = hosts.Find(rank);
        HostGroup* const group = hosts.group(rank);
        HierarchicalCollectives collectives(group->slabs(), group->control(),
                                            hosts.layout(host, member));
        body(&collectives);
      },
      [&](int) { hosts.Interrupt(); });
}

}  // namespace hvd
