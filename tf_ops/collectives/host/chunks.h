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

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

inline constexpr uint32_t kReadLag = 3;

// Waits until the slot of `chunk` may be written.
inline Status WaitForSlot(HostSlabs* slabs, uint32_t chunk) {
  return slabs->WaitAll(Flag::kIn, chunk - kNumSlots + kReadLag + 1);
}

struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// Part `index` of `num_bytes` cut into `num_parts` runs, which are multiples of
// `unit` long; the last ones may be shorter or empty.
inline Range PartOf(size_t num_bytes, int num_parts, int index, size_t unit) {
  const size_t parts = static_cast<size_t>(num_parts);
  const size_t even = (num_bytes + parts - 1) / parts;
  const size_t stride = (even + unit - 1) / unit * unit;
  const size_t begin = std::min(num_bytes, stride * static_cast<size_t>(index));
  return Range{begin, std::min(num_bytes, begin + stride)};
}

inline size_t DivideUp(size_t a, size_t b) { return (a + b - 1) / b; }

// The bytes of chunk `c` of a run of `num_bytes`; empty behind the run's end.
inline Range ChunkOf(size_t num_bytes, size_t chunk_bytes, uint32_t c) {
  const size_t begin =
      std::min(num_bytes, static_cast<size_t>(c) * chunk_bytes);
  return Range{begin, std::min(num_bytes, begin + chunk_bytes)};
}

// Cuts a slot into one part for each peer: for collectives in which a rank
// gives each peer something else.
class PeerParts {
 public:
  explicit PeerParts(int size)  // ranks
      : part_bytes_(size == 1 ? kSlotBytes
                              : kSlotBytes / static_cast<size_t>(size - 1) /
                                    kUnit * kUnit) {}

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
