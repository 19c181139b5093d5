// The kernel of HorovodAllgather and HorovodGroupedAllgather.
#pragma once

#include <memory>
#include <utility>

#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

class GatherKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<GatherKernel>* kernel) {
    *kernel = std::make_unique<GatherKernel>();
    HVD_RETURN_IF_ERROR(attributes.Bool("average", &(*kernel)->average_));
    return attributes.Common(&(*kernel)->common_);
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    Request request;
    request.kind = CollectiveKind::kAllgather;
    request.average = average_;
    SubmitCall(std::move(call), common_, std::move(request));
  }

 private:
  bool average_ = false;
  CommonAttributes common_;
};

}  // namespace hvd
