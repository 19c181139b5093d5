#include "tf_ops/kernels/gpu_place.h"

#include <atomic>

namespace hvd {
namespace {

std::atomic<int (*)(void*, void**)> place_function{nullptr};

}  // namespace

Status PlaceOnGpu(TF_OpKernelContext* context, GpuPlace* place) {
  int (*const function)(void*, void**) = place_function.load();
  if (function == nullptr) {
    return Status::Internal(
        "collectives on GPUs need a small library, which is missing or too old "
        "for this version of TensorFlow. Build it: python -m "
        "hvd_keras.gpu_shim. Or run the collective on the CPU: with "
        "tf.device('CPU')");
  }
  place->ordinal = function(context, &place->stream);
  if (place->ordinal < 0) {
    return Status::Internal("TensorFlow has no stream for a kernel on a GPU");
  }
  return Status::Ok();
}

}  // namespace hvd

extern "C" void hvd_tf_set_place_function(int (*function)(void* context,
                                                          void** stream)) {
  hvd::place_function.store(function);
}
