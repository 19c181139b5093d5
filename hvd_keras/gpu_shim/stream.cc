// Finds the CUDA stream of a TensorFlow kernel, which TensorFlow's C API does
// not give. This file alone uses TensorFlow's C++ interface, whose layout
// changes with each minor version. `python -m hvd_keras.gpu_shim` builds it
// with the headers of the installed TensorFlow.
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

extern "C" void* hvd_tf_stream(void* context) {
  auto* const device =
      static_cast<tensorflow::OpKernelContext*>(context)->op_device_context();
  auto* const stream = device == nullptr ? nullptr : device->stream();
  return stream == nullptr ? nullptr : stream->platform_specific_handle().stream;
}
