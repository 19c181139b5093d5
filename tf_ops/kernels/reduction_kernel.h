// The kernel of HorovodAllreduce, HorovodReducescatter and their grouped forms.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// What the ops that reduce have in common.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  WireFormat wire_format = WireFormat::kExact;
  bool done_early = false;  // see GpuPlace::done_in_stream_order
  CommonAttributes common;

  // The attributes that Read() reads, for the op's definition; the common ones
  // are added to every op.
  static std::vector<const char*> AttributeSpecs();

  static Status Read(const OpAttributes& attributes, Reduction* reduction);

  // Returns a request that lacks its name and its tensors.
  Request NewRequest(CollectiveKind kind) const;

  void Submit(CollectiveKind kind, std::shared_ptr<OpCall> call) const;
};

template <CollectiveKind kind>
class ReductionKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<ReductionKernel>* kernel) {
    *kernel = std::make_unique<ReductionKernel>();
    return Reduction::Read(attributes, &(*kernel)->reduction_);
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    reduction_.Submit(kind, std::move(call));
  }

 private:
  Reduction reduction_;
};

}  // namespace hvd
