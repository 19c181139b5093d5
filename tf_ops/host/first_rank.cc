#include "tf_ops/host/first_rank.h"

#include <cstdint>

#include "tf_ops/common/log.h"
#include "tf_ops/common/types.h"

namespace hvd {
namespace {

uint64_t Milliseconds(Clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(
          time.time_since_epoch())
          .count());
}

}  // namespace

void FirstRank::NoteAlive(Clock::time_point now,
                          std::chrono::milliseconds timeout) {
  header_->leader_timeout_ms.store(static_cast<uint64_t>(timeout.count()));
  header_->leader_seen_ms.store(Milliseconds(now));
}

Status FirstRank::CheckAlive(Clock::time_point now) const {
  const uint64_t timeout = header_->leader_timeout_ms.load();
  const uint64_t seen = header_->leader_seen_ms.load();
  if (timeout == 0 || seen == 0 || membership_.members().rank() == 0 ||
      membership_.IsGone(0) || Milliseconds(now) < seen + timeout) {
    return Status::Ok();
  }
  return Status::PeerLost(membership_.members().label(0) +
                          ", which speaks for its host, has stopped: no "
                          "heartbeat for " +
                          SecondsToString(std::chrono::milliseconds(timeout)) +
                          " (HVD_HEARTBEAT_TIMEOUT)");
}

void FirstRank::NoteLooks(Clock::time_point now) {
  header_->first_looked_ms.store(Milliseconds(now));
}

std::string FirstRank::WarnOfSilence(Clock::time_point now,
                                     std::chrono::milliseconds patience) const {
  const uint64_t looked = header_->first_looked_ms.load();
  const uint64_t since = Milliseconds(now) - looked;
  if (looked == 0 || Milliseconds(now) < looked || membership_.IsGone(0) ||
      since < static_cast<uint64_t>(patience.count()) ||
      header_->first_missed_ms.exchange(looked) == looked) {
    return "";
  }
  const std::chrono::milliseconds silence(since);
  return membership_.members().label(0) +
         " does not answer: it has been silent for " +
         SecondsToString(silence) + ", since " + TimeOfDay(silence);
}

}  // namespace hvd
