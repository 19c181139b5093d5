#include "tf_ops/kernels/op_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tf_ops/common/huge_pages.h"
#include "tf_ops/kernels/gpu_place.h"
#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/kernels/tf_handles.h"
#include "tf_ops/process/global_engine.h"

namespace hvd {
namespace {

// The sizes of other outputs are known only once the ranks have met.
bool HasOutputsLikeInputs(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
      return true;
    case CollectiveKind::kAllgather:
    case CollectiveKind::kAlltoall:
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return false;
  }
  return false;
}

}  // namespace

Status GetInput(TF_OpKernelContext* context, size_t index, TfTensor* tensor) {
  TfStatus status = NewTfStatus();
  TF_Tensor* raw = nullptr;
  TF_GetInput(context, static_cast<int>(index), &raw, status.get());
  tensor->reset(raw);
  return FromTfStatus(status.get());
}

void FailRun(TF_OpKernelContext* context, const Status& status) {
  TfStatus tf_status = NewTfStatus();
  SetTfStatus(status, tf_status.get());
  TF_OpKernelContext_Failure(context, tf_status.get());
}

OpCall::OpCall(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done,
               DeviceKind device)
    : context_(context), device_(device) {
  if (done != nullptr) done_.emplace(done);
}

size_t OpCall::num_tensors() const {
  return static_cast<size_t>(TF_NumInputs(context_)) - 1;
}

Status OpCall::ReadName(bool with_iteration, std::string* name) const {
  TfTensor tensor;
  HVD_RETURN_IF_ERROR(GetInput(context_, num_tensors(), &tensor));
  HVD_RETURN_IF_ERROR(ReadStringScalar(tensor.get(), name));
  if (name->empty()) {
    const TF_StringView node = TF_GetOpKernelName(context_);
    name->assign(node.data, node.len);
  }
  // The frame is a hash of the names and iterations of the loops around the
  // node, 0 outside of loops; equal on ranks that built the same graph.
  const uint64_t frame = with_iteration ? TF_GetFrameId(context_) : 0;
  if (frame != 0) {
    *name += "@" + std::to_string(frame) + "." +
             std::to_string(TF_GetIterId(context_));
  }
  return Status::Ok();
}

Status OpCall::ReadInput(size_t index, RequestTensor* tensor) const {
  TfTensor input;
  HVD_RETURN_IF_ERROR(GetInput(context_, index, &input));
  HVD_RETURN_IF_ERROR(
      FromTfDataType(TF_TensorType(input.get()), &tensor->dtype));
  const int num_dims = TF_NumDims(input.get());
  tensor->shape.resize(static_cast<size_t>(num_dims));
  for (int i = 0; i < num_dims; ++i) {
    tensor->shape[static_cast<size_t>(i)] = TF_Dim(input.get(), i);
  }
  tensor->input = TF_TensorData(input.get());
  return Status::Ok();
}

Status OpCall::ReadIntegers(size_t index, std::vector<int64_t>* values) const {
  TfTensor input;
  HVD_RETURN_IF_ERROR(GetInput(context_, index, &input));
  const TF_DataType dtype = TF_TensorType(input.get());
  const bool is_vector = TF_NumDims(input.get()) == 1;
  if (!is_vector || (dtype != TF_INT32 && dtype != TF_INT64)) {
    return Status::InvalidArgument(
        "input " + std::to_string(index) +
        " must be an int32 or int64 vector. Received: " +
        std::to_string(TF_NumDims(input.get())) +
        " dimensions, TensorFlow's type number " + std::to_string(dtype));
  }
  const auto num_elements = TF_Dim(input.get(), 0);
  const void* const data = TF_TensorData(input.get());
  for (int64_t i = 0; i < num_elements; ++i) {
    values->push_back(dtype == TF_INT32 ? static_cast<const int32_t*>(data)[i]
                                        : static_cast<const int64_t*>(data)[i]);
  }
  return Status::Ok();
}

Status OpCall::PassOn(size_t index) const {
  TfTensor tensor;
  HVD_RETURN_IF_ERROR(GetInput(context_, index, &tensor));
  TfStatus status = NewTfStatus();
  TF_SetOutput(context_, static_cast<int>(index), tensor.get(), status.get());
  return FromTfStatus(status.get());
}

Status OpCall::HoldInput(size_t index, TfTensor* tensor) const {
  return GetInput(context_, index, tensor);
}

Status OpCall::ReadInteger(size_t index, int64_t* value) const {
  TfTensor tensor;
  HVD_RETURN_IF_ERROR(GetInput(context_, index, &tensor));
  if (TF_TensorType(tensor.get()) != TF_INT64 ||
      TF_NumDims(tensor.get()) != 0) {
    return Status::InvalidArgument("input " + std::to_string(index) +
                                   " must be an int64 scalar");
  }
  *value = *static_cast<const int64_t*>(TF_TensorData(tensor.get()));
  return Status::Ok();
}

Status OpCall::ForwardOutput(size_t index, RequestTensor* tensor) const {
  TfTensor held;
  return ForwardOutput(index, tensor, &held);
}

Status OpCall::ForwardOutput(size_t index, RequestTensor* tensor,
                             TfTensor* held) const {
  // To forward an input TensorFlow looks at all outputs: few bytes are not
  // worth that.
  constexpr size_t kBytesWorthALook = 16;
  const size_t num_bytes = static_cast<size_t>(NumElements(tensor->shape)) *
                           ElementBytes(tensor->dtype);
  if (num_bytes < kBytesWorthALook * num_tensors()) {
    return AllocateOutput(index, tensor->dtype, tensor->shape, &tensor->output,
                          held);
  }
  TfStatus status = NewTfStatus();
  const int candidate = static_cast<int>(index);
  int forwarded_input = -1;
  held->reset(TF_ForwardInputOrAllocateOutput(
      context_, &candidate, 1, static_cast<int>(index), tensor->shape.data(),
      static_cast<int>(tensor->shape.size()), &forwarded_input, status.get()));
  HVD_RETURN_IF_ERROR(FromTfStatus(status.get()));
  tensor->output = TF_TensorData(held->get());
  if (forwarded_input < 0 && device_ == DeviceKind::kCpu) {
    AdviseHugePages(tensor->output, num_bytes);
  }
  return Status::Ok();
}

Status OpCall::SetPlace(Request* request) const {
  if (device_ == DeviceKind::kCpu) return Status::Ok();
  return PlaceOnGpu(context_, &request->gpu);
}

Status OpCall::AllocateOutput(size_t index, DataType dtype, const Shape& shape,
                              void** output) const {
  TfTensor held;
  return AllocateOutput(index, dtype, shape, output, &held);
}

Status OpCall::AllocateOutput(size_t index, DataType dtype, const Shape& shape,
                              void** output, TfTensor* held) const {
  TfStatus status = NewTfStatus();
  const size_t num_bytes =
      static_cast<size_t>(NumElements(shape)) * ElementBytes(dtype);
  held->reset(TF_AllocateOutput(
      context_, static_cast<int>(index), ToTfDataType(dtype), shape.data(),
      static_cast<int>(shape.size()), num_bytes, status.get()));
  HVD_RETURN_IF_ERROR(FromTfStatus(status.get()));
  *output = TF_TensorData(held->get());
  if (device_ == DeviceKind::kCpu) AdviseHugePages(*output, num_bytes);
  return Status::Ok();
}

Status OpCall::WriteOutput(size_t index, const Shape& shape,
                           const int32_t* values) const {
  void* output = nullptr;
  HVD_RETURN_IF_ERROR(AllocateOutput(index, DataType::kInt32, shape, &output));
  std::copy_n(values, NumElements(shape), static_cast<int32_t*>(output));
  return Status::Ok();
}

void OpCall::Finish(const Status& status) {
  if (!status.ok()) FailRun(context_, status);
  if (done_.has_value()) (*done_)();
}

void SubmitCall(std::shared_ptr<OpCall> call, const CommonAttributes& common,
                Request request) {
  const bool in_place = HasOutputsLikeInputs(request.kind);
  const Status named =
      call->ReadName(common.iterations_may_overlap, &request.name);
  if (!named.ok()) return call->Finish(named);
  request.process_set_id = common.process_set_id;
  if (request.tensors.empty()) request.tensors.resize(call->num_tensors());
  const auto prepare = [&]() -> Status {
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      RequestTensor* tensor = &request.tensors[i];
      HVD_RETURN_IF_ERROR(call->ReadInput(i, tensor));
      if (in_place) HVD_RETURN_IF_ERROR(call->ForwardOutput(i, tensor));
    }
    return call->SetPlace(&request);
  };
  request.failure = prepare();
  if (!in_place) {
    std::vector<DataType> dtypes;
    for (const RequestTensor& t : request.tensors) dtypes.push_back(t.dtype);
    request.allocate_output = [call, dtypes = std::move(dtypes)](
                                  size_t index, const Shape& shape,
                                  void** output) {
      return call->AllocateOutput(index, dtypes[index], shape, output);
    };
  }
  request.done = [call](const Status& outcome) { call->Finish(outcome); };
  SubmitGlobal(std::move(request));
}

}  // namespace hvd
