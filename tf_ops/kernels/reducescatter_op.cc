// HorovodReducescatter: reduces one tensor over the ranks; each rank keeps a
// share of the rows.
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/reduction_kernel.h"

namespace hvd {
namespace {

[[maybe_unused]] const bool reducescatter_registered = [] {
  OpDefinition op;
  op.name = "HorovodReducescatter";
  op.inputs = {"tensor: T"};
  op.outputs = {"output: T"};
  op.attributes = Reduction::AttributeSpecs();
  op.attributes.push_back("T: " HVD_TENSOR_TYPES);
  op.shape_function = InferShapesOfOtherRows;
  RegisterOp(
      op, KernelFunctionsOf<ReductionKernel<CollectiveKind::kReducescatter>>());
  return true;
}();

}  // namespace
}  // namespace hvd
