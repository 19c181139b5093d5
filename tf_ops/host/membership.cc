#include "tf_ops/host/membership.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "tf_ops/host/first_rank.h"

namespace hvd {

Membership::Membership(RegionView region, int member, uint64_t epoch,
                       Doorbell* doorbell)
    : region_(region),
      epoch_(epoch),
      doorbell_(doorbell),
      members_(region, member),
      other_hosts_(region, doorbell),
      how_(static_cast<size_t>(region.num_members())),
      dead_(static_cast<size_t>(region.num_members())) {}

Membership::~Membership() {
  if (job_ == nullptr) return;
  MutexLock lock(&job_->sets_mu_);
  std::vector<Membership*>* sets = &job_->sets_;
  sets->erase(std::remove(sets->begin(), sets->end(), this), sets->end());
}

void Membership::BindToJob(std::shared_ptr<Membership> job,
                           std::vector<int> members) {
  members_.BindToJob(&job->members_, std::move(members));
  job_ = std::move(job);
  MutexLock lock(&job_->sets_mu_);
  job_->sets_.push_back(this);
}

void Membership::Interrupt(const std::string& reason) {
  interrupt_reason_ = reason;
  interrupted_.store(true);
  doorbell_->RingOwn();
}

void Membership::EndWire() {
  region_.header()->wire_must_end.store(1);
  doorbell_->Ring(members_.size());
}

Status Membership::CheckInterrupt() const {
  if (members_.IsWire(members_.rank()) &&
      region_.header()->wire_must_end.load() != 0) {
    return Status::Shutdown("the ranks of this host need no wire any more");
  }
  return interrupted_.load() ? Status::Shutdown(interrupt_reason_)
                             : Status::Ok();
}

Status Membership::CheckWaitFor(int member) const {
  // Read before the interrupt: it may be gone because this rank leaves.
  const bool gone = IsGone(member);
  HVD_RETURN_IF_ERROR(CheckInterrupt());
  if (gone) return GoneStatus(member);
  HVD_RETURN_IF_ERROR(CheckOthers());
  HVD_RETURN_IF_ERROR(FirstRank(this).CheckAlive(Clock::now()));
  return CheckSight();
}

void Membership::Leave(const std::string& reason) {
  // It mostly leaves because of the loss, of which others may not know yet.
  const Status losses = CheckLosses();
  if (!failed_.load()) own_info().left_in_peace.store(1);
  if (!losses.ok()) return DeclareBroken(losses);
  GoAway(RankState::kLeft, reason);
}

void Membership::DeclareBroken(const Status& why) {
  const std::string who = members_.label(members_.rank());
  GoAway(RankState::kBroken, why.code() == StatusCode::kPeerLost
                                 ? why.message()
                                 : who + " gave up: " + why.message());
}

void Membership::GoAway(RankState state, const std::string& reason) {
  own_info().reason.Set(reason);
  uint32_t present = static_cast<uint32_t>(RankState::kPresent);
  if (own_info().state.compare_exchange_strong(present,
                                               static_cast<uint32_t>(state))) {
    region_.header()->num_gone.fetch_add(1);
  }
  doorbell_->RingAll();
}

Status Membership::CheckOthers() const {
  HVD_RETURN_IF_ERROR(other_hosts_.CheckLost());
  return job_ == nullptr ? Status::Ok() : job_->CheckOthers();
}

std::string Membership::WhyLeft() const {
  for (int member = 0; member < region_.size(); ++member) {
    const uint32_t state = InfoOf(member).state.load();
    if (state == static_cast<uint32_t>(RankState::kLeft)) {
      return GoneStatus(member).message();
    }
  }
  return "";
}

std::string Membership::WhyLost() const {
  std::string broken;
  for (int member = 0; member < region_.num_members(); ++member) {
    const RankInfo& info = InfoOf(member);
    const auto state = static_cast<RankState>(info.state.load());
    if (state == RankState::kBroken) {
      if (broken.empty()) broken = GoneStatus(member).message();
    } else if (HasDied(member)) {
      return GoneStatus(member).message();
    }
  }
  return broken;
}

void Membership::NoteExitReason(const std::string& reason) {
  own_info().last.Set(reason);
}

void Membership::NoteFailure(const std::string& reason) {
  NoteExitReason(reason);
  failed_.store(true);
}

bool Membership::IsDead(int member) const {
  const size_t index = static_cast<size_t>(member);
  if (dead_[index].load()) return true;
  return job_ != nullptr && job_->IsDead(members_.job_member(member));
}

bool Membership::HasDied(int member) const {
  // The wire ends with the first rank.
  const RankInfo& info = InfoOf(members_.IsWire(member) ? 0 : member);
  return IsDead(member) && info.left_in_peace.load() == 0;
}

bool Membership::IsAlarmed() const {
  return alarmed_.load() || (job_ != nullptr && job_->IsAlarmed());
}

Status Membership::CheckSight() const {
  if (job_ != nullptr) return job_->CheckSight();
  if (!blind_.load()) return Status::Ok();
  return Status::Internal(
      members_.label(members_.rank()) +
      " can no longer see which ranks die: " + blind_reason_);
}

Status Membership::CheckDeaths() const {
  for (int member = 0; member < region_.num_members(); ++member) {
    if (member != members_.rank() && HasDied(member)) return GoneStatus(member);
  }
  return CheckOthers();
}

Status Membership::CheckLosses() const {
  if (job_ != nullptr) HVD_RETURN_IF_ERROR(CheckOthers());
  const Membership& job = job_ != nullptr ? *job_ : *this;
  HVD_RETURN_IF_ERROR(job.CheckDeaths());
  MutexLock lock(&job.sets_mu_);
  for (const Membership* set : job.sets_) {
    HVD_RETURN_IF_ERROR(set->CheckOthers());
  }
  return Status::Ok();
}

bool Membership::IsGone(int member) const {
  return IsDead(member) || InfoOf(member).state.load() !=
                               static_cast<uint32_t>(RankState::kPresent);
}

Status Membership::CheckPeers() const {
  if (!IsAlarmed() && region_.header()->num_gone.load() == 0 &&
      (job_ == nullptr || job_->region_.header()->num_gone.load() == 0)) {
    return Status::Ok();
  }
  // A rank that has left needs nobody; the others give up because of it.
  if (IsGone(members_.rank())) return Status::Ok();
  // A dead rank explains more than one that gave up because of it.
  int gone = -1;
  for (int peer = 0; peer < region_.num_members(); ++peer) {
    if (peer == members_.rank() || !IsGone(peer)) continue;
    const uint32_t state = InfoOf(peer).state.load();
    // The rank that left may have finished collectives that rank 0 has yet to
    // tell us to run. Once it has told us, rank 0 itself gives up.
    if (state == static_cast<uint32_t>(RankState::kLeft) && peer != 0 &&
        members_.rank() != 0 && !IsGone(0)) {
      continue;
    }
    if (state != static_cast<uint32_t>(RankState::kBroken)) {
      return GoneStatus(peer);
    }
    if (gone < 0) gone = peer;
  }
  if (job_ != nullptr) HVD_RETURN_IF_ERROR(job_->CheckDeaths());
  HVD_RETURN_IF_ERROR(CheckOthers());
  if (gone >= 0) return GoneStatus(gone);
  // As above: rank 0 decides when nothing more comes from a rank that has left.
  if (members_.rank() == 0 || IsGone(0))
    HVD_RETURN_IF_ERROR(other_hosts_.CheckLeft());
  return CheckSight();
}

void Membership::Meet(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  own_info().has_met.store(1);
  const auto is_awaited = [this](int member) {
    const RankInfo& info = InfoOf(member);
    return info.has_met.load() == 0 && !IsDead(member) &&
           info.state.load() != static_cast<uint32_t>(RankState::kLeft);
  };
  for (int member = 0; member < region_.size(); ++member) {
    while (is_awaited(member) && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

Status Membership::GoneStatus(int member) const {
  const RankInfo& info = InfoOf(member);
  // Read before the reason, which was written before the state changed.
  const RankState state = static_cast<RankState>(info.state.load());
  const std::string reason = info.reason.Get();
  const std::string last = info.last.Get();
  const std::string who = members_.label(member);
  switch (state) {
    case RankState::kLeft:
      return Status::PeerLost(who + " left the job" +
                              (reason.empty() ? "" : ": " + reason));
    case RankState::kBroken:
      return Status::PeerLost(reason);
    case RankState::kPresent:
      break;
  }
  // Its last words are in the memory of the job, not of this set.
  if (job_ != nullptr) {
    return job_->GoneStatus(members_.job_member(member));
  }
  if (members_.IsWire(member)) {
    // It ends with the first rank, and mostly with the wires of other hosts.
    if (members_.rank() != 0 && IsGone(0)) return GoneStatus(0);
    HVD_RETURN_IF_ERROR(CheckOthers());
  }
  const std::string& how = how_[static_cast<size_t>(member)];
  return Status::PeerLost(who + " died" +
                          (how.empty() ? "" : " (" + how + ")") +
                          (last.empty() ? "" : "; its last words: " + last));
}

void Membership::MarkDead(int member, const std::string& how) {
  how_[static_cast<size_t>(member)] = how;
  dead_[static_cast<size_t>(member)].store(true);
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
