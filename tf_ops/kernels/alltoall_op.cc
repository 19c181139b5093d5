// HorovodAlltoall: each rank sends some of its rows to each rank, and receives
// those that the others send to it.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/tf_handles.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {
namespace {

Status WriteReceivedSplits(const OpCall& call,
                           const std::vector<int64_t>& splits) {
  std::vector<int32_t> narrow;
  for (int64_t rows : splits) {
    if (rows > std::numeric_limits<int32_t>::max()) {
      return Status::InvalidArgument(
          "an alltoall must receive fewer than 2^31 rows from a rank. "
          "Received: " +
          std::to_string(rows));
    }
    narrow.push_back(static_cast<int32_t>(rows));
  }
  return call.WriteOutput(1, {static_cast<int64_t>(narrow.size())},
                          narrow.data());
}

class AlltoallKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<AlltoallKernel>* kernel) {
    *kernel = std::make_unique<AlltoallKernel>();
    return attributes.Common(&(*kernel)->common_);
  }

  void Compute(std::shared_ptr<OpCall> call) const {
    Request request;
    request.kind = CollectiveKind::kAlltoall;
    const Status status = call->ReadIntegers(1, &request.splits);
    if (!status.ok()) return call->Finish(status);
    request.tensors.resize(1);  // not for the splits
    request.take_values = [call](const std::vector<int64_t>& received) {
      return WriteReceivedSplits(*call, received);
    };
    SubmitCall(std::move(call), common_, std::move(request));
  }

 private:
  CommonAttributes common_;
};

void InferShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  if (TF_GetCode(status) != TF_OK) return;
  TfShape splits = NewTfShape();
  TF_ShapeInferenceContextGetInput(context, 1, splits.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TfShape vector = NewTfShape();
  TF_ShapeInferenceContextWithRank(context, splits.get(), 1, vector.get(),
                                   status);
  if (TF_GetCode(status) != TF_OK) return;
  InferShapeOfOtherRows(context, 0, status);
  if (TF_GetCode(status) != TF_OK) return;
  // One element for each rank of the set, even if `splits` is empty.
  const TfShape received = NewVectorShape(context);
  TF_ShapeInferenceContextSetOutput(context, 1, received.get(), status);
}

[[maybe_unused]] const bool alltoall_registered = [] {
  OpDefinition op;
  op.name = "HorovodAlltoall";
  op.inputs = {"tensor: T", "splits: Tsplits"};
  op.outputs = {"output: T", "received_splits: int32"};
  op.attributes = {"T: " HVD_TENSOR_TYPES, "Tsplits: {int32, int64}"};
  op.shape_function = InferShapes;
  op.in_host_memory = {"splits", "received_splits"};
  RegisterOp(op, KernelFunctionsOf<AlltoallKernel>());
  return true;
}();

}  // namespace
}  // namespace hvd
