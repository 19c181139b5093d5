// Raises statuses as exceptions of hvd_keras.exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include "tf_ops/common/status.h"

namespace hvd {

// Raises the class that hvd_keras.exceptions has for the code.
void RaiseIfError(const Status& status);

// Calls f(), which may take long or need the GIL on another thread.
template <typename F>
Status WithoutGil(F f) {
  const pybind11::gil_scoped_release release;
  return f();
}

}  // namespace hvd
