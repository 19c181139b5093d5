// One order in which the ranks of a host launch on their GPUs what several
// process sets run. A kernel waits for those of other ranks: two ranks that
// launch kernels of two sets in different orders could wait for ever.
//
// Each rank launches by turns. The first rank that comes to launch n of a set
// draws it: all members get their next turn at once. So any two launches have
// the same order on all ranks that take part in both; sets without a common
// rank stay free of each other.
//
// It serves sets inside a host, and one set over several hosts: each host draws
// that one's launches among its own, and all hosts in the order of the set. Two
// sets over the same hosts could get different orders.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/members.h"

namespace hvd {

// One thread calls it. All members launch the same things in the same order.
class LaunchOrder {
 public:
  // Borrows `members`; those of a process set know their job.
  explicit LaunchOrder(const Members* members);
  // Lets others go on, even if launches that were drawn have not come.
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  // Waits for the turn of this rank's next launch. An error of `look` ends the
  // wait; then the rank launches nothing any more.
  using Look = std::function<Status()>;
  Status Begin(const Look& look);
  void End();  // after Begin: it is launched, or has failed

 private:
  bool IsDrawn() const;
  bool TryDraw() const;  // false: another rank is at it, or is far behind

  const Members& members_;
  const RegionView set_;
  const RegionView job_;
  GpuTurns* const own_;      // in the set
  GpuTurns* const own_job_;  // in the job
  uint64_t num_ended_ = 0;
};

}  // namespace hvd
