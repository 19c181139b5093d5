#include "tf_ops/kernels/op_registration.h"

#include <cstdio>
#include <cstdlib>
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

void RegisterOp(const OpDefinition& definition,
                const KernelFunctions& functions) {
  // Both builders belong to TensorFlow once they are registered.
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(definition.name);
  for (const char* spec : definition.inputs) {
    TF_OpDefinitionBuilderAddInput(op, spec);
  }
  const std::string name_spec = std::string(kNameInput) + ": string";
  TF_OpDefinitionBuilderAddInput(op, name_spec.c_str());
  for (const char* spec : definition.outputs) {
    TF_OpDefinitionBuilderAddOutput(op, spec);
  }
  for (const char* spec : definition.attributes) {
    TF_OpDefinitionBuilderAddAttr(op, spec);
  }
  TF_OpDefinitionBuilderAddAttr(op, "process_set_id: int = 0");
  TF_OpDefinitionBuilderAddAttr(op, "iterations_may_overlap: bool = false");
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op,
                                                  definition.shape_function);
  TfStatus status = NewTfStatus();
  TF_RegisterOpDefinition(op, status.get());
  CheckRegistered(status.get(), definition.name);

  TF_KernelBuilder* kernel =
      TF_NewAsyncKernelBuilder(definition.name, "CPU", functions.create,
                               functions.compute, functions.destroy);
  TF_KernelBuilder_HostMemory(kernel, kNameInput);
  TF_RegisterKernelBuilder(definition.name, kernel, status.get());
  CheckRegistered(status.get(), definition.name);
}

void FailConstruction(TF_OpKernelConstruction* construction,
                      const Status& status) {
  TfStatus tf_status = NewTfStatus();
  SetTfStatus(status, tf_status.get());
  TF_OpKernelConstruction_Failure(construction, tf_status.get());
}

}  // namespace hvd
