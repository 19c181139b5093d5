#include "tf_ops/host/membership.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

void Store(const std::string& text, Words* words) {
  uint32_t unset = 0;  // the first words stay
  if (!words->is_set.compare_exchange_strong(unset, 1)) return;
  const size_t count = std::min(text.size(), kWordsBytes - 1);
  std::memcpy(words->text, text.data(), count);
  words->text[count] = 0;
  words->is_set.store(2);
}

std::string Load(const Words& words) {
  if (words.is_set.load() != 2) return "";
  return std::string(words.text, strnlen(words.text, kWordsBytes));
}

}  // namespace

Membership::Membership(RegionView region, int rank, uint64_t epoch,
                       Doorbell* doorbell)
    : region_(region),
      rank_(rank),
      size_(region.size()),
      epoch_(epoch),
      doorbell_(doorbell),
      dead_(static_cast<size_t>(size_)) {
  for (int peer = 0; peer < size_; ++peer) {
    labels_.push_back("rank " + std::to_string(peer));
  }
}

Membership::~Membership() {
  if (job_ == nullptr) return;
  MutexLock lock(&job_->sets_mu_);
  std::vector<Membership*>* sets = &job_->sets_;
  sets->erase(std::remove(sets->begin(), sets->end(), this), sets->end());
}

void Membership::BindToJob(std::shared_ptr<Membership> job,
                           std::vector<int> global_ranks) {
  global_ranks_ = std::move(global_ranks);
  for (size_t i = 0; i < global_ranks_.size(); ++i) {
    labels_[i] = job->labels_[static_cast<size_t>(global_ranks_[i])];
  }
  job_ = std::move(job);
  MutexLock lock(&job_->sets_mu_);
  job_->sets_.push_back(this);
}

void Membership::SetLabel(int rank, std::string label) {
  labels_[static_cast<size_t>(rank)] = std::move(label);
}

void Membership::Interrupt(const std::string& reason) {
  interrupt_reason_ = reason;
  interrupted_.store(true);
  doorbell_->RingOwn();
}

Status Membership::CheckInterrupt() const {
  return interrupted_.load() ? Status::Shutdown(interrupt_reason_)
                             : Status::Ok();
}

Status Membership::CheckWaitFor(int peer) const {
  // Read before the interrupt: it may be gone because this rank leaves.
  const bool gone = IsGone(peer);
  HVD_RETURN_IF_ERROR(CheckInterrupt());
  return gone ? GoneStatus(peer) : CheckSight();
}

void Membership::Leave(const std::string& reason) {
  if (!failed_.load()) region_.area(rank_)->info.left_in_peace.store(1);
  GoAway(RankState::kLeft, reason);
}

void Membership::DeclareBroken(const std::string& reason) {
  GoAway(RankState::kBroken, reason);
}

void Membership::GoAway(RankState state, const std::string& reason) {
  RankInfo* info = &region_.area(rank_)->info;
  Store(reason, &info->reason);
  uint32_t present = static_cast<uint32_t>(RankState::kPresent);
  if (info->state.compare_exchange_strong(present,
                                          static_cast<uint32_t>(state))) {
    region_.header()->num_gone.fetch_add(1);
  }
  for (int peer = 0; peer < size_; ++peer) doorbell_->Ring(peer);
}

void Membership::NoteExitReason(const std::string& reason) {
  Store(reason, &region_.area(rank_)->info.last);
}

void Membership::NoteFailure(const std::string& reason) {
  NoteExitReason(reason);
  failed_.store(true);
}

bool Membership::IsDead(int rank) const {
  if (dead_[static_cast<size_t>(rank)].load()) return true;
  return job_ != nullptr && job_->IsDead(global_rank(rank));
}

bool Membership::IsAlarmed() const {
  return alarmed_.load() || (job_ != nullptr && job_->IsAlarmed());
}

Status Membership::CheckSight() const {
  if (job_ != nullptr) return job_->CheckSight();
  if (!blind_.load()) return Status::Ok();
  return Status::Internal(
      labels_[static_cast<size_t>(rank_)] +
      " can no longer see which ranks die: " + blind_reason_);
}

Status Membership::CheckDeaths() const {
  for (int rank = 0; rank < size_; ++rank) {
    const RankInfo& info = region_.area(rank)->info;
    if (rank != rank_ && IsDead(rank) && info.left_in_peace.load() == 0) {
      return GoneStatus(rank);
    }
  }
  return Status::Ok();
}

bool Membership::IsGone(int rank) const {
  return IsDead(rank) || region_.area(rank)->info.state.load() !=
                             static_cast<uint32_t>(RankState::kPresent);
}

Status Membership::CheckPeers() const {
  if (!IsAlarmed() && region_.header()->num_gone.load() == 0) {
    return Status::Ok();
  }
  // A rank that has left needs nobody; the others give up because of it.
  if (IsGone(rank_)) return Status::Ok();
  // A dead rank explains more than one that gave up because of it.
  int gone = -1;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !IsGone(peer)) continue;
    const uint32_t state = region_.area(peer)->info.state.load();
    // The rank that left may have finished collectives that rank 0 has yet to
    // tell us to run. Once it has told us, rank 0 itself gives up.
    if (state == static_cast<uint32_t>(RankState::kLeft) && peer != 0 &&
        rank_ != 0 && !IsGone(0)) {
      continue;
    }
    if (state != static_cast<uint32_t>(RankState::kBroken)) {
      return GoneStatus(peer);
    }
    if (gone < 0) gone = peer;
  }
  if (job_ != nullptr) HVD_RETURN_IF_ERROR(job_->CheckDeaths());
  return gone < 0 ? CheckSight() : GoneStatus(gone);
}

Status Membership::GoneStatus(int rank) const {
  const RankInfo& info = region_.area(rank)->info;
  // Read before the reason, which was written before the state changed.
  const RankState state = static_cast<RankState>(info.state.load());
  const std::string reason = Load(info.reason);
  const std::string last = Load(info.last);
  const std::string& who = labels_[static_cast<size_t>(rank)];
  switch (state) {
    case RankState::kLeft:
      return Status::PeerLost(who + " left the job" +
                              (reason.empty() ? "" : ": " + reason));
    case RankState::kBroken:
      // The reason mostly names the rank that it has lost.
      return Status::PeerLost(
          reason.rfind("rank ", 0) == 0 ? reason : who + " gave up: " + reason);
    case RankState::kPresent:
      break;
  }
  // Its last words are in the memory of the job, not of this set.
  if (job_ != nullptr) return job_->GoneStatus(global_rank(rank));
  return Status::PeerLost(who + " died" +
                          (last.empty() ? "" : "; its last words: " + last));
}

void Membership::MarkDead(int rank) {
  dead_[static_cast<size_t>(rank)].store(true);
  Alarm();
}

void Membership::MarkBlind(const std::string& why) {
  blind_reason_ = why;
  blind_.store(true);
  Alarm();
}

void Membership::Alarm() {
  alarmed_.store(true);
  doorbell_->RingOwn();
  MutexLock lock(&sets_mu_);
  for (Membership* set : sets_) set->doorbell_->RingOwn();
}

}  // namespace hvd
