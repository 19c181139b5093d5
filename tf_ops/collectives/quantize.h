// Floats as int8 or int4 with scales: how an allreduce sends them between
// hosts.
//
// int8: a block of 128 elements, whose largest magnitude is m, becomes the
// scale m / 127 and the integers nearest to x / scale, ties to even. int4: a
// half of a block becomes the scale m / 7, of which the first 16 bits stay, and
// integers from -7 to 7. So
//
//   |x - unpacked(x)| <= m / 254 for int8, m / 14 for int4
//
// up to the rounding of `dtype`. With m < 2^-100 (float64: 2^-1000) all
// become zeros. Beside a NaN or an infinity the infinities stay, and all else
// becomes NaN. The same values give the same bits on every machine.
#pragma once

#include <cstddef>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/common/types.h"

namespace hvd {

inline constexpr size_t kPackedElements = 128;  // of a block
inline constexpr size_t kInt4Elements = 64;     // that share a scale

// Blocks of float64 are packed as doubles, all others as floats.
constexpr size_t RealBytes(DataType dtype) {
  return dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float);
}

constexpr size_t PackedBytes(WireFormat format, DataType dtype) {  // of a block
  return format == WireFormat::kInt4
             ? kPackedElements / 2 + 2 * (kPackedElements / kInt4Elements)
             : kPackedElements + RealBytes(dtype);
}

// Pack `num_blocks` whole blocks of float16, bfloat16, float32 or float64, and
// unpack them; `format` is not kExact. No two arguments may overlap.
//
// `residual`, if not null, has a real for each element. It is added before the
// packing, and gets what the packing has lost: nothing where that is no number.
void Pack(WireFormat format, DataType dtype, const void* from,
          size_t num_blocks, std::byte* to, void* residual = nullptr);
void Unpack(WireFormat format, DataType dtype, const std::byte* from,
            size_t num_blocks, void* to);

// Reduces blocks by Sum or Average as Reduce does, in the order of the sources:
// all are packed but the one at `own`. `out` may be that one. It gets
// the result as others will unpack it from `packed`. `residual` is the
// result's.
void ReducePacked(const ReduceSpec& spec, const void* const* sources,
                  int num_sources, int own, size_t num_blocks, void* out,
                  std::byte* packed, void* residual = nullptr);

}  // namespace hvd
