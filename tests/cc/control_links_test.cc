// The contract of control links. Hosts are threads.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/common/futex.h"
#include "tf_ops/wire/control_links.h"
#include "tf_ops/wire/loopback/loopback_links.h"

namespace hvd {
namespace {

constexpr size_t kCapacityBytes = 1000;
constexpr std::chrono::seconds kLong{20};

// The links of some hosts, and how often each was rung.
struct Hosts {
  explicit Hosts(int num_hosts) : num_rings(static_cast<size_t>(num_hosts)) {
    LoopbackOptions options;
    options.capacity_bytes = kCapacityBytes;
    options.timeout = std::chrono::milliseconds(300);
    options.ring = [this](int host) { ++num_rings[static_cast<size_t>(host)]; };
    links = CreateLoopbackLinks(num_hosts, options);
  }

  std::vector<std::atomic<int>> num_rings;           // by host
  std::vector<std::unique_ptr<ControlLinks>> links;  // likewise
};

std::vector<int> PeersOf(const ControlLinks& links) {
  if (links.host() > 0) return {0};
  std::vector<int> peers;
  for (int host = 1; host < links.num_hosts(); ++host) peers.push_back(host);
  return peers;
}

std::vector<uint8_t> BytesFor(int from, int to) {
  std::vector<uint8_t> bytes(5 * kCapacityBytes + 7);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] =
        static_cast<uint8_t>(i * 7 + static_cast<size_t>(from * 31 + to));
  }
  return bytes;
}

TEST_CASE("more bytes than a stream holds go both ways") {
  for (int num_hosts = 2; num_hosts <= 4; ++num_hosts) {
    Hosts hosts(num_hosts);
    RunOnThreads(num_hosts, [&](int host) {
      ControlLinks* const links = hosts.links[static_cast<size_t>(host)].get();
      CHECK(links->host() == host);
      CHECK(links->num_hosts() == num_hosts);
      const std::vector<int> peers = PeersOf(*links);
      for (int peer : peers) links->Send(peer, BytesFor(host, peer));
      CHECK(links->has_unsent());
      std::vector<std::vector<uint8_t>> received(
          static_cast<size_t>(num_hosts));
      const Clock::time_point end = Clock::now() + kLong;
      size_t num_done = 0;
      while (links->has_unsent() || num_done < peers.size()) {
        REQUIRE(Clock::now() < end);
        REQUIRE_OK(links->Flush());
        num_done = 0;
        for (int peer : peers) {
          std::vector<uint8_t>& bytes = received[static_cast<size_t>(peer)];
          const size_t before = bytes.size();
          bool any = false;
          REQUIRE_OK(links->Receive(peer, &bytes, &any));
          CHECK(any == (bytes.size() > before));
          if (bytes.size() == BytesFor(peer, host).size()) ++num_done;
        }
        std::this_thread::yield();
      }
      for (int peer : peers) {
        CHECK(received[static_cast<size_t>(peer)] == BytesFor(peer, host));
      }
    });
  }
}

TEST_CASE("what arrives rings, as does room for what is unsent") {
  Hosts hosts(3);
  ControlLinks* const first = hosts.links[0].get();
  ControlLinks* const last = hosts.links[2].get();
  last->Send(0, std::vector<uint8_t>(kCapacityBytes + 1));
  CHECK(hosts.num_rings[0] == 0);  // nothing was sent yet
  REQUIRE_OK(last->Flush());
  CHECK(hosts.num_rings[0] == 1);
  CHECK(last->has_unsent());
  std::vector<uint8_t> bytes;
  bool received = false;
  REQUIRE_OK(first->Receive(1, &bytes, &received));
  CHECK(!received);
  REQUIRE_OK(first->Receive(2, &bytes, &received));
  CHECK(received);
  CHECK(hosts.num_rings[2] == 1);
  REQUIRE_OK(last->Flush());
  CHECK(!last->has_unsent());
  REQUIRE_OK(first->Receive(2, &bytes, &received));
  CHECK(bytes.size() == kCapacityBytes + 1);
  CHECK(hosts.num_rings[2] == 1);
  CHECK(hosts.num_rings[1] == 0);
}

TEST_CASE("FlushAll waits for readers, but not for ever") {
  Hosts hosts(2);
  hosts.links[0]->Send(1, BytesFor(0, 1));
  CHECK(hosts.links[0]->FlushAll().code() == StatusCode::kStalled);
  RunOnThreads(2, [&](int host) {
    if (host == 0) {
      CHECK_OK(hosts.links[0]->FlushAll());
      CHECK(!hosts.links[0]->has_unsent());
      return;
    }
    std::vector<uint8_t> bytes;
    bool received = false;
    const Clock::time_point end = Clock::now() + kLong;
    while (bytes.size() < BytesFor(0, 1).size() && Clock::now() < end) {
      REQUIRE_OK(hosts.links[1]->Receive(0, &bytes, &received));
      std::this_thread::yield();
    }
    CHECK(bytes == BytesFor(0, 1));
  });
}

}  // namespace
}  // namespace hvd
