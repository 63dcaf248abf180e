#include <pybind11/pybind11.h>

#if __has_include("attention/python.cpp")
void bind_operations(pybind11::module_& module);
#else
inline void bind_operations(pybind11::module_&) {}
#endif

PYBIND11_MODULE(_megamoe, module) { bind_operations(module); }
