// What the roles need of CUDA, with two bodies: nvcc's, and the CPU runner's under a host compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "megamoe/host_device.h"
#include "megamoe/sequence.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <cuda/atomic>
#include <cuda/std/chrono>

#define MEGAMOE_KERNEL __global__
#else
#include <cstdlib>
#include <cstring>

#include "megamoe/cpu/wait.h"
#include "megamoe/simt/runner/block.h"
#define MEGAMOE_KERNEL inline
#define __shared__ static thread_local
#define threadIdx ::megamoe::simt::runner::thread_index()
#define blockDim ::megamoe::simt::runner::block_size()
#define __syncthreads ::megamoe::simt::runner::sync_threads
#endif

namespace megamoe::simt {

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#if defined(__CUDACC__)

// Words lie in memory that other devices and the host may map: system scope. Nobody sleeps on them.
struct Words {
  using Atomic = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;

  __device__ static uint64_t load_acquire(const uint64_t& value) {
    return Atomic(const_cast<uint64_t&>(value)).load(cuda::memory_order_acquire);
  }
  __device__ static void store_release(uint64_t& value, uint64_t next) {
    Atomic(value).store(next, cuda::memory_order_release);
  }
  __device__ static void store_if_zero(uint64_t& value, uint64_t next) {
    uint64_t zero = 0;
    Atomic(value).compare_exchange_strong(zero, next, cuda::memory_order_acq_rel);
  }
  // 0 becomes `value`; returns what was there before.
  __device__ static int32_t enter(int32_t& cell, int32_t value) {
    const cuda::atomic_ref<int32_t, cuda::thread_scope_system> atomic(cell);
    int32_t seen = atomic.load(cuda::memory_order_acquire);
    if (seen == 0) atomic.compare_exchange_strong(seen, value, cuda::memory_order_acq_rel);
    return seen;
  }
  __device__ static void wake_if_sleeping(Word&) {}
  __device__ static uint64_t now_ns() {
    const auto now = cuda::std::chrono::system_clock::now().time_since_epoch();
    return static_cast<uint64_t>(cuda::std::chrono::nanoseconds(now).count());
  }
  __device__ static void pause() { __nanosleep(100); }
};

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(status));
}

// Throws DeviceError that begins with "no device" where there is none, or no driver.
inline void require_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    throw DeviceError(std::string("no device: ") + cudaGetErrorString(status));
  }
  if (count == 0) throw DeviceError("no device: the driver lists none");
}

using Stream = cudaStream_t;

inline Stream open_stream() {
  Stream stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}
inline void close_stream(Stream stream) { cudaStreamDestroy(stream); }

inline void* device_zeros(size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc");
  check(cudaMemset(data, 0, bytes), "cudaMemset");
  return data;
}
inline void device_free(void* data) { cudaFree(data); }
inline void copy(void* to, const void* from, size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}

// Runs kernel(arguments...) as one block and waits for it.
template <class... Parameters, class... Arguments>
void run_kernel(Stream stream, unsigned threads, void (*kernel)(Parameters...),
                Arguments... arguments) {
  kernel<<<1, threads, 0, stream>>>(arguments...);
  check(cudaGetLastError(), "kernel launch");
  check(cudaStreamSynchronize(stream), "kernel");
}

#else

// Host ranks may sleep on the same words, so a publication wakes them.
struct Words {
  static uint64_t load_acquire(const uint64_t& value) { return cpu::Waiting::load_acquire(value); }
  static void store_release(uint64_t& value, uint64_t next) {
    cpu::Waiting::store_release(value, next);
  }
  static void store_if_zero(uint64_t& value, uint64_t next) {
    cpu::Waiting::store_if_zero(value, next);
  }
  static int32_t enter(int32_t& cell, int32_t value) {
    const std::atomic_ref atomic(cell);
    // Others read the table by then: to the thread sanitizer a failed exchange is a write, too.
    int32_t seen = atomic.load();
    if (seen == 0) atomic.compare_exchange_strong(seen, value);
    return seen;
  }
  static void wake_if_sleeping(Word& word) { cpu::Waiting::wake_if_sleeping(word); }
  static uint64_t now_ns() { return cpu::Waiting::now_ns(); }
  static void pause() { sched_yield(); }
};

inline void require_device() {}

struct Stream {};
inline Stream open_stream() { return {}; }
inline void close_stream(Stream) {}

inline void* device_zeros(size_t bytes) {
  void* data = std::calloc(bytes, 1);
  if (data == nullptr) throw DeviceError("out of memory for " + std::to_string(bytes) + " bytes");
  return data;
}
inline void device_free(void* data) { std::free(data); }
inline void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

template <class... Parameters, class... Arguments>
void run_kernel(Stream, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  runner::run_block(threads, [=] { kernel(arguments...); });
}

#endif

}  // namespace megamoe::simt
