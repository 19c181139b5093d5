// The kernel of HorovodAllreduce and HorovodGroupedAllreduce.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"

namespace hvd {

class AllreduceKernel {
 public:
  // The attributes of its own that Create() reads, for the op's definition.
  static std::vector<const char*> AttributeSpecs();

  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<AllreduceKernel>* kernel);

  void Compute(std::shared_ptr<OpCall> call) const;

 private:
  ReduceOp op_ = ReduceOp::kSum;
  double prescale_factor_ = 1.0;
  double postscale_factor_ = 1.0;
  CommonAttributes common_;
};

}  // namespace hvd
