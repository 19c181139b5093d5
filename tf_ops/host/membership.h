// Which members of a region are there, which are gone, and why.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/region.h"

namespace hvd {

// Members have numbers in their region, from 0 on; messages name ranks of the
// job. Any thread may call it, except SetPlace, SetPid and BindToJob,
// which come first.
class Membership {
 public:
  // Borrows `doorbell`. `epoch`: which membership of the job this is.
  Membership(RegionView region, int member, uint64_t epoch, Doorbell* doorbell);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // For a job over several hosts: the name of this one, and its ranks, by
  // member. Without it, member i is rank i.
  void SetPlace(const std::string& host, std::vector<int> global_ranks);
  void SetPid(int member, int pid);
  // Makes this the membership of a process set of `job`, which has all ranks of
  // this host and the same epoch. Member i of the set is `members[i]` there;
  // `job` knows who died.
  void BindToJob(std::shared_ptr<Membership> job, std::vector<int> members)
      EXCLUDES(sets_mu_);

  int rank() const { return rank_; }  // as a member
  int size() const { return size_; }  // ranks
  int num_members() const { return region_.num_members(); }
  uint64_t epoch() const { return epoch_; }
  // The rank of a member in the whole job; -1 for the wire.
  int global_rank(int member) const {
    return member == size_ ? -1 : global_ranks_[static_cast<size_t>(member)];
  }
  int own_global_rank() const { return global_rank(rank_); }
  // What messages call the member.
  std::string label(int member) const;

  // For what is kept beside the membership. The job's: of a process set, that
  // of its job, where its members have other numbers.
  const RegionView& region() const { return region_; }
  bool IsOfJob() const { return job_ == nullptr; }
  const RegionView& job_region() const {
    return IsOfJob() ? region_ : job_->region_;
  }
  int job_member(int member) const {
    return IsOfJob() ? member : job_members_[static_cast<size_t>(member)];
  }

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

  // ---- Ranks on other hosts ----
  // One of them has left in peace, or is lost; the first reason of each stays.
  // All members of the region hear of it.
  void NoteOthersLeft(const std::string& reason);
  void NoteOthersLost(const std::string& reason);
  // The network has come apart; these ranks must end and write nothing.
  void NoteMinority();
  bool IsMinority() const;
  // What ranks on other hosts must hear of those here: why the first one left,
  // or is lost; empty: none is.
  std::string WhyLeft() const;
  std::string WhyLost() const;

  // ---- The leader ----
  // The first rank's links are alive; without a call for `timeout` it is lost.
  void NoteLeaderAlive(Clock::time_point now,
                       std::chrono::milliseconds timeout);
  // PeerLost if the first rank, which speaks for this host, has stopped.
  Status CheckLeader(Clock::time_point now) const;

  // The first rank's engine runs.
  void NoteFirstLooks(Clock::time_point now);
  // What to warn of if it has not run for `patience`; empty: it has, or
  // another rank has warned of it.
  std::string WarnOfFirst(Clock::time_point now,
                          std::chrono::milliseconds patience);

  // Ends the wire of this host, even in the middle of a collective.
  void EndWire();

  // ---- Waits ----
  // Makes waits return soon, with Shutdown, now and from now on.
  void Interrupt(const std::string& reason);
  // Shutdown after Interrupt, or for the wire after EndWire.
  Status CheckInterrupt() const;
  // Whether to go on waiting for `member`: Shutdown after Interrupt, PeerLost
  // if it or a rank on another host is gone or CheckLeader says so, Internal
  // after MarkBlind. What it did before it went is visible after this call.
  Status CheckWaitFor(int member) const;

 private:
  // Tells the wire how the others name this member.
  void TellName();
  void GoAway(RankState state, const std::string& reason);
  void RingAll();
  void NoteOthers(const std::string& reason, Words* words);
  Status GoneStatus(int member) const;
  bool IsDead(int member) const;
  bool IsWire(int member) const { return member == size_; }
  // Whether it is dead and has not left in peace.
  bool HasDied(int member) const;
  // PeerLost if a rank is lost, as far as the job and its sets know.
  Status CheckLosses() const EXCLUDES(sets_mu_);
  bool IsAlarmed() const;
  // PeerLost after NoteOthersLost.
  Status CheckOthers() const;
  void Alarm() EXCLUDES(sets_mu_);
  // For the job: PeerLost naming a rank whose process has ended without having
  // left in peace, or ok.
  Status CheckDeaths() const;

  const RegionView region_;
  const int rank_;
  const int size_;
  const uint64_t epoch_;
  Doorbell* const doorbell_;
  std::vector<int> global_ranks_;        // by member
  std::string host_;                     // "": there is one host
  std::vector<std::string> labels_;      // by member
  std::vector<std::string> how_;         // by member; written before `dead_`
  std::vector<std::atomic<bool>> dead_;  // by member
  std::string blind_reason_;             // written before `blind_`
  std::atomic<bool> blind_{false};
  std::atomic<bool> alarmed_{false};  // a rank is dead, or this one blind
  std::string interrupt_reason_;      // written before `interrupted_`
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> failed_{false};

  // Of a process set:
  std::shared_ptr<Membership> job_;  // null: this is the job's own
  std::vector<int> job_members_;     // by member
  // Of the job: whom to ring at an alarm.
  mutable Mutex sets_mu_;
  std::vector<Membership*> sets_ GUARDED_BY(sets_mu_);
};

}  // namespace hvd
