#include "tf_ops/python/raise.h"

#include <pybind11/pybind11.h>

#include <string>

namespace py = pybind11;

namespace hvd {

void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  const std::string name = std::string(StatusCodeName(status.code())) + "Error";
  const py::object type =
      py::module_::import("hvd_keras.exceptions").attr(name.c_str());
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

}  // namespace hvd
