// Lists over memory that the host set aside, for roles that cannot allocate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/host_device.h"

namespace megamoe::simt {

// What the roles use of std::vector. Its maker knows how much it will hold at most.
template <class T>
class List {
 public:
  MEGAMOE_HOST_DEVICE List() : data_(nullptr), size_(0) {}
  MEGAMOE_HOST_DEVICE List(T* data, size_t size) : data_(data), size_(size) {}

  MEGAMOE_HOST_DEVICE size_t size() const { return size_; }
  MEGAMOE_HOST_DEVICE T* data() const { return data_; }
  MEGAMOE_HOST_DEVICE const T* begin() const { return data_; }
  MEGAMOE_HOST_DEVICE const T* end() const { return data_ + size_; }
  MEGAMOE_HOST_DEVICE T& operator[](size_t i) { return data_[i]; }
  MEGAMOE_HOST_DEVICE const T& operator[](size_t i) const { return data_[i]; }
  MEGAMOE_ROLE void clear() { size_ = 0; }
  MEGAMOE_ROLE void resize(size_t size) { size_ = size; }
  MEGAMOE_ROLE void push_back(const T& value) { data_[size_++] = value; }
  MEGAMOE_ROLE void assign(size_t size, const T& value) {
    size_ = size;
    for (size_t i = 0; i < size; ++i) data_[i] = value;
  }

 private:
  T* data_;
  size_t size_;
};

// Device memory handed out piece by piece. Over a null base it only counts: a dry run tells the
// bytes that the real one needs.
struct Arena {
  std::byte* base = nullptr;
  size_t used = 0;

  template <class T>
  MEGAMOE_HOST_DEVICE T* take(size_t count) {
    constexpr size_t kAlignment = 16;
    const size_t offset = used;
    used += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return base == nullptr ? nullptr : reinterpret_cast<T*>(base + offset);
  }
};

struct Lists {
  template <class T>
  using List = simt::List<T>;

  Arena* arena;  // of zeros

  template <class T>
  MEGAMOE_HOST_DEVICE List<T> empty(size_t capacity) {
    return {arena->take<T>(capacity), 0};
  }
  template <class T>
  MEGAMOE_HOST_DEVICE List<T> zeros(size_t count) {
    return {arena->take<T>(count), count};
  }
};

}  // namespace megamoe::simt
