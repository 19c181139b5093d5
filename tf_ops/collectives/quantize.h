// Floats as int8 with a scale for each block: how an allreduce sends them
// between hosts.
//
// A block of 128 elements, whose largest magnitude is m, becomes the scale
// m / 127 and the integers nearest to x / scale, ties to even. So
//
//   |x - unpacked(x)| <= m / 254
//
// up to the rounding of `dtype`. A block with m < 2^-100 (float64: 2^-1000)
// becomes zeros. In a block with a NaN or an infinity the infinities stay, and
// all else becomes NaN. The same values give the same bits on every machine.
#pragma once

#include <cstddef>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/common/types.h"

namespace hvd {

inline constexpr size_t kPackedElements = 128;  // of a block

// float64 has a float64 scale, the others have a float32 one.
constexpr size_t PackedBytes(DataType dtype) {  // of a block
  return kPackedElements +
         (dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float));
}

// Pack `num_blocks` whole blocks of float16, bfloat16, float32 or float64, and
// unpack them. No two arguments may overlap.
void Pack(DataType dtype, const void* from, size_t num_blocks, std::byte* to);
void Unpack(DataType dtype, const std::byte* from, size_t num_blocks, void* to);

// Reduces blocks by Sum or Average as Reduce does, in the order of the sources:
// all are packed but the one at `own`. `out` may be that one. It gets
// the result as others will unpack it from `packed`.
void ReducePacked(const ReduceSpec& spec, const void* const* sources,
                  int num_sources, int own, size_t num_blocks, void* out,
                  std::byte* packed);

}  // namespace hvd
