// HorovodBarrier: ends once all ranks have begun it.
#include <memory>
#include <utility>

#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {
namespace {

class BarrierKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<BarrierKernel>* kernel) {
    *kernel = std::make_unique<BarrierKernel>();
    return attributes.Common(&(*kernel)->common_);
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    Request request;
    request.kind = CollectiveKind::kBarrier;
    SubmitCall(std::move(call), common_, std::move(request));
  }

 private:
  CommonAttributes common_;
};

[[maybe_unused]] const bool barrier_registered = [] {
  OpDefinition op;
  op.name = "HorovodBarrier";
  op.shape_function = InferShapesOfInputs;  // none
  op.is_for_gpus = false;
  RegisterOp(op, KernelFunctionsOf<BarrierKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
