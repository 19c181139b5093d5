// Several hosts in one process: ranks and wires are threads.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/hierarchical/hierarchical_collectives.h"
#include "tf_ops/collectives/wire/wire_loop.h"
#include "tf_ops/host/host_layout.h"
#include "tf_ops/wire/loopback/loopback.h"
#include "tf_ops/wire/tcp/tcp_links.h"

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
      for (const auto& group : groups_.back()) {
        group->membership()->members().SetPlace("h", of_host);
      }
    }
    for (size_t host = 0; host < ranks_.size(); ++host) {
      threads_.emplace_back([this, host] {
        // The ranks hear of an error.
        (void)WireLoop(groups_[host].back().get(), wires_[host].get())
            .Run()
            .ok();
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
  // Connects the leaders. Call it once; `links` are by host.
  std::vector<std::unique_ptr<ControlLinks>> Connect() {
    const size_t num_hosts = ranks_.size();
    std::vector<TcpLinksOptions> options(num_hosts);
    for (TcpLinksOptions& one : options) {
      one.sockets.resize(num_hosts);
      one.leaders.resize(num_hosts);
      one.hosts.resize(num_hosts);
    }
    for (size_t host = 1; host < num_hosts; ++host) {
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
      options[0].sockets[host] = Fd(ends[0]);
      options[host].sockets[0] = Fd(ends[1]);
    }
    std::vector<std::unique_ptr<ControlLinks>> links(num_hosts);
    for (size_t host = 0; host < num_hosts; ++host) {
      HostGroup* const leader = groups_[host][0].get();
      TcpLinksOptions& one = options[host];
      one.host = static_cast<int>(host);
      for (size_t peer = 0; peer < num_hosts; ++peer) {
        one.leaders[peer] = "leader " + std::to_string(peer);
        one.hosts[peer] = "host " + std::to_string(peer);
      }
      one.ring = [leader] { leader->doorbell()->RingOwn(); };
      one.alive = [] {};
      one.is_minority = [] {};
      one.why_left = [leader] { return leader->membership()->WhyLeft(); };
      one.why_lost = [leader] { return leader->membership()->WhyLost(); };
      one.others_left = [leader](const std::string& reason) {
        leader->membership()->other_hosts().NoteLeft(reason);
      };
      one.others_lost = [leader](const std::string& reason) {
        leader->membership()->other_hosts().NoteLost(reason);
      };
      REQUIRE_OK(ConnectTcpLinks(std::move(one), &links[host]));
    }
    return links;
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
                                            group->membership(),
                                            hosts.layout(host, member));
        body(&collectives);
      },
      [&](int) { hosts.Interrupt(); });
}

}  // namespace hvd
