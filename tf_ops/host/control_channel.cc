#include "tf_ops/host/control_channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "tf_ops/common/futex.h"

namespace hvd {
namespace {

// Copies `count` bytes, a ring's worth at most, to position `num_written`.
void CopyIn(const uint8_t* bytes, size_t count, uint64_t num_written,
            ControlRing* ring) {
  const size_t begin = num_written % kRingBytes;
  const size_t first = std::min(count, kRingBytes - begin);
  std::memcpy(ring->bytes + begin, bytes, first);
  std::memcpy(ring->bytes, bytes + first, count - first);
}

// Appends `count` bytes, a ring's worth at most, from position `num_read`.
void CopyOut(const ControlRing& ring, uint64_t num_read, size_t count,
             std::vector<uint8_t>* bytes) {
  const size_t begin = num_read % kRingBytes;
  const size_t first = std::min(count, kRingBytes - begin);
  bytes->insert(bytes->end(), ring.bytes + begin, ring.bytes + begin + first);
  bytes->insert(bytes->end(), ring.bytes, ring.bytes + (count - first));
}

}  // namespace

ControlChannel::ControlChannel(RegionView region, int rank,
                               const Membership* membership, Doorbell* doorbell)
    : region_(region),
      rank_(rank),
      size_(region.size()),
      membership_(*membership),
      doorbell_(*doorbell),
      outboxes_(static_cast<size_t>(region.num_members())) {}

ControlRing* ControlChannel::Incoming(int peer) const {
  return rank_ == 0 ? &region_.area(peer)->to_coordinator
                    : &region_.area(rank_)->from_coordinator;
}

ControlRing* ControlChannel::Outgoing(int peer) const {
  return rank_ == 0 ? &region_.area(peer)->from_coordinator
                    : &region_.area(rank_)->to_coordinator;
}

void ControlChannel::Send(int peer, const std::vector<uint8_t>& bytes) {
  std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
  outbox.insert(outbox.end(), bytes.begin(), bytes.end());
}

Status ControlChannel::CheckCounters(int peer, uint64_t num_written,
                                     uint64_t num_read) const {
  if (num_written - num_read <= kRingBytes) return Status::Ok();
  return Status::Internal(
      "the control stream between rank " +
      std::to_string(membership_.members().own_global_rank()) + " and " +
      membership_.members().label(peer) +
      " is corrupt: " + std::to_string(num_written) +
      " bytes were written and " + std::to_string(num_read) + " read");
}

Status ControlChannel::SendWhatFits(int peer, bool* sent) {
  ControlRing* const ring = Outgoing(peer);
  std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
  const uint64_t written = ring->num_written.load(std::memory_order_relaxed);
  const uint64_t read = ring->num_read.load();
  HVD_RETURN_IF_ERROR(CheckCounters(peer, written, read));
  const size_t num_free = kRingBytes - static_cast<size_t>(written - read);
  const size_t count = std::min(outbox.size(), num_free);
  if (count == 0) return Status::Ok();
  CopyIn(outbox.data(), count, written, ring);
  ring->num_written.store(written + count);
  outbox.erase(outbox.begin(), outbox.begin() + static_cast<ptrdiff_t>(count));
  *sent = true;
  return Status::Ok();
}

Status ControlChannel::Flush() {
  for (int peer = 0; peer < region_.num_members(); ++peer) {
    std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
    if (outbox.empty()) continue;
    ControlRing* const ring = Outgoing(peer);
    bool sent = false;
    HVD_RETURN_IF_ERROR(SendWhatFits(peer, &sent));
    if (!outbox.empty()) {
      // Ask to be woken, then look again: the reader may just have read.
      ring->writer_waits.store(1);
      HVD_RETURN_IF_ERROR(SendWhatFits(peer, &sent));
    }
    // A reader that has it all already needs no ring.
    if (sent && ring->num_read.load() != ring->num_written.load()) {
      doorbell_.Ring(peer);
    }
  }
  return Status::Ok();
}

bool ControlChannel::has_unsent() const {
  return std::any_of(
      outboxes_.begin(), outboxes_.end(),
      [](const std::vector<uint8_t>& outbox) { return !outbox.empty(); });
}

Status ControlChannel::FlushAll() {
  const Clock::time_point begin = Clock::now();
  while (true) {
    HVD_RETURN_IF_ERROR(Flush());
    if (!has_unsent()) return Status::Ok();
    HVD_RETURN_IF_ERROR(membership_.CheckInterrupt());
    HVD_RETURN_IF_ERROR(membership_.CheckSight());
    const bool late =
        wait_timeout_.count() > 0 && Clock::now() - begin > wait_timeout_;
    for (int peer = 0; peer < region_.num_members(); ++peer) {
      std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
      if (outbox.empty()) continue;
      if (membership_.IsGone(peer)) {
        outbox.clear();
      } else if (late) {
        return Status::Stalled(
            membership_.members().label(peer) +
            " does not read the messages of rank " +
            std::to_string(membership_.members().own_global_rank()));
      }
    }
    // Not Doorbell::Wait: the engine's thread may be sleeping there.
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Status ControlChannel::Receive(int peer, std::vector<uint8_t>* bytes,
                               bool* received) {
  ControlRing* const ring = Incoming(peer);
  const uint64_t read = ring->num_read.load(std::memory_order_relaxed);
  const uint64_t written = ring->num_written.load();
  *received = false;
  if (written == read) return Status::Ok();
  HVD_RETURN_IF_ERROR(CheckCounters(peer, written, read));
  CopyOut(*ring, read, static_cast<size_t>(written - read), bytes);
  ring->num_read.store(written);
  if (ring->writer_waits.exchange(0) != 0) doorbell_.Ring(peer);
  *received = true;
  return Status::Ok();
}

}  // namespace hvd
