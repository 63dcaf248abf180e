// Rows as ExpertBank::compute reads them: FP32, used where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megamoe::cpu {

// Asks for the cache lines that follow each other from here.
inline void prefetch_lines(const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(static_cast<const std::byte*>(from) + i);
  }
}

// `where(i)` is row i [hidden].
template <class Where>
class RowsInPlace {
 public:
  RowsInPlace(int hidden, Where where)
      : bytes_(static_cast<size_t>(hidden) * sizeof(float)), where_(where) {}
  void prefetch(int32_t i) const { prefetch_lines(where_(i), bytes_); }
  const float* read(int32_t i, float*) const { return where_(i); }

 private:
  size_t bytes_;
  Where where_;
};

}  // namespace megamoe::cpu
