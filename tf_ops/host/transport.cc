#include "tf_ops/host/transport.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace hvd {
namespace {

using std::chrono::microseconds;

// A sleeper looks at its peers this often.
constexpr microseconds kNap{20000};

// Sends from `*outbox` what fits into `ring`; true if it sent any.
bool WriteRing(ControlRing* ring, std::vector<uint8_t>* outbox) {
  const uint64_t written = ring->num_written.load(std::memory_order_relaxed);
  const uint64_t free_bytes = kRingBytes - (written - ring->num_read.load());
  const size_t count =
      std::min(outbox->size(), static_cast<size_t>(free_bytes));
  if (count == 0) return false;
  const size_t begin = written % kRingBytes;
  const size_t first = std::min(count, kRingBytes - begin);
  std::memcpy(ring->bytes + begin, outbox->data(), first);
  std::memcpy(ring->bytes, outbox->data() + first, count - first);
  ring->num_written.store(written + count);
  outbox->erase(outbox->begin(),
                outbox->begin() + static_cast<ptrdiff_t>(count));
  return true;
}

bool ReadRing(ControlRing* ring, std::vector<uint8_t>* bytes) {
  const uint64_t read = ring->num_read.load(std::memory_order_relaxed);
  const uint64_t written = ring->num_written.load();
  // More than a ring's worth cannot be: the writer is not one of ours.
  if (written == read || written - read > kRingBytes) return false;
  const size_t count = static_cast<size_t>(written - read);
  const size_t begin = read % kRingBytes;
  const size_t first = std::min(count, kRingBytes - begin);
  bytes->insert(bytes->end(), ring->bytes + begin, ring->bytes + begin + first);
  bytes->insert(bytes->end(), ring->bytes, ring->bytes + (count - first));
  ring->num_read.store(written);
  return true;
}

void Store(const std::string& text, Words* words) {
  uint32_t unset = 0;  // the first ones stay
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

Transport::Transport(std::shared_ptr<void> memory, int rank)
    : memory_(std::move(memory)),
      region_(memory_.get()),
      rank_(rank),
      size_(static_cast<int>(region_.header()->size)),
      outboxes_(static_cast<size_t>(size_)),
      dead_(static_cast<size_t>(size_)) {
  for (int peer = 0; peer < size_; ++peer) {
    labels_.push_back("rank " + std::to_string(peer));
  }
}

Transport::~Transport() {
  if (job_ == nullptr) return;
  MutexLock lock(&job_->sets_mu_);
  std::vector<Transport*>* sets = &job_->sets_;
  sets->erase(std::remove(sets->begin(), sets->end(), this), sets->end());
}

void Transport::BindToJob(std::shared_ptr<Transport> job,
                          std::vector<int> global_ranks) {
  global_ranks_ = std::move(global_ranks);
  for (size_t i = 0; i < global_ranks_.size(); ++i) {
    labels_[i] = job->labels_[static_cast<size_t>(global_ranks_[i])];
  }
  job_ = std::move(job);
  MutexLock lock(&job_->sets_mu_);
  job_->sets_.push_back(this);
}

void Transport::SetLabel(int rank, std::string label) {
  labels_[static_cast<size_t>(rank)] = std::move(label);
}

void Transport::Interrupt(const std::string& reason) {
  interrupt_reason_ = reason;
  interrupted_.store(true);
  RingOwnDoorbell();
}

void Transport::Post(Flag flag, uint32_t value) {
  RankFlags* flags = &region_.area(rank_)->flags;
  std::atomic<uint32_t>* word = &flags->seq[static_cast<int>(flag)];
  word->store(value);
  if (flags->num_waiters.load() != 0) FutexWakeAll(word);
}

Status Transport::Wait(int peer, Flag flag, uint32_t value) {
  std::atomic<uint32_t>* word =
      &region_.area(peer)->flags.seq[static_cast<int>(flag)];
  const int num_spins = data_spins_.Next();
  for (int i = 0; i < num_spins; ++i) {
    if (HasReached(word->load(std::memory_order_acquire), value)) {
      data_spins_.Helped(i);
      return Status::Ok();
    }
    CpuPause();
  }
  data_spins_.WasInVain();
  for (int i = 0; i < kNumYields; ++i) {
    sched_yield();
    if (HasReached(word->load(std::memory_order_acquire), value)) {
      return Status::Ok();
    }
  }
  return WaitSlowly(peer, word, value);
}

Status Transport::WaitSlowly(int peer, std::atomic<uint32_t>* word,
                             uint32_t value) {
  std::atomic<uint32_t>* num_waiters = &region_.area(peer)->flags.num_waiters;
  const Clock::time_point begin = Clock::now();
  num_waiters->fetch_add(1);
  Status status;
  while (true) {
    const uint32_t seq = word->load();
    if (HasReached(seq, value)) break;
    FutexWait(word, seq, kNap);
    // Read who is gone before the flag: what a peer posted before it went
    // counts.
    const bool gone = IsGone(peer);
    if (HasReached(word->load(), value)) break;
    // Before who is gone: they may be, because this rank leaves.
    if (interrupted_.load()) {
      status = Status::Shutdown(interrupt_reason_);
      break;
    }
    if (gone) {
      status = GoneStatus(peer);
      break;
    }
    if (wait_timeout_.count() > 0 && Clock::now() - begin > wait_timeout_) {
      status = Status::Stalled(
          labels_[static_cast<size_t>(peer)] +
          " stopped in the middle of a collective: nothing came from it for " +
          std::to_string(wait_timeout_.count() / 1000) + " s (rank " +
          std::to_string(global_rank(rank_)) + " waits)");
      break;
    }
  }
  num_waiters->fetch_sub(1);
  return status;
}

Status Transport::CheckInterrupt() const {
  return interrupted_.load() ? Status::Shutdown(interrupt_reason_)
                             : Status::Ok();
}

Status Transport::WaitAll(Flag flag, uint32_t value) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    HVD_RETURN_IF_ERROR(Wait(peer, flag, value));
  }
  return Status::Ok();
}

void Transport::SendControl(int peer, const std::vector<uint8_t>& bytes) {
  std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
  outbox.insert(outbox.end(), bytes.begin(), bytes.end());
}

bool Transport::Flush() {
  bool done = true;
  for (int peer = 0; peer < size_; ++peer) {
    std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
    if (outbox.empty()) continue;
    ControlRing* ring = rank_ == 0 ? &region_.area(peer)->from_coordinator
                                   : &region_.area(rank_)->to_coordinator;
    bool sent = WriteRing(ring, &outbox);
    if (!outbox.empty()) {
      // Ask to be woken, then look again: the reader may just have read.
      ring->writer_waits.store(1);
      sent = WriteRing(ring, &outbox) || sent;
    }
    // A reader that has it all already needs no ring.
    if (sent && ring->num_read.load() != ring->num_written.load()) {
      RingDoorbell(peer);
    }
    done = done && outbox.empty();
  }
  return done;
}

Status Transport::FlushAll() {
  const Clock::time_point begin = Clock::now();
  while (!Flush()) {
    if (interrupted_.load()) return Status::Shutdown(interrupt_reason_);
    const bool late =
        wait_timeout_.count() > 0 && Clock::now() - begin > wait_timeout_;
    for (int peer = 0; peer < size_; ++peer) {
      std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
      if (outbox.empty()) continue;
      if (IsGone(peer)) {
        outbox.clear();
      } else if (late) {
        return Status::Stalled(labels_[static_cast<size_t>(peer)] +
                               " reads nothing of what rank " +
                               std::to_string(global_rank(rank_)) +
                               " tells it");
      }
    }
    // Not WaitDoorbell: the engine's thread may be sleeping there.
    std::this_thread::sleep_for(microseconds(50));
  }
  return Status::Ok();
}

bool Transport::ReceiveControl(int peer, std::vector<uint8_t>* bytes) {
  ControlRing* ring = rank_ == 0 ? &region_.area(peer)->to_coordinator
                                 : &region_.area(rank_)->from_coordinator;
  if (!ReadRing(ring, bytes)) return false;
  if (ring->writer_waits.exchange(0) != 0) RingDoorbell(peer);
  return true;
}

void Transport::Leave(const std::string& reason) {
  if (!failed_.load()) region_.area(rank_)->info.left_in_peace.store(1);
  GoAway(RankState::kLeft, reason);
}

void Transport::DeclareBroken(const std::string& reason) {
  GoAway(RankState::kBroken, reason);
}

void Transport::GoAway(RankState state, const std::string& reason) {
  RankInfo* info = &region_.area(rank_)->info;
  Store(reason, &info->reason);
  uint32_t present = static_cast<uint32_t>(RankState::kPresent);
  if (info->state.compare_exchange_strong(present,
                                          static_cast<uint32_t>(state))) {
    region_.header()->num_gone.fetch_add(1);
  }
  for (int peer = 0; peer < size_; ++peer) RingDoorbell(peer);
}

void Transport::NoteExitReason(const std::string& reason) {
  Store(reason, &region_.area(rank_)->info.last);
}

void Transport::NoteFailure(const std::string& reason) {
  NoteExitReason(reason);
  failed_.store(true);
}

bool Transport::IsDead(int rank) const {
  if (dead_[static_cast<size_t>(rank)].load()) return true;
  return job_ != nullptr && job_->IsDead(global_rank(rank));
}

bool Transport::IsAnyDead() const {
  return any_dead_.load() || (job_ != nullptr && job_->IsAnyDead());
}

Status Transport::CheckDeaths() const {
  for (int rank = 0; rank < size_; ++rank) {
    const RankInfo& info = region_.area(rank)->info;
    if (rank != rank_ && IsDead(rank) && info.left_in_peace.load() == 0) {
      return GoneStatus(rank);
    }
  }
  return Status::Ok();
}

bool Transport::IsGone(int rank) const {
  return IsDead(rank) || region_.area(rank)->info.state.load() !=
                             static_cast<uint32_t>(RankState::kPresent);
}

Status Transport::CheckPeers() const {
  if (!IsAnyDead() && region_.header()->num_gone.load() == 0) {
    return Status::Ok();
  }
  // Who has left needs nobody; the others give up because of it.
  if (IsGone(rank_)) return Status::Ok();
  // A dead rank explains more than one that gave up because of it.
  int gone = -1;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !IsGone(peer)) continue;
    const uint32_t state = region_.area(peer)->info.state.load();
    // Rank 0 may still have to tell us to run what a rank that left in peace
    // has finished already; once it has told all, it gives up itself.
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
  return gone < 0 ? Status::Ok() : GoneStatus(gone);
}

Status Transport::GoneStatus(int rank) const {
  const RankInfo& info = region_.area(rank)->info;
  // Before the reason, which was written before the state changed.
  const RankState state = static_cast<RankState>(info.state.load());
  const std::string reason = Load(info.reason);
  const std::string last = Load(info.last);
  const std::string& who = labels_[static_cast<size_t>(rank)];
  switch (state) {
    case RankState::kLeft:
      return Status::PeerLost(who + " left the job" +
                              (reason.empty() ? "" : ": " + reason));
    case RankState::kBroken:
      // Mostly it quotes which rank it has lost.
      return Status::PeerLost(
          reason.rfind("rank ", 0) == 0 ? reason : who + " gave up: " + reason);
    case RankState::kPresent:
      break;
  }
  // Its last words are where all ranks of the job can read them.
  if (job_ != nullptr) return job_->GoneStatus(global_rank(rank));
  return Status::PeerLost(who + " died" +
                          (last.empty() ? "" : "; its last words: " + last));
}

void Transport::MarkDead(int rank) {
  dead_[static_cast<size_t>(rank)].store(true);
  any_dead_.store(true);
  RingOwnDoorbell();
  MutexLock lock(&sets_mu_);
  for (Transport* set : sets_) set->RingOwnDoorbell();
}

}  // namespace hvd
