// Watches processes of this host through pidfds.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/fd.h"
#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_group.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// A thread that sleeps until a process ends. If poll() cannot wait for all
// processes at once, it looks now and then; if it cannot look either, it tells
// the membership. Start and end it on one thread.
class PidfdWatch : public DeathWatch {
 public:
  // Watches `pids`, by rank, for `membership`, which it borrows. First puts
  // the pids into the ranks' labels.
  static Status Start(const std::vector<pid_t>& pids, Membership* membership,
                      std::unique_ptr<DeathWatch>* watch);
  ~PidfdWatch() override;

 private:
  explicit PidfdWatch(Membership* membership) : membership_(membership) {}
  Status Open(const std::vector<pid_t>& pids);
  void Watch();  // the thread
  void MarkDeadOnes();
  void Note(int member);  // has ended
  int MillisecondsLeft() const;
  bool must_stop() const { return must_end_ || polled_.back().revents != 0; }

  Membership* const membership_;
  std::vector<pid_t> pids_;  // by member
  std::vector<Fd> pidfds_;   // likewise; none for this one
  Fd stop_;                  // an eventfd that ends the thread at once
  std::atomic<bool> must_end_{false};
  // Used by the thread alone: by rank, then `stop_`; poll() skips fd -1.
  std::vector<pollfd> polled_;
  std::string how_wire_ended_;
  std::optional<Clock::time_point> wire_due_;  // when to tell of it
  std::thread thread_;
};

}  // namespace hvd
