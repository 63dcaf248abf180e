#include "attention/kv_cache.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace attention {
namespace {

using megamoe::cpu::WeightType;

constexpr int kAlignElements = 16;  // the widest vector of float32

void check_positive(const char* name, int value) {
  if (value <= 0) {
    throw std::invalid_argument(std::string(name) + " must be positive, got " +
                                std::to_string(value));
  }
}

void write_position(std::byte* to, const float* from, int count, WeightType type) {
  if (type == WeightType::FP32) {
    std::memcpy(to, from, sizeof(float) * count);
    return;
  }
  uint16_t* halves = reinterpret_cast<uint16_t*>(to);
  for (int i = 0; i < count; ++i) halves[i] = megamoe::cpu::f32_to_bf16(from[i]);
}

}  // namespace

KvCache::KvCache(const Shape& shape) : shape_(shape) {
  check_positive("layers", shape.layers);
  check_positive("pages", shape.pages);
  check_positive("page_size", shape.page_size);
  check_positive("kv_heads", shape.kv_heads);
  check_positive("head_dim", shape.head_dim);
  if (shape.type == WeightType::FP8) {
    throw std::invalid_argument("dtype must be BF16 or FP32 for a KV cache");
  }
  padded_dim_ = (shape.head_dim + kAlignElements - 1) / kAlignElements * kAlignElements;
  element_bytes_ = shape.type == WeightType::FP32 ? sizeof(float) : sizeof(uint16_t);
  size_t bytes = 2 * element_bytes_ * padded_dim_;
  for (const int factor : {shape.page_size, shape.kv_heads, shape.pages, shape.layers}) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(factor), &bytes)) throw std::bad_alloc();
  }
  side_bytes_ = bytes / 2;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(data);
}

KvCache::~KvCache() { munmap(data_, bytes()); }

size_t KvCache::offset(int layer, int kv_head) const {
  const int64_t page_positions = int64_t{shape_.page_size} * padded_dim_;
  const int64_t elements = page_stride() * shape_.pages * layer + page_positions * kv_head;
  return static_cast<size_t>(elements) * element_bytes_;
}

void KvCache::check_layer(int layer) const {
  if (layer < 0 || layer >= shape_.layers) {
    throw std::invalid_argument("layer " + std::to_string(layer) + " is outside [0, " +
                                std::to_string(shape_.layers) + ")");
  }
}

void KvCache::store(int layer, const Rows<const float>& k, const Rows<const float>& v,
                    const int64_t* locations) {
  check_layer(layer);
  const int64_t capacity = int64_t{shape_.pages} * shape_.page_size;
  for (int i = 0; i < k.n; ++i) {
    if (locations[i] < 0 || locations[i] >= capacity) {
      throw std::invalid_argument("locations[" + std::to_string(i) +
                                  "] = " + std::to_string(locations[i]) + " is outside [0, " +
                                  std::to_string(capacity) + ")");
    }
  }
  const size_t head_bytes = element_bytes_ * padded_dim_ * shape_.page_size;
  for (int i = 0; i < k.n; ++i) {
    const int64_t page = locations[i] / shape_.page_size;
    const int64_t position = locations[i] % shape_.page_size;
    const size_t at = static_cast<size_t>(page_stride() * page + padded_dim_ * position);
    std::byte* key = data_ + offset(layer, 0) + at * element_bytes_;
    for (int head = 0; head < shape_.kv_heads; ++head, key += head_bytes) {
      const int64_t from = int64_t{shape_.head_dim} * head;
      write_position(key, k.row(i) + from, shape_.head_dim, shape_.type);
      write_position(key + side_bytes_, v.row(i) + from, shape_.head_dim, shape_.type);
    }
  }
}

}  // namespace attention
