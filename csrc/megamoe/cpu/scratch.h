// Uninitialised, cache-line aligned working memory of a kernel.
//
// Everything here has internal linkage: a translation unit built for one instruction set must not
// lend its code to others through the linker.
#pragma once

#include <cstddef>
#include <new>

namespace megamoe::cpu {
namespace {

template <class T>
class Scratch {
 public:
  explicit Scratch(size_t count)
      : data_(static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{64}))) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* get() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_;
};

}  // namespace
}  // namespace megamoe::cpu
