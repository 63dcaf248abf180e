// Paged keys and values of every layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/rows.h"
#include "megamoe/cpu/gemm.h"

namespace attention {

// [keys, values][layers][pages][kv_heads][page_size][padded_dim]: a position of a head is padded
// with zeros to a multiple of 16 elements. Memory becomes resident when first written.
class KvCache {
 public:
  struct Shape {
    int layers;
    int pages;
    int page_size;
    int kv_heads;
    int head_dim;
    megamoe::cpu::WeightType type;
  };

  // Throws std::invalid_argument for a size that is not positive, std::bad_alloc if the address
  // space is short.
  explicit KvCache(const Shape& shape);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Row i of k and v [n, kv_heads * head_dim] goes to locations[i] = page * page_size + offset.
  // All locations are checked before anything is written; std::invalid_argument names a bad row.
  void store(int layer, const Rows<const float>& k, const Rows<const float>& v,
             const int64_t* locations);

  const Shape& shape() const { return shape_; }
  size_t bytes() const { return 2 * side_bytes_; }
  int padded_dim() const { return padded_dim_; }
  // Elements from one page of a layer to the next.
  int64_t page_stride() const { return int64_t{shape_.kv_heads} * shape_.page_size * padded_dim_; }
  const std::byte* keys(int layer, int kv_head) const { return data_ + offset(layer, kv_head); }
  const std::byte* values(int layer, int kv_head) const {
    return data_ + side_bytes_ + offset(layer, kv_head);
  }
  // std::invalid_argument unless layer is in [0, layers).
  void check_layer(int layer) const;

 private:
  size_t offset(int layer, int kv_head) const;

  Shape shape_;
  int padded_dim_;
  size_t element_bytes_;
  size_t side_bytes_;
  std::byte* data_;
};

}  // namespace attention
