// HorovodAllgather: concatenates the ranks' tensors along the first dimension,
// whose length may differ by rank.
#include "tf_ops/kernels/gather_kernel.h"
#include "tf_ops/kernels/op_registration.h"

namespace hvd {
namespace {

[[maybe_unused]] const bool allgather_registered = [] {
  OpDefinition op;
  op.name = "HorovodAllgather";
  op.inputs = {"tensor: T"};
  op.outputs = {"output: T"};
  op.attributes = {"average: bool = false", "T: " HVD_TENSOR_TYPES};
  op.shape_function = InferShapesOfOtherRows;
  RegisterOp(op, KernelFunctionsOf<GatherKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
