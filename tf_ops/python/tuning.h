// The autotuner, for Python: what it has tried, and what an earlier run knows.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd {

void DefineTuning(pybind11::module_* m);

}  // namespace hvd
