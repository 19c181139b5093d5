// The part of TensorFlow's C API that our kernels use, declared by hand so that
// no TensorFlow is needed to build. All of it is exported, with these types, by
// libtensorflow_framework.so.2 of every TensorFlow from 2.16 to 2.21.
//
// Keep one prototype a statement: the build reads the names of the functions
// from this file to make the stub that stands in for TensorFlow's library.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

// The values are TensorFlow's; those that we do not handle are left out.
enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_STRING = 7,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_HALF = 19,
  TF_RESOURCE = 20,
  TF_VARIANT = 21,
  TF_UINT32 = 22,
  TF_UINT64 = 23,
  TF_FLOAT8_E5M2 = 24,
  TF_FLOAT8_E4M3FN = 25,
};

enum TF_Code : int {
  TF_OK = 0,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
  TF_INTERNAL = 13,
  TF_DATA_LOSS = 15,
};

struct TF_StringView {
  const char* data;
  size_t len;
};

// ---- Status ----

TF_Status* TF_NewStatus(void);
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, TF_Code code, const char* message);
void TF_SetPayload(TF_Status*, const char* key, const char* value);
TF_Code TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

// ---- Tensors ----

void TF_DeleteTensor(TF_Tensor*);
TF_DataType TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int dim_index);
void* TF_TensorData(const TF_Tensor*);
size_t TF_TensorByteSize(const TF_Tensor*);

// ---- Op definitions and shape inference ----

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* op_name);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder*,
    void (*function)(TF_ShapeInferenceContext*, TF_Status*));

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int index,
                                      TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int index,
                                       TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*,
                                             TF_Status*);
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext*,
                                      TF_ShapeHandle*);
void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext*,
                                             TF_ShapeHandle*, int64_t rank,
                                             TF_ShapeHandle* result,
                                             TF_Status*);
void TF_ShapeInferenceContextWithRank(TF_ShapeInferenceContext*,
                                      TF_ShapeHandle*, int64_t rank,
                                      TF_ShapeHandle* result, TF_Status*);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(
    TF_ShapeInferenceContext*, size_t size);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*,
                                      TF_ShapeHandle*, int64_t start,
                                      int64_t end, TF_ShapeHandle* result,
                                      TF_Status*);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*,
                                               TF_ShapeHandle* first,
                                               TF_ShapeHandle* second,
                                               TF_ShapeHandle* result,
                                               TF_Status*);

// ---- Kernel registration ----

TF_KernelBuilder* TF_NewKernelBuilder(const char* op_name,
                                      const char* device_name,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void* kernel,
                                                      TF_OpKernelContext*),
                                      void (*destroy)(void* kernel));
TF_KernelBuilder* TF_NewAsyncKernelBuilder(
    const char* op_name, const char* device_name,
    void* (*create)(TF_OpKernelConstruction*),
    void (*compute_async)(void* kernel, TF_OpKernelContext*,
                          TF_AsyncOpKernelDoneCallback*),
    void (*destroy)(void* kernel));
void TF_KernelBuilder_HostMemory(TF_KernelBuilder*, const char* arg_name);
void TF_RegisterKernelBuilder(const char* kernel_name, TF_KernelBuilder*,
                              TF_Status*);

// ---- Kernel construction ----

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction*,
                                          const char* name, int32_t* value,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction*,
                                         const char* name, unsigned char* value,
                                         TF_Status*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*,
                                         const char* name, int32_t* list_size,
                                         int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*,
                                           const char* name, char* value,
                                           size_t max_length, TF_Status*);

// ---- Kernel execution ----

void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);
int TF_NumInputs(TF_OpKernelContext*);
void TF_GetInput(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
void TF_SetOutput(TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*, int index, TF_DataType,
                             const int64_t* dims, int num_dims,
                             size_t num_bytes, TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*,
                                           const int* candidate_inputs,
                                           int num_candidate_inputs,
                                           int output_index,
                                           const int64_t* dims, int num_dims,
                                           int* forwarded_input, TF_Status*);
TF_StringView TF_GetOpKernelName(TF_OpKernelContext*);
uint64_t TF_GetFrameId(TF_OpKernelContext*);
int64_t TF_GetIterId(TF_OpKernelContext*);

}  // extern "C"
