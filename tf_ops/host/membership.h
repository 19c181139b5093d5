// Which members of a region are there, which are gone, and why.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/members.h"
#include "tf_ops/host/other_hosts.h"
#include "tf_ops/host/region.h"

namespace hvd {

// Any thread may call it, except BindToJob, which comes first.
class Membership {
 public:
  // Borrows `doorbell`. `epoch`: which membership of the job this is.
  Membership(RegionView region, int member, uint64_t epoch, Doorbell* doorbell);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Makes this the membership of a process set of `job`, which has all ranks of
  // this host and the same epoch. Member i of the set is `members[i]` there;
  // `job` knows who died.
  void BindToJob(std::shared_ptr<Membership> job, std::vector<int> members)
      EXCLUDES(sets_mu_);

  uint64_t epoch() const { return epoch_; }
  Members& members() { return members_; }
  const Members& members() const { return members_; }
  OtherHosts& other_hosts() { return other_hosts_; }

  // ---- What this rank says ----
  // Tells the peers that this rank leaves; they quote `reason`. If it knows
  // that a rank is lost, they hear of that instead.
  void Leave(const std::string& reason) EXCLUDES(sets_mu_);
  // Tells them that this rank cannot go on. If it has lost a rank, they hear
  // which one.
  void DeclareBroken(const Status& why);
  // What peers quote if this process ends without Leave().
  void NoteExitReason(const std::string& reason);
  // This rank has failed and will Leave(). Ranks that share no process set with
  // it then treat the end of its process as a death.
  void NoteFailure(const std::string& reason);

  // ---- What it knows of its peers ----
  // PeerLost naming the first rank that is gone, Internal after MarkBlind, or
  // ok. For a process set also PeerLost if a rank of the job outside of it has
  // died, but not if it has left.
  Status CheckPeers() const;
  bool IsGone(int member) const;
  // `member` was found dead. `how`: if that is known, "SIGKILL" for example.
  void MarkDead(int member, const std::string& how = "") EXCLUDES(sets_mu_);
  // This rank can no longer notice deaths, so it must not wait for others. Call
  // it once.
  void MarkBlind(const std::string& why) EXCLUDES(sets_mu_);
  Status CheckSight() const;  // Internal after MarkBlind

  // Waits until all ranks of this host that still take part have called it,
  // `patience` at most: after a loss, before they free memory that they share.
  // Once in a membership.
  void Meet(std::chrono::milliseconds patience);

  // What ranks on other hosts must hear of those here: why the first one left,
  // or is lost; empty: none is.
  std::string WhyLeft() const;
  std::string WhyLost() const;

  // ---- Waits ----
  // Ends the wire of this host, even in the middle of a collective.
  void EndWire();
  // Makes waits return soon, with Shutdown, now and from now on.
  void Interrupt(const std::string& reason);
  // Shutdown after Interrupt, or for the wire after EndWire.
  Status CheckInterrupt() const;
  // Whether to go on waiting for `member`: Shutdown after Interrupt, PeerLost
  // if it or a rank on another host is gone or the first rank has stopped,
  // Internal after MarkBlind. What it did before it went is visible after this
  // call.
  Status CheckWaitFor(int member) const;

 private:
  void GoAway(RankState state, const std::string& reason);
  Status GoneStatus(int member) const;
  bool IsDead(int member) const;
  // Whether it is dead and has not left in peace.
  bool HasDied(int member) const;
  // PeerLost if a rank is lost, as far as the job and its sets know.
  Status CheckLosses() const EXCLUDES(sets_mu_);
  bool IsAlarmed() const;
  // PeerLost if a rank on another host is lost.
  Status CheckOthers() const;
  void Alarm() EXCLUDES(sets_mu_);
  // For the job: PeerLost naming a rank whose process has ended without having
  // left in peace, or ok.
  Status CheckDeaths() const;

  const RankInfo& InfoOf(int member) const {
    return region_.area(member)->info;
  }
  RankInfo& own_info() { return region_.area(members_.rank())->info; }

  const RegionView region_;
  const uint64_t epoch_;
  Doorbell* const doorbell_;
  Members members_;
  OtherHosts other_hosts_;
  std::vector<std::string> how_;         // by member; written before `dead_`
  std::vector<std::atomic<bool>> dead_;  // by member
  std::string blind_reason_;             // written before `blind_`
  std::atomic<bool> blind_{false};
  std::atomic<bool> alarmed_{false};  // a rank is dead, or this one blind
  std::string interrupt_reason_;      // written before `interrupted_`
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> failed_{false};

  std::shared_ptr<Membership> job_;  // of a process set; null: it is the job's
  // Of the job: whom to ring at an alarm.
  mutable Mutex sets_mu_;
  std::vector<Membership*> sets_ GUARDED_BY(sets_mu_);
};

}  // namespace hvd
