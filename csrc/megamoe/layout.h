// The symmetric memory of a launch: every region's offset and bytes, and the only source of sizes.
//
//   header   handshake, owner table, abort word
//   segment  one per attention rank: lanes, each PUB, DONE[ffn_ranks], IN, OUT
//
// Offsets of a lane's regions count from the start of the lane. Words have a line of their own, so
// that a rank spinning on one disturbs nobody else.
#pragma once

#include <cstdint>

#include "megamoe/numerics.h"

namespace megamoe {

// What crosses the boundary. FP8: e4m3 rows with block scales out, BF16 rows back.
enum class Wire : int32_t { FP8 = 0, BF16 = 1, FP32 = 2 };

// What comes back: a row per top-k slot, or a row per token and FFN rank, the sum of its slots.
enum class ReturnMode : int32_t { Slot = 0, Reduced = 1 };

struct Shape {
  int32_t attention_ranks;
  int32_t ffn_ranks;
  int32_t lanes;
  int32_t max_tokens;  // per lane and step
  int32_t hidden;
  int32_t top_k;
  int32_t experts;
  int32_t moe_layers;
  Wire wire;
  ScaleFormat scale_format = ScaleFormat::Fp32Per128;  // FP8 only
  ReturnMode return_mode = ReturnMode::Slot;

  // Of a row of IN, without its scales.
  MEGAMOE_HOST_DEVICE uint64_t row_bytes() const {
    const int element = wire == Wire::FP8 ? 1 : wire == Wire::BF16 ? 2 : 4;
    return static_cast<uint64_t>(hidden) * element;
  }
};

constexpr uint64_t kLineBytes = 128;
constexpr uint64_t kPageBytes = 4096;
constexpr int32_t kMaxLanes = 4;
constexpr int32_t kMaxTopK = 64;

struct Region {
  uint64_t offset;
  uint64_t bytes;
};

struct Layout {
  Shape shape;

  // From the start of memory.
  Region handshake;
  Region owner;  // int32 [attention_ranks][experts]: FFN rank + 1, 0 while nobody has said
  Region abort;
  uint64_t first_segment;

  // From the start of a lane.
  Region pub;
  Region done;     // a line per FFN rank
  Region count;    // int32: tokens in IN
  Region rows;     // [max_tokens][row_bytes]
  Region scales;   // [max_tokens][row_scale_bytes], FP8 only
  Region ids;      // int32 [max_tokens][top_k]
  Region weights;  // float [max_tokens][top_k]
  // [max_tokens][top_k][out_row_bytes]. A reduced row lies where the first of its slots would.
  Region out;

  uint64_t lane_bytes;
  uint64_t segment_bytes;
  uint64_t total_bytes;

  MEGAMOE_HOST_DEVICE uint64_t lane(int attention_rank, int lane) const {
    return first_segment + segment_bytes * static_cast<uint64_t>(attention_rank) +
           lane_bytes * static_cast<uint64_t>(lane);
  }
  MEGAMOE_HOST_DEVICE uint64_t done_of(int ffn_rank) const {
    return done.offset + kLineBytes * static_cast<uint64_t>(ffn_rank);
  }
  MEGAMOE_HOST_DEVICE uint64_t row_bytes() const { return shape.row_bytes(); }
  MEGAMOE_HOST_DEVICE uint64_t out_row_bytes() const {
    return static_cast<uint64_t>(shape.hidden) * (shape.wire == Wire::FP32 ? 4 : 2);
  }
  MEGAMOE_HOST_DEVICE uint64_t row_scale_bytes() const {
    if (shape.wire != Wire::FP8) return 0;
    return static_cast<uint64_t>(scale_bytes(shape.scale_format, shape.hidden));
  }
};

// Throws std::invalid_argument that names the field out of range, or says that sizes overflow.
Layout make_layout(const Shape& shape);

}  // namespace megamoe
