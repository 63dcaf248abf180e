#pragma once

#include <cstddef>

namespace megamoe::cpu {

// A shared, writable mapping of the first `bytes` bytes of a file descriptor. Does not own the
// descriptor: the mapping stays valid after the caller closes it.
class Mapping {
 public:
  Mapping(int fd, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

}  // namespace megamoe::cpu
