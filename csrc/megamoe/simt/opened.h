// Device memory that holds a role between its kernels, and the role's launches.
#pragma once

#include <vector>

#include "megamoe/handshake.h"
#include "megamoe/simt/kernels.h"

namespace megamoe::simt {

// Zeroed device memory, freed with its owner.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : data_(static_cast<std::byte*>(device_zeros(bytes))) {}
  ~DeviceMemory() { device_free(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

// A role object of type Side in device memory, with a stream and a report.
template <class Side>
class Opened {
 public:
  // make(arena, failures) makes the side; called twice, first to count bytes.
  template <class Make>
  Opened(unsigned threads, Make&& make) : threads_(threads), memory_(bytes_of(make)) {
    Arena arena{memory_.data()};
    side_ = arena.take<Side>(1);
    report_ = arena.take<Report>(1);
    const Side side = make(arena, Failures{report_});
    copy(side_, &side, sizeof(Side));
    stream_ = open_stream();
  }
  ~Opened() { close_stream(stream_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  // Throws what the role reported.
  template <class Kernel, class Call>
  void run(Kernel kernel, const Call& call) {
    run_kernel(stream_, threads_, kernel, side_, call);
    Report report;
    copy(&report, report_, sizeof(Report));
    if (report.kind == Report::Kind::None) return;
    const Report none{};
    copy(report_, &none, sizeof(Report));
    report.raise();
  }

 private:
  template <class Make>
  static size_t bytes_of(Make&& make) {
    Arena count;
    count.take<Side>(1);
    count.take<Report>(1);
    make(count, Failures{nullptr});
    return count.used;
  }

  unsigned threads_;
  DeviceMemory memory_;
  Side* side_;
  Report* report_;
  Stream stream_;
};

// Compares both sides' shapes; throws HandshakeError, DeviceError.
inline Memory agreed_memory(void* device_memory, const Shape& shape, uint64_t generation) {
  require_device();
  const Layout layout = make_layout(shape);
  const Memory memory{static_cast<std::byte*>(device_memory), layout, generation};
  int64_t region[kHandshakeFields];
  copy(region, memory.base + layout.handshake.offset, sizeof(region));
  compare_handshake(layout, generation, region);
  return memory;
}

// `device_owners` [attention_ranks][experts]; throws HandshakeError where another side differs.
inline void agree_on_owners(const Memory& memory, const int32_t* device_owners,
                            const std::vector<int32_t>& owners) {
  const DeviceMemory room(sizeof(OwnersAnswer));
  auto* device_answer = reinterpret_cast<OwnersAnswer*>(room.data());
  const Stream stream = open_stream();
  run_kernel(stream, 1, owners_role, memory, device_owners, device_answer);
  close_stream(stream);
  OwnersAnswer answer;
  copy(&answer, device_answer, sizeof(answer));
  if (answer.different < 0) return;
  const auto index = static_cast<size_t>(answer.different);
  throw_owner_differs(index, memory.layout.shape.experts, owners[index], answer.seen);
}

}  // namespace megamoe::simt
