#include "megamoe/layout.h"

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace megamoe {
namespace {

constexpr uint64_t kLargest = uint64_t{1} << 47;  // a process's address space

[[noreturn]] void too_large() {
  throw std::invalid_argument(
      "the layout's regions exceed the address space; lower max_tokens, lanes or attention_ranks");
}

uint64_t product(std::initializer_list<uint64_t> factors) {
  uint64_t result = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result) || result > kLargest) too_large();
  }
  return result;
}

uint64_t rounded_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Appends a region at the next line; `end` moves past it.
Region append(uint64_t& end, uint64_t bytes) {
  const Region region{rounded_up(end, kLineBytes), bytes};
  end = region.offset + bytes;
  if (end > kLargest) too_large();
  return region;
}

void check(const char* field, int32_t value, int32_t largest) {
  if (value >= 1 && value <= largest) return;
  throw std::invalid_argument(std::string(field) + " must be in [1, " + std::to_string(largest) +
                              "], got " + std::to_string(value));
}

void check(const Shape& shape) {
  check("attention_ranks", shape.attention_ranks, 1 << 16);
  check("ffn_ranks", shape.ffn_ranks, 1 << 16);
  check("lanes", shape.lanes, kMaxLanes);
  check("max_tokens", shape.max_tokens, 1 << 24);
  check("hidden", shape.hidden, 1 << 24);
  check("experts", shape.experts, 1 << 20);
  check("top_k", shape.top_k, shape.experts < kMaxTopK ? shape.experts : kMaxTopK);
  check("moe_layers", shape.moe_layers, 1 << 20);
}

}  // namespace

Layout make_layout(const Shape& shape) {
  check(shape);
  Layout layout{};
  layout.shape = shape;
  const uint64_t tokens = shape.max_tokens;
  const uint64_t top_k = shape.top_k;

  uint64_t header = 0;
  layout.handshake = append(header, 2 * kLineBytes);
  layout.owner = append(header, product({static_cast<uint64_t>(shape.attention_ranks),
                                         static_cast<uint64_t>(shape.experts), 4}));
  layout.abort = append(header, kLineBytes);
  layout.first_segment = rounded_up(header, kPageBytes);

  uint64_t lane = 0;
  layout.pub = append(lane, kLineBytes);
  layout.done = append(lane, product({static_cast<uint64_t>(shape.ffn_ranks), kLineBytes}));
  layout.count = append(lane, kLineBytes);
  layout.rows = append(lane, product({tokens, layout.row_bytes()}));
  layout.scales = append(lane, product({tokens, layout.row_scale_bytes()}));
  layout.ids = append(lane, product({tokens, top_k, 4}));
  layout.weights = append(lane, product({tokens, top_k, 4}));
  layout.out = append(lane, product({tokens, top_k, layout.out_row_bytes()}));

  layout.lane_bytes = rounded_up(lane, kPageBytes);
  layout.segment_bytes = product({layout.lane_bytes, static_cast<uint64_t>(shape.lanes)});
  const uint64_t segments =
      product({layout.segment_bytes, static_cast<uint64_t>(shape.attention_ranks)});
  layout.total_bytes = layout.first_segment + segments;
  if (layout.total_bytes > kLargest) too_large();
  return layout;
}

}  // namespace megamoe
