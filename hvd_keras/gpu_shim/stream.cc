// Finds the GPU and the CUDA stream of a TensorFlow kernel, which TensorFlow's
// C API does not give. This file alone uses TensorFlow's C++ interface, whose
// layout changes with each minor version. `python -m hvd_keras.gpu_shim` builds
// it with the headers of the installed TensorFlow.
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

// Returns the GPU as CUDA counts, or -1: the kernel has no stream.
extern "C" int hvd_tf_place(void* context, void** stream) {
  auto* const device =
      static_cast<tensorflow::OpKernelContext*>(context)->op_device_context();
  auto* const found = device == nullptr ? nullptr : device->stream();
  if (found == nullptr) return -1;
  *stream = found->platform_specific_handle().stream;
  return *stream == nullptr ? -1 : found->parent()->device_ordinal();
}
