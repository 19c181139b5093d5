// Which other hosts are silent, and what follows.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"

namespace hvd {

struct SilenceOptions {
  int host = 0;  // this one
  // By host, for messages.
  std::vector<std::string> leaders;  // "rank 2 (host b, pid 7)"
  std::vector<std::string> hosts;    // "host b (ranks 2, 3)"
  // The ranks of the job, by host; empty if this is for a process set.
  std::vector<std::vector<int>> job_ranks;
  // A host that is silent for this long is lost; for half as long again if this
  // is for a process set. 0: never.
  std::chrono::milliseconds timeout{10000};
  // After so long there is a warning; 0: never.
  std::chrono::milliseconds warning{0};
};

// Knows when each host was last heard. Whom this one hears by way of host 0
// alone is not expected to speak. One thread uses it.
class Silence {
 public:
  struct Finding {
    std::string text;
    bool is_lost = false;  // else it is a warning
    // Others are silent, too, and this side is not the one that may go on.
    bool is_minority = false;
  };

  // `is_expected`: by host, whether it speaks to this one.
  Silence(const SilenceOptions& options, const std::vector<bool>& is_expected,
          Clock::time_point now);

  void Hear(size_t host, Clock::time_point now);
  void End(size_t host);   // it has said that it ends: it may fall silent
  void Lose(size_t host);  // nothing more comes
  bool has_ended(size_t host) const { return hosts_[host].has_ended; }
  bool is_expected(size_t host) const { return hosts_[host].is_expected; }

  // What is to be said of one host; a host that is lost is so from now on.
  std::optional<Finding> Look(size_t host, Clock::time_point now);

 private:
  struct Host {
    bool is_expected = false;
    bool has_ended = false;
    bool has_warned = false;
    Clock::time_point last_heard;
  };

  std::chrono::milliseconds Patience() const;
  std::optional<Finding> Warn(size_t host, Clock::duration silence);
  Finding Loss(size_t host, Clock::time_point now) const;
  std::vector<int> RanksSilentAt(Clock::time_point now) const;

  const SilenceOptions options_;
  std::vector<Host> hosts_;
};

}  // namespace hvd
