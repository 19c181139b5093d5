// HorovodGroupedAllreduce: reduces tensors of any types and shapes as one
// request; each output may reuse the memory of its input.
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/reduction_kernel.h"

namespace hvd {
namespace {

[[maybe_unused]] const bool grouped_allreduce_registered = [] {
  OpDefinition op;
  op.name = "HorovodGroupedAllreduce";
  op.inputs = {"tensors: T"};
  op.outputs = {"sums: T"};
  op.attributes = Reduction::AttributeSpecs();
  op.attributes.push_back("T: list(" HVD_TENSOR_TYPES ") >= 1");
  op.shape_function = InferShapesOfInputs;
  RegisterOp(op,
             KernelFunctionsOf<ReductionKernel<CollectiveKind::kAllreduce>>());
  return true;
}();

}  // namespace
}  // namespace hvd
