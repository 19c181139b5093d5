// The leaders of hosts, connected by TCP.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/fd.h"
#include "tf_ops/common/status.h"
#include "tf_ops/wire/control_links.h"
#include "tf_ops/wire/tcp/clock_reader.h"
#include "tf_ops/wire/tcp/silence.h"

namespace hvd {

struct TcpLinksOptions : SilenceOptions {
  // By host; the other ends have proved themselves. Host 0 has one for each
  // other host, the others have one for host 0; the rest are closed.
  std::vector<Fd> sockets;
  // A word at least this often shows that a host is there; 0: never.
  std::chrono::milliseconds heartbeat{2000};
  std::function<void(const std::string& text)> warn;

  // Called on a thread of the links, and `why_left` by the destructor too.
  std::function<void()> ring;   // something has come
  std::function<void()> alive;  // several times a second: we run
  // What the other hosts must hear: why the first rank of this host left, or is
  // lost; empty: none is.
  std::function<std::string()> why_left;
  std::function<std::string()> why_lost;
  // Ranks of other hosts left, or are lost.
  std::function<void(const std::string& reason)> others_left;
  std::function<void(const std::string& reason)> others_lost;
  // Others are silent, and this side is not the one that may go on.
  std::function<void()> is_minority;
  // May be null, as both are on host 0. If `clock_is_due`, asked at once and
  // then several times a second, says so, this host reads the clock of host 0.
  std::function<bool()> clock_is_due;
  std::function<void(const ClockReading& reading)> clock_was_read;
};

// Has a thread that sends what did not go at once, receives, sends heartbeats
// and passes on who left and who is lost. Such news comes behind what the host
// has sent before.
Status ConnectTcpLinks(TcpLinksOptions options,
                       std::unique_ptr<ControlLinks>* links);

}  // namespace hvd
