// HorovodGroupedReducescatter: reduces tensors of any types and shapes as one
// request; each rank keeps a share of the rows of each.
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/reduction_kernel.h"

namespace hvd {
namespace {

[[maybe_unused]] const bool grouped_reducescatter_registered = [] {
  OpDefinition op;
  op.name = "HorovodGroupedReducescatter";
  op.inputs = {"tensors: T"};
  op.outputs = {"outputs: T"};
  op.attributes = Reduction::AttributeSpecs();
  op.attributes.push_back("T: list(" HVD_TENSOR_TYPES ") >= 1");
  op.shape_function = InferShapesOfOtherRows;
  RegisterOp(
      op, KernelFunctionsOf<ReductionKernel<CollectiveKind::kReducescatter>>());
  return true;
}();

}  // namespace
}  // namespace hvd
