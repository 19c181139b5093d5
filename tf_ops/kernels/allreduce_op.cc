// HorovodAllreduce: reduces one tensor over the ranks.
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/reduction_kernel.h"

namespace hvd {
namespace {

[[maybe_unused]] const bool allreduce_registered = [] {
  OpDefinition op;
  op.name = "HorovodAllreduce";
  op.inputs = {"tensor: T"};
  op.outputs = {"sum: T"};
  op.attributes = Reduction::AttributeSpecs();
  op.attributes.push_back("T: " HVD_TENSOR_TYPES);
  op.shape_function = InferShapesOfInputs;
  RegisterOp(op,
             KernelFunctionsOf<ReductionKernel<CollectiveKind::kAllreduce>>());
  return true;
}();

}  // namespace
}  // namespace hvd
