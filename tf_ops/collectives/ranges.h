// Runs of bytes, and how they are cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hvd {

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

}  // namespace hvd
