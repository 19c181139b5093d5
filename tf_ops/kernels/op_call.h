// One execution of a collective's kernel, from the executor's call to `done`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/kernels/done_callback.h"
#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/tf_c_api.h"
#include "tf_ops/kernels/tf_handles.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// Reads input `index`, in whatever memory it is.
Status GetInput(TF_OpKernelContext* context, size_t index, TfTensor* tensor);

// Tells TensorFlow that this execution has failed.
void FailRun(TF_OpKernelContext* context, const Status& status);

// Used by the executor's thread until the request is submitted, then by the
// engine's threads; never by two at once. It holds no reference to a tensor:
// TensorFlow keeps a node's inputs and outputs alive until `done`.
class OpCall {
 public:
  // `done` need only be valid during this constructor; it is null in a kernel
  // that is not asynchronous. `device` says where the tensors are.
  OpCall(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done,
         DeviceKind device);
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  // How many inputs the op has, without the last, which is the name.
  size_t num_tensors() const;

  // Reads the name that pairs this call across ranks: the op's last input or,
  // if that is empty, the node's name. `with_iteration` adds the iteration of
  // the loops around the node.
  Status ReadName(bool with_iteration, std::string* name) const;

  // Fills dtype, shape and input of `tensor` from input `index`.
  Status ReadInput(size_t index, RequestTensor* tensor) const;

  // Reads input `index`, an int32 or int64 vector.
  Status ReadIntegers(size_t index, std::vector<int64_t>* values) const;

  // Makes output `index`, of the dtype and shape of `tensor`, and points
  // tensor->output at it. It reuses the memory of input `index` if nobody else
  // needs that; small outputs always get new memory.
  Status ForwardOutput(size_t index, RequestTensor* tensor) const;

  // The same, and `*held` keeps the memory of the output alive.
  Status ForwardOutput(size_t index, RequestTensor* tensor,
                       TfTensor* held) const;

  // Passes input `index` on as the output of that index.
  Status PassOn(size_t index) const;

  // Returns what keeps the memory of input `index` alive.
  Status HoldInput(size_t index, TfTensor* tensor) const;

  // Reads input `index`, an int64 scalar.
  Status ReadInteger(size_t index, int64_t* value) const;

  // Sets request->gpu by the memory of its tensors, which must all be there.
  Status SetPlace(Request* request) const;

  // Makes output `index` in new memory. Any thread may call it until Finish().
  Status AllocateOutput(size_t index, DataType dtype, const Shape& shape,
                        void** output) const;

  // Makes output `index`, an int32 tensor with the given elements. Any thread
  // may call it until Finish().
  Status WriteOutput(size_t index, const Shape& shape,
                     const int32_t* values) const;

  // Tells TensorFlow the outcome, once. Afterwards the context, the inputs and
  // the outputs belong to TensorFlow again.
  void Finish(const Status& status);

 private:
  Status AllocateOutput(size_t index, DataType dtype, const Shape& shape,
                        void** output, TfTensor* held) const;

  TF_OpKernelContext* const context_;
  std::optional<DoneCallback> done_;
  const DeviceKind device_;
};

// Submits `request` to the engine after filling in what all collectives share:
// the name, the process set, the inputs (all of the op's, or as many as
// request.tensors has), the outputs or where they come from, and a `done` that
// ends the call. An unreadable name ends the call at once; other errors fail it
// on all ranks.
void SubmitCall(std::shared_ptr<OpCall> call, const CommonAttributes& common,
                Request request);

}  // namespace hvd
