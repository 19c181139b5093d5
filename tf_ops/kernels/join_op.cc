// HorovodJoin: this rank is out of data. It takes part in the others'
// allreduces with neutral values until all ranks have joined.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {
namespace {

class JoinKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<JoinKernel>* kernel) {
    *kernel = std::make_unique<JoinKernel>();
    HVD_RETURN_IF_ERROR(attributes.Bool("average_over_active",
                                        &(*kernel)->average_over_active_));
    return attributes.Common(&(*kernel)->common_);
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    Request request;
    request.kind = CollectiveKind::kJoin;
    request.average_over_active = average_over_active_;
    request.take_values = [call](const std::vector<int64_t>& last_rank) {
      const int32_t narrow = static_cast<int32_t>(last_rank.at(0));
      return call->WriteOutput(0, {}, &narrow);
    };
    SubmitCall(std::move(call), common_, std::move(request));
  }

 private:
  bool average_over_active_ = false;
  CommonAttributes common_;
};

[[maybe_unused]] const bool join_registered = [] {
  OpDefinition op;
  op.name = "HorovodJoin";
  op.outputs = {"last_rank: int32"};
  op.attributes = {"average_over_active: bool = false"};
  op.shape_function = InferScalar;
  op.is_for_gpus = false;
  RegisterOp(op, KernelFunctionsOf<JoinKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
