#include "tf_ops/kernels/allreduce_kernel.h"

#include <utility>

#include "tf_ops/core/request.h"

namespace hvd {

std::vector<const char*> AllreduceKernel::AttributeSpecs() {
  return {"reduce_op: int", "prescale_factor: string = '1'",
          "postscale_factor: string = '1'"};
}

Status AllreduceKernel::Create(const OpAttributes& attributes,
                               std::unique_ptr<AllreduceKernel>* kernel) {
  auto made = std::make_unique<AllreduceKernel>();
  HVD_RETURN_IF_ERROR(attributes.Reduction("reduce_op", &made->op_));
  HVD_RETURN_IF_ERROR(
      attributes.Double("prescale_factor", &made->prescale_factor_));
  HVD_RETURN_IF_ERROR(
      attributes.Double("postscale_factor", &made->postscale_factor_));
  HVD_RETURN_IF_ERROR(attributes.Common(&made->common_));
  *kernel = std::move(made);
  return Status::Ok();
}

void AllreduceKernel::Compute(std::shared_ptr<OpCall> call) const {
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.op = op_;
  request.prescale = prescale_factor_;
  request.postscale = postscale_factor_;
  SubmitCall(std::move(call), common_, std::move(request));
}

}  // namespace hvd
