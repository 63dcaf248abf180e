// A view of n rows of `width` elements, `stride` elements apart.
#pragma once

#include <cstdint>

namespace attention {

template <class T>
struct Rows {
  T* data;
  int64_t stride;
  int n;
  int width;

  T* row(int i) const { return data + stride * i; }
};

}  // namespace attention
