#include "tf_ops/kernels/op_registration.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/kernels/tf_handles.h"

namespace hvd {
namespace {

void CheckRegistered(const TF_Status* status, const char* op_name) {
  if (TF_GetCode(status) == TF_OK) return;
  std::fprintf(stderr, "hvd_keras: TensorFlow refuses the op %s: %s\n", op_name,
               TF_Message(status));
  std::abort();
}

}  // namespace

void InferShapesOfInputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int num_tensors =
      static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  TfShape shape = NewTfShape();
  for (int i = 0; i < num_tensors; ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (TF_GetCode(status) != TF_OK) return;
    TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    if (TF_GetCode(status) != TF_OK) return;
  }
}

void InferShapeOfOtherRows(TF_ShapeInferenceContext* context, int index,
                           TF_Status* status) {
  TfShape input = NewTfShape();
  TF_ShapeInferenceContextGetInput(context, index, input.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  if (!TF_ShapeInferenceContextRankKnown(context, input.get())) return;
  TfShape checked = NewTfShape();
  TF_ShapeInferenceContextWithRankAtLeast(context, input.get(), 1,
                                          checked.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TfShape row = NewTfShape();
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1,
                                   std::numeric_limits<int64_t>::max(),
                                   row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  const TfShape unknown = NewVectorShape(context);
  TfShape output = NewTfShape();
  TF_ShapeInferenceContextConcatenateShapes(context, unknown.get(), row.get(),
                                            output.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, index, output.get(), status);
}

void InferShapesOfOtherRows(TF_ShapeInferenceContext* context,
                            TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const int num_tensors =
      static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  for (int i = 0; i < num_tensors && TF_GetCode(status) == TF_OK; ++i) {
    InferShapeOfOtherRows(context, i, status);
  }
}

void InferScalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const TfShape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

TfShape NewVectorShape(TF_ShapeInferenceContext* context) {
  // The C API cannot make an unknown dimension; a vector of "size -1" has one.
  return TfShape(
      TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
}

void AddCommonAttributes(OpDefinition* definition) {
  definition->attributes.push_back("process_set_id: int = 0");
  definition->attributes.push_back("iterations_may_overlap: bool = false");
}

void RegisterDefinition(const OpDefinition& definition) {
  // The builder belongs to TensorFlow once it is registered.
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(definition.name);
  for (const char* spec : definition.inputs) {
    TF_OpDefinitionBuilderAddInput(op, spec);
  }
  for (const char* spec : definition.outputs) {
    TF_OpDefinitionBuilderAddOutput(op, spec);
  }
  for (const char* spec : definition.attributes) {
    TF_OpDefinitionBuilderAddAttr(op, spec);
  }
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op,
                                                  definition.shape_function);
  TfStatus status = NewTfStatus();
  TF_RegisterOpDefinition(op, status.get());
  CheckRegistered(status.get(), definition.name);
}

void RegisterKernel(const char* op_name, TF_KernelBuilder* kernel) {
  TfStatus status = NewTfStatus();
  TF_RegisterKernelBuilder(op_name, kernel, status.get());
  CheckRegistered(status.get(), op_name);
}

void RegisterOp(const OpDefinition& definition,
                const KernelFunctions& functions) {
  const std::string name_spec = std::string(kNameInput) + ": string";
  OpDefinition whole = definition;
  whole.inputs.push_back(name_spec.c_str());
  AddCommonAttributes(&whole);
  RegisterDefinition(whole);
  TF_KernelBuilder* kernel =
      TF_NewAsyncKernelBuilder(definition.name, "CPU", functions.create,
                               functions.compute, functions.destroy);
  TF_KernelBuilder_HostMemory(kernel, kNameInput);
  RegisterKernel(definition.name, kernel);
  // A TensorFlow without GPUs never uses this kernel.
  if (!definition.is_for_gpus) return;
  kernel =
      TF_NewAsyncKernelBuilder(definition.name, "GPU", functions.create,
                               functions.compute_on_gpu, functions.destroy);
  TF_KernelBuilder_HostMemory(kernel, kNameInput);
  for (const char* argument : definition.in_host_memory) {
    TF_KernelBuilder_HostMemory(kernel, argument);
  }
  RegisterKernel(definition.name, kernel);
}

void FailConstruction(TF_OpKernelConstruction* construction,
                      const Status& status) {
  TfStatus tf_status = NewTfStatus();
  SetTfStatus(status, tf_status.get());
  TF_OpKernelConstruction_Failure(construction, tf_status.get());
}

}  // namespace hvd
