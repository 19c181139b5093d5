// Non-blocking collectives over GPU memory, given by address: for tests,
// benchmarks and `hvdrun --check`.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd {

void DefineGpu(pybind11::module_* m);

}  // namespace hvd
