// Whether the first rank of a host still works: it speaks for the host, and its
// engine answers the others.
#pragma once

#include <chrono>
#include <string>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// Any thread may call it.
class FirstRank {
 public:
  // Borrows `membership`.
  explicit FirstRank(const Membership* membership)
      : membership_(*membership),
        header_(membership->members().region().header()) {}

  // Its links are alive; without a call for `timeout` it is lost.
  void NoteAlive(Clock::time_point now, std::chrono::milliseconds timeout);
  // PeerLost if it has stopped. Ok on the first rank, and if it is gone, of
  // which Membership knows more.
  Status CheckAlive(Clock::time_point now) const;

  // Its engine runs.
  void NoteLooks(Clock::time_point now);
  // What to warn of if that has not run for `patience`; empty: it has, or
  // another rank has warned of it.
  std::string WarnOfSilence(Clock::time_point now,
                            std::chrono::milliseconds patience) const;

 private:
  const Membership& membership_;
  RegionHeader* const header_;
};

}  // namespace hvd
