// Registers a collective's op and its asynchronous kernels with TensorFlow.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"
#include "tf_ops/kernels/tf_c_api.h"
#include "tf_ops/kernels/tf_handles.h"

namespace hvd {

// The types that a collective takes, as the value of a type attribute: all, for
// TensorFlow reads no name like float8_e5m2 there. Kernels refuse what they do
// not know, see FromTfDataType.
#define HVD_TENSOR_TYPES "type"

// The last input of every op: the name that pairs the call across ranks. An
// input, since TensorFlow keeps one kernel for ever for each value that an
// attribute takes in eager calls.
inline constexpr char kNameInput[] = "tensor_name";

struct OpDefinition {
  const char* name = nullptr;
  std::vector<const char*> inputs;  // without the name
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
  void (*shape_function)(TF_ShapeInferenceContext*, TF_Status*) = nullptr;
  // There is a kernel for GPUs too, for which these inputs and outputs, and
  // the name, are in host memory.
  bool is_for_gpus = true;
  std::vector<const char*> in_host_memory;
};

// A shape function: output i has the shape of input i.
void InferShapesOfInputs(TF_ShapeInferenceContext* context, TF_Status* status);

// A shape function: output i has the shape of input i but for the first
// dimension, which is known when the op has run; a scalar is an error.
void InferShapesOfOtherRows(TF_ShapeInferenceContext* context,
                            TF_Status* status);

// The same for one input and the output of that number, which stays as it is if
// the input's number of dimensions is unknown.
void InferShapeOfOtherRows(TF_ShapeInferenceContext* context, int index,
                           TF_Status* status);

// A shape function: the one output is a scalar.
void InferScalar(TF_ShapeInferenceContext* context, TF_Status* status);

// The shape of a vector of unknown length.
TfShape NewVectorShape(TF_ShapeInferenceContext* context);

struct KernelFunctions {
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
  // The same for the kernel on a GPU.
  void (*compute_on_gpu)(void*, TF_OpKernelContext*,
                         TF_AsyncOpKernelDoneCallback*);
  void (*destroy)(void*);
};

// Registers the op as stateful: it is then never folded, merged or pruned.
// Ends the process if TensorFlow refuses, for it would lack the op for ever.
void RegisterOp(const OpDefinition& definition,
                const KernelFunctions& functions);

// Registers the definition alone, without name input and common attributes.
void RegisterDefinition(const OpDefinition& definition);

// Registers what a kernel builder holds, which then is TensorFlow's.
void RegisterKernel(const char* op_name, TF_KernelBuilder* kernel);

void FailConstruction(TF_OpKernelConstruction* construction,
                      const Status& status);

// `Kernel` is the state of a node: it has
//   static Status Create(const OpAttributes&, std::unique_ptr<Kernel>*);
//   void Compute(std::shared_ptr<OpCall>) const;  // by any number of threads
// and may be destroyed as soon as the calls that it made have ended.
template <typename Kernel>
KernelFunctions KernelFunctionsOf() {
  KernelFunctions functions;
  functions.create = [](TF_OpKernelConstruction* construction) -> void* {
    std::unique_ptr<Kernel> kernel;
    const Status status = Kernel::Create(OpAttributes(construction), &kernel);
    if (!status.ok()) FailConstruction(construction, status);
    return kernel.release();
  };
  functions.compute = [](void* kernel, TF_OpKernelContext* context,
                         TF_AsyncOpKernelDoneCallback* done) {
    static_cast<const Kernel*>(kernel)->Compute(
        std::make_shared<OpCall>(context, done, DeviceKind::kCpu));
  };
  functions.compute_on_gpu = [](void* kernel, TF_OpKernelContext* context,
                                TF_AsyncOpKernelDoneCallback* done) {
    static_cast<const Kernel*>(kernel)->Compute(
        std::make_shared<OpCall>(context, done, DeviceKind::kGpu));
  };
  functions.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return functions;
}

}  // namespace hvd
