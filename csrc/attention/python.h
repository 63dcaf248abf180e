#pragma once

#include <pybind11/pybind11.h>

// Everything of the module that is not the data plane; see afd/_megamoe.pyi.
void bind_operations(pybind11::module_& module);
