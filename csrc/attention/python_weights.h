#pragma once

#include <pybind11/pybind11.h>

namespace attention {

// Pool, Matrix, linear, KvCache and the instruction-set level.
void bind_weights(pybind11::module_& module);

}  // namespace attention
