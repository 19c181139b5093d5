// The links of leaders over sockets: how they read each other's clock.
#include "tf_ops/wire/tcp/tcp_links.h"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "tests/cc/test_util.h"
#include "tf_ops/common/futex.h"

namespace hvd {
namespace {

// Of one host of two.
TcpLinksOptions OptionsOf(int host, int socket) {
  TcpLinksOptions options;
  options.host = host;
  options.sockets.resize(2);
  options.sockets[static_cast<size_t>(1 - host)] = Fd(socket);
  options.leaders = {"rank 0", "rank 1"};
  options.hosts = {"host a", "host b"};
  options.ring = [] {};
  options.alive = [] {};
  options.why_left = [] { return std::string(); };
  options.why_lost = [] { return std::string(); };
  options.others_left = [](const std::string&) {};
  options.others_lost = [](const std::string&) {};
  options.is_minority = [] {};
  return options;
}

TEST_CASE("a host reads the clock of host 0 when that is due") {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  std::atomic<int> num_due{2};
  std::atomic<int> num_read{0};
  std::atomic<int64_t> offset_ns{0};
  std::atomic<int64_t> error_ns{0};
  const Clock::time_point begin = Clock::now();
  TcpLinksOptions second = OptionsOf(1, sockets[1]);
  second.clock_is_due = [&] { return num_due.fetch_sub(1) > 0; };
  second.clock_was_read = [&](const ClockReading& reading) {
    CHECK(reading.at >= begin);
    CHECK(reading.at <= Clock::now());
    offset_ns = reading.offset.count();
    error_ns = reading.error.count();
    ++num_read;
  };
  std::unique_ptr<ControlLinks> links[2];
  REQUIRE_OK(ConnectTcpLinks(OptionsOf(0, sockets[0]), &links[0]));
  REQUIRE_OK(ConnectTcpLinks(std::move(second), &links[1]));
  while (num_read < 2 && Clock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  links[1].reset();
  links[0].reset();
  CHECK(num_read == 2);
  // It is the same clock.
  CHECK(error_ns > 0);
  CHECK(std::abs(offset_ns.load()) <= error_ns.load());
}

}  // namespace
}  // namespace hvd
