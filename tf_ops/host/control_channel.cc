#include "tf_ops/host/control_channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "tf_ops/common/futex.h"

namespace hvd {
namespace {

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

}  // namespace

ControlChannel::ControlChannel(RegionView region, int rank,
                               const Membership* membership, Doorbell* doorbell)
    : region_(region),
      rank_(rank),
      size_(region.size()),
      membership_(*membership),
      doorbell_(*doorbell),
      outboxes_(static_cast<size_t>(size_)) {}

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

bool ControlChannel::Flush() {
  bool done = true;
  for (int peer = 0; peer < size_; ++peer) {
    std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
    if (outbox.empty()) continue;
    ControlRing* const ring = Outgoing(peer);
    bool sent = WriteRing(ring, &outbox);
    if (!outbox.empty()) {
      // Ask to be woken, then look again: the reader may just have read.
      ring->writer_waits.store(1);
      sent = WriteRing(ring, &outbox) || sent;
    }
    // A reader that has it all already needs no ring.
    if (sent && ring->num_read.load() != ring->num_written.load()) {
      doorbell_.Ring(peer);
    }
    done = done && outbox.empty();
  }
  return done;
}

Status ControlChannel::FlushAll() {
  const Clock::time_point begin = Clock::now();
  while (!Flush()) {
    HVD_RETURN_IF_ERROR(membership_.CheckInterrupt());
    const bool late =
        wait_timeout_.count() > 0 && Clock::now() - begin > wait_timeout_;
    for (int peer = 0; peer < size_; ++peer) {
      std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(peer)];
      if (outbox.empty()) continue;
      if (membership_.IsGone(peer)) {
        outbox.clear();
      } else if (late) {
        return Status::Stalled(
            membership_.label(peer) + " reads nothing of what rank " +
            std::to_string(membership_.own_global_rank()) + " tells it");
      }
    }
    // Not Doorbell::Wait: the engine's thread may be sleeping there.
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return Status::Ok();
}

bool ControlChannel::Receive(int peer, std::vector<uint8_t>* bytes) {
  ControlRing* const ring = Incoming(peer);
  if (!ReadRing(ring, bytes)) return false;
  if (ring->writer_waits.exchange(0) != 0) doorbell_.Ring(peer);
  return true;
}

}  // namespace hvd
