// Translates reductions to NCCL's, and runs allreduces with them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tf_ops/engine/gpu_collectives.h"

namespace hvd {

// A reduction in NCCL's terms: a built-in op, or one made for a factor.
struct GpuReduction {
  DataType dtype = DataType::kFloat32;
  int op = kNcclSum;
  double factor = 1.0;  // of every input; NCCL rounds it to the dtype
  double scale = 1.0;   // of the result, for a GpuScaler
};

// `divisor`: what Average divides by. With `sums_in_switch` it multiplies
// nothing before the sum where it can, for the switch only sums.
GpuReduction ReductionOf(const Request& request, DataType dtype, int size,
                         int divisor, bool sums_in_switch);

int NcclType(DataType dtype);

// Writes `value` as one element of `dtype`, a floating one.
void StoreScalar(double value, DataType dtype, void* element);

// InvalidArgument if NCCL or this GPU cannot reduce the dtypes of `request`.
Status CheckReduction(const Gpu& gpu, const Request& request);

// Calls use(op) with an op that is valid during that call only.
Status WithOp(const Communicator& communicator, const GpuReduction& reduction,
              const NcclApi& nccl, NcclComm comm,
              const std::function<Status(int op)>& use);

struct GpuTensor {
  const void* input;
  void* output;
  size_t num_elements;
  size_t num_bytes;
};

// Allreduces tensors of the reduction's dtype where they are, as one group.
Status AllreduceEach(const GpuLane& lane, const GpuReduction& reduction,
                     const std::vector<GpuTensor>& tensors);

inline constexpr size_t kGpuAlignment = 128;  // of tensors in the fusion buffer

// Allreduces tensors of one dtype, the small ones as the lane packs them.
Status AllreduceFused(const GpuLane& lane, const GpuReduction& reduction,
                      const std::vector<GpuTensor>& tensors);

}  // namespace hvd
