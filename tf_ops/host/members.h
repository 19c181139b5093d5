// Who shares a region: the numbers of its members, and their names.
#pragma once

#include <string>
#include <vector>

#include "tf_ops/host/region.h"

namespace hvd {

// Members have numbers in their region, from 0 on; messages name ranks of the
// job. Any thread may call it, except SetPlace, SetPid and BindToJob, which
// come first.
class Members {
 public:
  // `rank`: which member this one is.
  Members(RegionView region, int rank);
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  // For a job over several hosts: the name of this one, and its ranks, by
  // member. Without it, member i is rank i.
  void SetPlace(const std::string& host, std::vector<int> global_ranks);
  void SetPid(int member, int pid);
  // See Membership::BindToJob. Borrows `job`.
  void BindToJob(const Members* job, std::vector<int> members);

  const RegionView& region() const { return region_; }
  int rank() const { return rank_; }           // as a member
  int size() const { return region_.size(); }  // ranks
  int num_members() const { return region_.num_members(); }
  bool IsWire(int member) const { return member == size(); }

  // The rank of a member in the whole job; -1 for the wire.
  int global_rank(int member) const {
    return IsWire(member) ? -1 : global_ranks_[static_cast<size_t>(member)];
  }
  int own_global_rank() const { return global_rank(rank_); }
  // What messages call the member.
  std::string label(int member) const;

  // The job's: of a process set, that of its job, where its members have other
  // numbers.
  bool AreOfJob() const { return job_ == nullptr; }
  const RegionView& job_region() const {
    return AreOfJob() ? region_ : job_->region_;
  }
  int job_member(int member) const {
    if (AreOfJob()) return member;
    return IsWire(member) ? job_->size()
                          : job_members_[static_cast<size_t>(member)];
  }

 private:
  // Tells the wire how the others name this member.
  void TellName();

  const RegionView region_;
  const int rank_;
  std::vector<int> global_ranks_;    // by member
  std::string host_;                 // "": there is one host
  std::vector<std::string> labels_;  // by member

  // Of a process set:
  const Members* job_ = nullptr;  // null: these are the job's own
  std::vector<int> job_members_;  // by member
};

}  // namespace hvd
