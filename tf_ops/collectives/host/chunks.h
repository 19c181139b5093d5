// How chunks go through the ranks' slabs, and which bytes each rank owns.
//
// A collective cuts its bytes into chunks. Chunk c of a rank lives in slot
// c % kNumSlots of its slab. Numbers go on from one collective to the next, so
// that no barrier is needed between them.
//
//   kIn  = c + 1: "my slab holds what you read of me for chunk c", and "I no
//                 longer read chunks up to c - kReadLag".
//   kOut = c + 1: "my slab holds my result of chunk c" (allreduce).
//
// So a rank may write the slot of chunk c, last used by chunk c - kNumSlots,
// once every peer has posted kIn for chunk c - kNumSlots + kReadLag.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tf_ops/collectives/ranges.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

inline constexpr uint32_t kReadLag = 3;

// Waits until the slot of `chunk` may be written.
inline Status WaitForSlot(HostSlabs* slabs, uint32_t chunk,
                          uint32_t read_lag = kReadLag) {
  return slabs->WaitAll(Flag::kIn, chunk - kNumSlots + read_lag + 1);
}

// Cuts a slot into one part for each peer: for collectives in which a rank
// gives each peer something else.
class PeerParts {
 public:
  explicit PeerParts(const HostSlabs& slabs)
      : part_bytes_(slabs.size() == 1
                        ? slabs.slot_bytes()
                        : slabs.slot_bytes() /
                              static_cast<size_t>(slabs.size() - 1) / kUnit *
                              kUnit) {}

  size_t part_bytes() const { return part_bytes_; }
  // Where in a slot of `from` the part for `to`, another rank, begins.
  size_t Offset(int from, int to) const {
    return part_bytes_ * static_cast<size_t>(to < from ? to : to - 1);
  }

 private:
  static constexpr size_t kUnit = 64;  // parts do not share a cache line

  const size_t part_bytes_;
};

}  // namespace hvd
