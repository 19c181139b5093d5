// The arithmetic of Adasum on one rank; nothing here communicates.
#pragma once

#include <cstddef>
#include <vector>

#include "tf_ops/common/types.h"

namespace hvd {

// Two ranks whose vectors are combined, `second` into `first`.
struct AdasumPair {
  int first;
  int second;
};

// The levels of the tree of `size` ranks, in order. All pairs of a level are
// independent; rank 0 has the result in the end.
std::vector<std::vector<AdasumPair>> AdasumLevels(int size);

struct AdasumDots {
  double aa = 0;
  double bb = 0;
  double ab = 0;
};

// Vectors are arrays of accumulators: of double if `dtype` is float64, of
// float otherwise.
size_t AccumulatorBytes(DataType dtype);

AdasumDots DotsOf(DataType dtype, const void* a, const void* b,
                  size_t num_elements);

// Replaces `a` by adasum(a, b). Both may be parts of longer vectors; `dots` are
// the dot products of the whole ones.
void CombineInto(DataType dtype, const AdasumDots& dots, void* a, const void* b,
                 size_t num_elements);

// Turns `num_elements` values of `dtype` into accumulators, times `scale`, in
// place: the values lie at the end of the accumulators' memory.
void WidenInPlace(DataType dtype, double scale, void* accumulators,
                  size_t num_elements);

// Writes accumulators, times `scale`, as values of `dtype`.
void NarrowTo(DataType dtype, double scale, const void* accumulators,
              void* values, size_t num_elements);

}  // namespace hvd
