// What the data plane's binding files share.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "attention/python_arrays.h"
#include "megamoe/cpu/domain.h"

namespace megamoe {

namespace py = pybind11;

void bind_memory(py::module_& module);   // Wire, Layout, Domain
void bind_experts(py::module_& module);  // Experts, the FP8 codec
void bind_sides(py::module_& module);    // AttentionSide, FfnSide

inline void check_range(const char* name, int64_t value, int64_t first, int64_t last) {
  if (value >= first && value <= last) return;
  attention::bad_argument(name, "must be in [" + std::to_string(first) + ", " +
                                    std::to_string(last) + "], is " + std::to_string(value));
}

// A C-contiguous [n, width] array.
template <class T>
const T* packed(py::handle array, const char* name, int n, int width) {
  const auto rows = attention::rows_of<const T>(array, name, n, width);
  if (rows.n > 1 && rows.stride != width) attention::bad_argument(name, "must be C-contiguous");
  return rows.data;
}

// Python's handle on a Domain. The sides share it, so that no close unmaps under them.
struct DomainHandle {
  std::shared_ptr<cpu::Domain> domain;
};

inline cpu::Domain& open_domain(const std::shared_ptr<cpu::Domain>& domain) {
  if (domain->closed()) throw Error("the domain is closed");
  return *domain;
}

}  // namespace megamoe
