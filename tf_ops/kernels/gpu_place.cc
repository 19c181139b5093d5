#include "tf_ops/kernels/gpu_place.h"

#include <atomic>

#include "tf_ops/gpu/gpu.h"

namespace hvd {
namespace {

std::atomic<void* (*)(void*)> stream_function{nullptr};
// A process uses one GPU, and so one stream: its GPU is looked up once.
std::atomic<void*> last_stream{nullptr};
std::atomic<int> last_ordinal{0};

}  // namespace

Status PlaceOnGpu(TF_OpKernelContext* context, const void* address,
                  GpuPlace* place) {
  void* (*const function)(void*) = stream_function.load();
  if (function == nullptr) {
    return Status::Internal(
        "collectives on GPUs need a small library, which is missing for this "
        "version of TensorFlow. Build it: python -m hvd_keras.gpu_shim. Or run "
        "the collective on the CPU: with tf.device('CPU')");
  }
  place->stream = function(context);
  if (place->stream == nullptr) {
    return Status::Internal("TensorFlow has no stream for a kernel on a GPU");
  }
  const bool is_known = last_stream.load() == place->stream;
  if (address != nullptr && !is_known) {
    const int ordinal = Gpu::OrdinalOf(address);
    if (ordinal < 0) {
      return Status::Internal(
          "the CUDA runtime does not know the memory of a tensor on a GPU");
    }
    last_ordinal.store(ordinal);
    last_stream.store(place->stream);
  }
  place->ordinal = last_ordinal.load();
  return Status::Ok();
}

}  // namespace hvd

extern "C" void hvd_tf_set_stream_function(void* (*function)(void* context)) {
  hvd::stream_function.store(function);
}
