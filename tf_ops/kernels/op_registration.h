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

// A type attribute's value: any type, since TensorFlow cannot read names such
// as float8_e5m2 there. Kernels refuse types that they do not know, see
// FromTfDataType.
#define HVD_TENSOR_TYPES "type"

// The last input of every op: the name that pairs the call across ranks. It is
// not an attribute: in eager calls TensorFlow makes a kernel for each value of
// an attribute, and keeps it for ever.
inline constexpr char kNameInput[] = "tensor_name";

struct OpDefinition {
  const char* name = nullptr;
  std::vector<const char*> inputs;  // without the name
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
  void (*shape_function)(TF_ShapeInferenceContext*, TF_Status*) = nullptr;
  // Whether there is a kernel for GPUs too. For that one the inputs and outputs
  // listed here are in host memory, and so is the name.
  bool is_for_gpus = true;
  std::vector<const char*> in_host_memory;
};

// A shape function: output i has the shape of input i.
void InferShapesOfInputs(TF_ShapeInferenceContext* context, TF_Status* status);

// A shape function: output i has the shape of input i except for the first
// dimension, which is known only when the op has run. A scalar is an error.
void InferShapesOfOtherRows(TF_ShapeInferenceContext* context,
                            TF_Status* status);

// The same for input and output `index` alone. Leaves the output as it is if
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

// Registers the op as stateful, so that it is never folded, merged or pruned.
// Aborts if TensorFlow refuses: the process could never use the op.
void RegisterOp(const OpDefinition& definition,
                const KernelFunctions& functions);

// Adds the attributes that every collective has.
void AddCommonAttributes(OpDefinition* definition);

// Registers the definition alone; adds no name input, no common attributes.
void RegisterDefinition(const OpDefinition& definition);

// Registers `kernel`, which then belongs to TensorFlow.
void RegisterKernel(const char* op_name, TF_KernelBuilder* kernel);

void FailConstruction(TF_OpKernelConstruction* construction,
                      const Status& status);

// The state of a node, or null if it could not be made.
template <typename Kernel>
void* CreateKernel(TF_OpKernelConstruction* construction) {
  std::unique_ptr<Kernel> kernel;
  const Status status = Kernel::Create(OpAttributes(construction), &kernel);
  if (!status.ok()) FailConstruction(construction, status);
  return kernel.release();
}

template <typename Kernel>
void DestroyKernel(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

// `Kernel` is the state of a node: it has
//   static Status Create(const OpAttributes&, std::unique_ptr<Kernel>*);
//   void Compute(std::shared_ptr<OpCall>) const;  // on many threads at once
// and may be destroyed as soon as its calls have ended.
template <typename Kernel>
KernelFunctions KernelFunctionsOf() {
  KernelFunctions functions;
  functions.create = &CreateKernel<Kernel>;
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
  functions.destroy = &DestroyKernel<Kernel>;
  return functions;
}

// Registers an op as `definition` has it, with a kernel on the CPU that is not
// asynchronous. `Kernel` is the state of a node: it has
//   static Status Create(const OpAttributes&, std::unique_ptr<Kernel>*);
//   Status Compute(TF_OpKernelContext*) const;  // on many threads at once
template <typename Kernel>
void RegisterSynchronousOp(const OpDefinition& definition) {
  RegisterDefinition(definition);
  const auto compute = [](void* kernel, TF_OpKernelContext* context) {
    const Status status = static_cast<const Kernel*>(kernel)->Compute(context);
    if (!status.ok()) FailRun(context, status);
  };
  RegisterKernel(
      definition.name,
      TF_NewKernelBuilder(definition.name, "CPU", &CreateKernel<Kernel>,
                          compute, &DestroyKernel<Kernel>));
}

}  // namespace hvd
