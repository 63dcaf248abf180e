// Working memory that grows to the largest use and stays: a steady step allocates and clears
// nothing.
#pragma once

#include <cstddef>
#include <new>

namespace megamoe::cpu {

template <class T>
class GrowBuffer {
 public:
  // At least `count` elements, uninitialised, cache-line aligned; what was there may be lost.
  T* reserve(size_t count) {
    if (count > capacity_) {
      ::operator delete(data_, kAlignment);
      data_ = nullptr;
      capacity_ = 0;
      data_ = static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
      capacity_ = count;
    }
    return data_;
  }

  T* data() const { return data_; }

  GrowBuffer() = default;
  ~GrowBuffer() { ::operator delete(data_, kAlignment); }
  GrowBuffer(GrowBuffer&& other) noexcept : data_(other.data_), capacity_(other.capacity_) {
    other.data_ = nullptr;
    other.capacity_ = 0;
  }
  GrowBuffer& operator=(GrowBuffer&&) = delete;

 private:
  static constexpr std::align_val_t kAlignment{64};
  T* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace megamoe::cpu
