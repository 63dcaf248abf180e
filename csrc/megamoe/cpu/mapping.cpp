#include "megamoe/cpu/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "megamoe/errors.h"

namespace megamoe::cpu {

Mapping::Mapping(int fd, size_t bytes) : data_(nullptr), bytes_(bytes) {
  struct stat status;
  if (fstat(fd, &status) != 0) {
    throw std::system_error(errno, std::generic_category(), "symmetric memory: fstat");
  }
  // A short file would be mapped without complaint and kill the process at the first touch.
  if (static_cast<size_t>(status.st_size) < bytes) {
    throw HandshakeError("handshake: field total_bytes differs: this side needs " +
                         std::to_string(bytes) + ", the shared file has " +
                         std::to_string(status.st_size));
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "symmetric memory: mmap");
  }
  data_ = static_cast<std::byte*>(mapped);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

}  // namespace megamoe::cpu
