// Checked views of numpy arrays: no copy, no allocation, an error that names the argument.
#pragma once

#include <pybind11/numpy.h>

#include <climits>
#include <cstdint>
#include <string>

#include "attention/rows.h"

namespace attention {

namespace py = pybind11;

constexpr int kAny = -1;

[[noreturn]] inline void bad_argument(const char* name, const std::string& what) {
  throw py::value_error(std::string(name) + " " + what);
}

template <class T>
struct ElementName;
template <>
struct ElementName<float> {
  static constexpr const char* kName = "float32";
};
template <>
struct ElementName<uint16_t> {
  static constexpr const char* kName = "uint16";
};
template <>
struct ElementName<int32_t> {
  static constexpr const char* kName = "int32";
};
template <>
struct ElementName<int64_t> {
  static constexpr const char* kName = "int64";
};
template <>
struct ElementName<uint64_t> {
  static constexpr const char* kName = "uint64";
};

inline const py::detail::PyArray_Proxy& array_of(py::handle object, const char* name) {
  if (!py::detail::npy_api::get().PyArray_Check_(object.ptr())) {
    bad_argument(name, "must be a numpy array, got " +
                           py::str(py::type::of(object).attr("__name__")).cast<std::string>());
  }
  return *py::detail::array_proxy(object.ptr());
}

template <class T>
bool holds(const py::detail::PyArray_Proxy& array) {
  const auto* descr = py::detail::array_descriptor_proxy(array.descr);
  const int type = descr->type_num;
  return type >= 0 && type <= py::detail::npy_api::NPY_VOID_ &&
         py::detail::normalized_dtype_num[type] == py::detail::npy_format_descriptor<T>::value &&
         descr->byteorder != '>';
}

// Element type, dimensions, alignment and, for a mutable T, writeability.
template <class T>
const py::detail::PyArray_Proxy& checked(py::handle object, const char* name, int dimensions) {
  using Element = std::remove_const_t<T>;
  const py::detail::PyArray_Proxy& array = array_of(object, name);
  if (!holds<Element>(array)) {
    bad_argument(name, std::string("must be ") + ElementName<Element>::kName + ", is " +
                           py::str(object.attr("dtype")).template cast<std::string>());
  }
  if (array.nd != dimensions) {
    bad_argument(name, "must have " + std::to_string(dimensions) + " dimension(s), has " +
                           std::to_string(array.nd));
  }
  if (!(array.flags & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) {
    bad_argument(name, "must be aligned to its elements");
  }
  if (!std::is_const_v<T> && !(array.flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_)) {
    bad_argument(name, "must be writeable");
  }
  for (int i = 0; i < dimensions; ++i) {
    if (array.dimensions[i] > INT_MAX) bad_argument(name, "has a dimension over 2^31 - 1");
  }
  return array;
}

inline void check_size(const char* name, int axis, int64_t actual, int expected) {
  if (expected == kAny || actual == expected) return;
  bad_argument(name, "must have size " + std::to_string(expected) + " along axis " +
                         std::to_string(axis) + ", has " + std::to_string(actual));
}

// A one-dimensional contiguous array of n elements (kAny: any number).
template <class T>
T* vector_of(py::handle object, const char* name, int n) {
  const auto& array = checked<T>(object, name, 1);
  check_size(name, 0, array.dimensions[0], n);
  if (array.dimensions[0] > 1 && array.strides[0] != static_cast<ssize_t>(sizeof(T))) {
    bad_argument(name, "must be contiguous");
  }
  return reinterpret_cast<T*>(array.data);
}

// A two-dimensional array whose rows are contiguous; rows may lie further apart than their width.
template <class T>
Rows<T> rows_of(py::handle object, const char* name, int n, int width) {
  const auto& array = checked<T>(object, name, 2);
  check_size(name, 0, array.dimensions[0], n);
  check_size(name, 1, array.dimensions[1], width);
  const int rows = static_cast<int>(array.dimensions[0]);
  const int columns = static_cast<int>(array.dimensions[1]);
  constexpr ssize_t kElement = sizeof(T);
  if (rows > 0 && columns > 1 && array.strides[1] != kElement) {
    bad_argument(name, "must have contiguous rows (a last-axis stride of one element)");
  }
  if (rows > 1 && array.strides[0] % kElement != 0) {
    bad_argument(name, "must have a row stride of whole elements");
  }
  const int64_t stride = rows > 1 ? array.strides[0] / kElement : columns;
  return {reinterpret_cast<T*>(array.data), stride, rows, columns};
}

inline Rows<const float> as_const(const Rows<float>& rows) {
  return {rows.data, rows.stride, rows.n, rows.width};
}

}  // namespace attention
