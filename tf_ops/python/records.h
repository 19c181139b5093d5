// Indexes of TFRecord files, for Python to keep.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd {

void DefineRecords(pybind11::module_* m);

}  // namespace hvd
