// HorovodAllgather: the ranks' tensors, one after the other along the first
// dimension, which may differ by rank.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "tf_ops/core/request.h"
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/tf_handles.h"

namespace hvd {
namespace {

class AllgatherKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<AllgatherKernel>* kernel) {
    auto made = std::make_unique<AllgatherKernel>();
    HVD_RETURN_IF_ERROR(attributes.Bool("average", &made->average_));
    HVD_RETURN_IF_ERROR(attributes.Common(&made->common_));
    *kernel = std::move(made);
    return Status::Ok();
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    RequestTensor tensor;
    const Status status = call->ReadInput(0, &tensor);
    if (!status.ok()) return call->Finish(status);
    Request request;
    request.kind = CollectiveKind::kAllgather;
    request.average = average_;
    // The size is known once the ranks have met.
    request.allocate_output = [call, dtype = tensor.dtype](size_t index,
                                                           const Shape& shape,
                                                           void** output) {
      return call->AllocateOutput(index, dtype, shape, output);
    };
    SubmitCall(std::move(call), common_, std::move(request));
  }

 private:
  bool average_ = false;
  CommonAttributes common_;
};

// [d0, d1, ...] -> [?, d1, ...]; a scalar is an error.
void InferGatheredShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TfShape input = NewTfShape();
  TF_ShapeInferenceContextGetInput(context, 0, input.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  if (!TF_ShapeInferenceContextRankKnown(context, input.get())) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
    return;
  }
  TfShape checked = NewTfShape();
  TF_ShapeInferenceContextWithRankAtLeast(context, input.get(), 1,
                                          checked.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TfShape row = NewTfShape();
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1,
                                   std::numeric_limits<int64_t>::max(),
                                   row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  // The C API makes no unknown dimension, but a vector of "size -1" has one.
  const TfShape unknown(
      TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
  TfShape output = NewTfShape();
  TF_ShapeInferenceContextConcatenateShapes(context, unknown.get(), row.get(),
                                            output.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, 0, output.get(), status);
}

[[maybe_unused]] const bool registered = [] {
  OpDefinition op;
  op.name = "HorovodAllgather";
  op.inputs = {"tensor: T"};
  op.outputs = {"output: T"};
  op.attributes = {"average: bool = false", "T: " HVD_TENSOR_TYPES};
  op.shape_function = InferGatheredShape;
  RegisterOp(op, KernelFunctionsOf<AllgatherKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
