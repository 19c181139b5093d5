// HorovodGroupedAllgather: gathers tensors of any types and shapes, each along
// its first dimension, as one request.
#include "tf_ops/kernels/gather_kernel.h"
#include "tf_ops/kernels/op_registration.h"

namespace hvd {
namespace {

[[maybe_unused]] const bool grouped_allgather_registered = [] {
  OpDefinition op;
  op.name = "HorovodGroupedAllgather";
  op.inputs = {"tensors: T"};
  op.outputs = {"outputs: T"};
  op.attributes = {"average: bool = false",
                   "T: list(" HVD_TENSOR_TYPES ") >= 1"};
  op.shape_function = InferShapesOfOtherRows;
  RegisterOp(op, KernelFunctionsOf<GatherKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
