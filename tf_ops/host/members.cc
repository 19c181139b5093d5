#include "tf_ops/host/members.h"

#include <numeric>
#include <utility>

namespace hvd {

Members::Members(RegionView region, int rank)
    : region_(region),
      rank_(rank),
      global_ranks_(static_cast<size_t>(region.size())) {
  std::iota(global_ranks_.begin(), global_ranks_.end(), 0);
  for (int global_rank : global_ranks_) {
    labels_.push_back("rank " + std::to_string(global_rank));
  }
  if (num_members() > size()) labels_.push_back("the wire of this host");
}

void Members::SetPlace(const std::string& host, std::vector<int> global_ranks) {
  host_ = host;
  global_ranks_ = std::move(global_ranks);
  for (size_t i = 0; i < global_ranks_.size(); ++i) {
    labels_[i] = "rank " + std::to_string(global_ranks_[i]);
  }
  if (num_members() > size()) labels_.back() = "the wire of host " + host;
}

void Members::SetPid(int member, int pid) {
  const bool has_host = !host_.empty() && !IsWire(member);
  labels_[static_cast<size_t>(member)] +=
      (has_host ? " (host " + host_ + ", pid " : " (pid ") +
      std::to_string(pid) + ")";
  if (member == rank_) TellName();
}

void Members::BindToJob(const Members* job, std::vector<int> members) {
  job_members_ = std::move(members);
  for (size_t i = 0; i < job_members_.size(); ++i) {
    const size_t member = static_cast<size_t>(job_members_[i]);
    labels_[i] = job->labels_[member];
    global_ranks_[i] = job->global_ranks_[member];
  }
  if (num_members() > size() && job->num_members() > job->size()) {
    labels_.back() = job->labels_.back();  // they share it
  }
  TellName();
  job_ = job;
}

void Members::TellName() {
  region_.area(rank_)->info.name.Set(labels_[static_cast<size_t>(rank_)]);
}

std::string Members::label(int member) const {
  // Nobody has told the wire the ranks' numbers in the job, or their pids.
  const std::string told =
      IsWire(rank_) ? region_.area(member)->info.name.Get() : "";
  return told.empty() ? labels_[static_cast<size_t>(member)] : told;
}

}  // namespace hvd
