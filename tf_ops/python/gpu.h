// Collectives over memory of GPUs, by address. They do not block; for tests,
// benchmarks and `hvdrun --check`.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd {

void DefineGpu(pybind11::module_* m);

}  // namespace hvd
