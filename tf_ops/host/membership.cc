#include "tf_ops/host/membership.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "tf_ops/common/log.h"
#include "tf_ops/common/types.h"

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

uint64_t Milliseconds(Clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(
          time.time_since_epoch())
          .count());
}

}  // namespace

Membership::Membership(RegionView region, int member, uint64_t epoch,
                       Doorbell* doorbell)
    : region_(region),
      rank_(member),
      size_(region.size()),
      epoch_(epoch),
      doorbell_(doorbell),
      global_ranks_(static_cast<size_t>(size_)),
      how_(static_cast<size_t>(num_members())),
      dead_(static_cast<size_t>(num_members())) {
  std::iota(global_ranks_.begin(), global_ranks_.end(), 0);
  for (int rank : global_ranks_) {
    labels_.push_back("rank " + std::to_string(rank));
  }
  if (num_members() > size_) labels_.push_back("the wire of this host");
}

Membership::~Membership() {
  if (job_ == nullptr) return;
  MutexLock lock(&job_->sets_mu_);
  std::vector<Membership*>* sets = &job_->sets_;
  sets->erase(std::remove(sets->begin(), sets->end(), this), sets->end());
}

void Membership::SetPlace(const std::string& host,
                          std::vector<int> global_ranks) {
  host_ = host;
  global_ranks_ = std::move(global_ranks);
  for (size_t i = 0; i < global_ranks_.size(); ++i) {
    labels_[i] = "rank " + std::to_string(global_ranks_[i]);
  }
  if (num_members() > size_) labels_.back() = "the wire of host " + host;
}

void Membership::SetPid(int member, int pid) {
  const bool has_host = !host_.empty() && !IsWire(member);
  labels_[static_cast<size_t>(member)] +=
      (has_host ? " (host " + host_ + ", pid " : " (pid ") +
      std::to_string(pid) + ")";
  if (member == rank_) TellName();
}

void Membership::BindToJob(std::shared_ptr<Membership> job,
                           std::vector<int> members) {
  job_members_ = std::move(members);
  for (size_t i = 0; i < job_members_.size(); ++i) {
    const size_t member = static_cast<size_t>(job_members_[i]);
    labels_[i] = job->labels_[member];
    global_ranks_[i] = job->global_ranks_[member];
  }
  if (num_members() > size_ && job->num_members() > job->size_) {
    labels_.back() = job->labels_.back();  // they share it
  }
  TellName();
  job_ = std::move(job);
  MutexLock lock(&job_->sets_mu_);
  job_->sets_.push_back(this);
}

void Membership::TellName() {
  Store(labels_[static_cast<size_t>(rank_)], &region_.area(rank_)->info.name);
}

std::string Membership::label(int member) const {
  // Nobody has told the wire the ranks' numbers in the job, or their pids.
  const std::string told =
      IsWire(rank_) ? Load(region_.area(member)->info.name) : "";
  return told.empty() ? labels_[static_cast<size_t>(member)] : told;
}

void Membership::Interrupt(const std::string& reason) {
  interrupt_reason_ = reason;
  interrupted_.store(true);
  doorbell_->RingOwn();
}

void Membership::NoteLeaderAlive(Clock::time_point now,
                                 std::chrono::milliseconds timeout) {
  RegionHeader* const header = region_.header();
  header->leader_timeout_ms.store(static_cast<uint64_t>(timeout.count()));
  header->leader_seen_ms.store(Milliseconds(now));
}

Status Membership::CheckLeader(Clock::time_point now) const {
  const RegionHeader& header = *region_.header();
  const uint64_t timeout = header.leader_timeout_ms.load();
  const uint64_t seen = header.leader_seen_ms.load();
  if (timeout == 0 || seen == 0 || rank_ == 0 || IsGone(0) ||
      Milliseconds(now) < seen + timeout) {
    return Status::Ok();
  }
  return Status::PeerLost(label(0) + ", which speaks for its host, has " +
                          "stopped: no heartbeat for " +
                          SecondsToString(std::chrono::milliseconds(timeout)) +
                          " (HVD_HEARTBEAT_TIMEOUT)");
}

void Membership::NoteFirstLooks(Clock::time_point now) {
  region_.header()->first_looked_ms.store(Milliseconds(now));
}

std::string Membership::WarnOfFirst(Clock::time_point now,
                                    std::chrono::milliseconds patience) {
  RegionHeader* const header = region_.header();
  const uint64_t looked = header->first_looked_ms.load();
  const uint64_t since = Milliseconds(now) - looked;
  if (looked == 0 || Milliseconds(now) < looked || IsGone(0) ||
      since < static_cast<uint64_t>(patience.count()) ||
      header->first_missed_ms.exchange(looked) == looked) {
    return "";
  }
  const std::chrono::milliseconds silence(since);
  return label(0) + " does not answer: it has been silent for " +
         SecondsToString(silence) + ", since " + TimeOfDay(silence);
}

void Membership::EndWire() {
  region_.header()->wire_must_end.store(1);
  doorbell_->Ring(size_);
}

Status Membership::CheckInterrupt() const {
  if (rank_ == size_ && region_.header()->wire_must_end.load() != 0) {
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
  HVD_RETURN_IF_ERROR(CheckLeader(Clock::now()));
  return CheckSight();
}

void Membership::Leave(const std::string& reason) {
  // It mostly leaves because of the loss, of which others may not know yet.
  const Status losses = CheckLosses();
  if (!failed_.load()) region_.area(rank_)->info.left_in_peace.store(1);
  if (!losses.ok()) return DeclareBroken(losses);
  GoAway(RankState::kLeft, reason);
}

void Membership::DeclareBroken(const Status& why) {
  const std::string& who = labels_[static_cast<size_t>(rank_)];
  GoAway(RankState::kBroken, why.code() == StatusCode::kPeerLost
                                 ? why.message()
                                 : who + " gave up: " + why.message());
}

void Membership::GoAway(RankState state, const std::string& reason) {
  RankInfo* info = &region_.area(rank_)->info;
  Store(reason, &info->reason);
  uint32_t present = static_cast<uint32_t>(RankState::kPresent);
  if (info->state.compare_exchange_strong(present,
                                          static_cast<uint32_t>(state))) {
    region_.header()->num_gone.fetch_add(1);
  }
  RingAll();
}

void Membership::RingAll() {
  for (int peer = 0; peer < num_members(); ++peer) doorbell_->Ring(peer);
}

void Membership::NoteOthersLeft(const std::string& reason) {
  NoteOthers(reason, &region_.header()->others_left);
}

void Membership::NoteOthersLost(const std::string& reason) {
  NoteOthers(reason, &region_.header()->others_lost);
}

void Membership::NoteOthers(const std::string& reason, Words* words) {
  Store(reason, words);
  region_.header()->num_gone.fetch_add(1);
  RingAll();
}

void Membership::NoteMinority() { region_.header()->is_minority.store(1); }

bool Membership::IsMinority() const {
  return region_.header()->is_minority.load() != 0;
}

Status Membership::CheckOthers() const {
  const std::string why = Load(region_.header()->others_lost);
  if (!why.empty()) return Status::PeerLost(why);
  return job_ == nullptr ? Status::Ok() : job_->CheckOthers();
}

std::string Membership::WhyLeft() const {
  for (int member = 0; member < size_; ++member) {
    const uint32_t state = region_.area(member)->info.state.load();
    if (state == static_cast<uint32_t>(RankState::kLeft)) {
      return GoneStatus(member).message();
    }
  }
  return "";
}

std::string Membership::WhyLost() const {
  std::string broken;
  for (int member = 0; member < num_members(); ++member) {
    const RankInfo& info = region_.area(member)->info;
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
  Store(reason, &region_.area(rank_)->info.last);
}

void Membership::NoteFailure(const std::string& reason) {
  NoteExitReason(reason);
  failed_.store(true);
}

bool Membership::IsDead(int member) const {
  const size_t index = static_cast<size_t>(member);
  if (dead_[index].load()) return true;
  if (job_ == nullptr) return false;
  return job_->IsDead(IsWire(member) ? job_->size_ : job_members_[index]);
}

bool Membership::HasDied(int member) const {
  // The wire ends with the first rank.
  const RankInfo& info = region_.area(IsWire(member) ? 0 : member)->info;
  return IsDead(member) && info.left_in_peace.load() == 0;
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
  for (int member = 0; member < num_members(); ++member) {
    if (member != rank_ && HasDied(member)) return GoneStatus(member);
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
  return IsDead(member) || region_.area(member)->info.state.load() !=
                               static_cast<uint32_t>(RankState::kPresent);
}

Status Membership::CheckPeers() const {
  if (!IsAlarmed() && region_.header()->num_gone.load() == 0 &&
      (job_ == nullptr || job_->region_.header()->num_gone.load() == 0)) {
    return Status::Ok();
  }
  // A rank that has left needs nobody; the others give up because of it.
  if (IsGone(rank_)) return Status::Ok();
  // A dead rank explains more than one that gave up because of it.
  int gone = -1;
  for (int peer = 0; peer < num_members(); ++peer) {
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
  HVD_RETURN_IF_ERROR(CheckOthers());
  if (gone >= 0) return GoneStatus(gone);
  // As above: rank 0 decides when nothing more comes from a rank that has left.
  const std::string left = Load(region_.header()->others_left);
  if (!left.empty() && (rank_ == 0 || IsGone(0))) return Status::PeerLost(left);
  return CheckSight();
}

void Membership::Meet(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  region_.area(rank_)->info.has_met.store(1);
  const auto is_awaited = [this](int member) {
    const RankInfo& info = region_.area(member)->info;
    return info.has_met.load() == 0 && !IsDead(member) &&
           info.state.load() != static_cast<uint32_t>(RankState::kLeft);
  };
  for (int member = 0; member < size_; ++member) {
    while (is_awaited(member) && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

Status Membership::GoneStatus(int member) const {
  const RankInfo& info = region_.area(member)->info;
  // Read before the reason, which was written before the state changed.
  const RankState state = static_cast<RankState>(info.state.load());
  const std::string reason = Load(info.reason);
  const std::string last = Load(info.last);
  const std::string who = label(member);
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
    return job_->GoneStatus(IsWire(member)
                                ? job_->size_
                                : job_members_[static_cast<size_t>(member)]);
  }
  if (IsWire(member)) {
    // It ends with the first rank, and mostly with the wires of other hosts.
    if (rank_ != 0 && IsGone(0)) return GoneStatus(0);
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
