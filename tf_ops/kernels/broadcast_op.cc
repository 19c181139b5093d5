// HorovodBroadcast and HorovodGroupedBroadcast: every rank gets the tensors of
// the root rank. The values of the other ranks' inputs are not read, so their
// memory may become the outputs.
#include <cstdint>
#include <memory>
#include <utility>

#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {
namespace {

class BroadcastKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<BroadcastKernel>* kernel) {
    auto made = std::make_unique<BroadcastKernel>();
    HVD_RETURN_IF_ERROR(attributes.Int("root_rank", &made->root_rank_));
    HVD_RETURN_IF_ERROR(attributes.Common(&made->common_));
    *kernel = std::move(made);
    return Status::Ok();
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    Request request;
    request.kind = CollectiveKind::kBroadcast;
    request.root_rank = root_rank_;
    SubmitCall(std::move(call), common_, std::move(request));
  }

 private:
  int32_t root_rank_ = 0;
  CommonAttributes common_;
};

[[maybe_unused]] const bool broadcast_registered = [] {
  OpDefinition op;
  op.name = "HorovodBroadcast";
  op.inputs = {"tensor: T"};
  op.outputs = {"output: T"};
  op.attributes = {"root_rank: int", "T: " HVD_TENSOR_TYPES};
  op.shape_function = InferShapesOfInputs;
  RegisterOp(op, KernelFunctionsOf<BroadcastKernel>());

  op.name = "HorovodGroupedBroadcast";
  op.inputs = {"tensors: T"};
  op.outputs = {"outputs: T"};
  op.attributes = {"root_rank: int", "T: list(" HVD_TENSOR_TYPES ") >= 1"};
  RegisterOp(op, KernelFunctionsOf<BroadcastKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
