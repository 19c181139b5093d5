// Which GPU and which stream a kernel on a GPU works on.
#pragma once

#include "tf_ops/common/status.h"
#include "tf_ops/kernels/tf_c_api.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// Internal if the shim for this TensorFlow, which tells both, is missing.
Status PlaceOnGpu(TF_OpKernelContext* context, GpuPlace* place);

}  // namespace hvd

// Python hands over the shim's function here; see hvd_keras/gpu_shim.
extern "C" void hvd_tf_set_place_function(int (*function)(void* context,
                                                          void** stream));
