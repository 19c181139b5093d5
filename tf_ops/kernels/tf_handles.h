// Owners of the C API's objects.
#pragma once

#include <memory>

#include "tf_ops/kernels/tf_c_api.h"

namespace hvd {

struct TfDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};

using TfStatus = std::unique_ptr<TF_Status, TfDeleter>;
using TfTensor = std::unique_ptr<TF_Tensor, TfDeleter>;
using TfShape = std::unique_ptr<TF_ShapeHandle, TfDeleter>;

inline TfStatus NewTfStatus() { return TfStatus(TF_NewStatus()); }
inline TfShape NewTfShape() { return TfShape(TF_NewShapeHandle()); }

}  // namespace hvd
