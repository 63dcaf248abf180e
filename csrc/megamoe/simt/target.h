// The SIMT target: plain CUDA C++, no instruction that one architecture has and another lacks.
//
// A role is one block. Every thread runs the role; thread 0 leads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/layout.h"
#include "megamoe/numerics.h"
#include "megamoe/simt/experts.h"
#include "megamoe/simt/lists.h"
#include "megamoe/simt/platform.h"
#include "megamoe/simt/report.h"

namespace megamoe::simt {

struct Target : Words {
  using Lists = simt::Lists;
  using Failures = simt::Failures;
  using Experts = simt::Experts<Target>;

  // A GPU thread has nothing to sleep on.
  struct Backoff {
    MEGAMOE_ROLE bool spin(uint64_t) {
      pause();
      return true;
    }
  };
  MEGAMOE_ROLE static uint32_t announce_sleep(Word&) { return 0; }
  MEGAMOE_ROLE static void sleep(Word&, uint32_t, uint64_t) {}

  MEGAMOE_ROLE static void sync() { __syncthreads(); }
  MEGAMOE_ROLE static bool leader() { return threadIdx.x == 0; }

  // Calls fn on the leader; every thread gets its answer, and sees what it and all others wrote.
  template <class F>
  MEGAMOE_ROLE static bool on_leader(F&& fn) {
    __shared__ bool answer;
    sync();
    if (leader()) answer = fn();
    sync();
    return answer;
  }

  template <class F>
  MEGAMOE_ROLE static void for_each(int64_t count, F&& fn) {
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) fn(i);
  }

  MEGAMOE_ROLE static void encode_row(const Shape& shape, const float* x, std::byte* row,
                                      std::byte* scales) {
    const int hidden = shape.hidden;
    if (shape.wire == Wire::FP8) {
      for_each(scale_blocks(shape.scale_format, hidden), [&](int64_t block) {
        encode_block(shape, x, static_cast<int>(block), row, scales);
      });
    } else if (shape.wire == Wire::BF16) {
      auto* out = reinterpret_cast<uint16_t*>(row);
      for_each(hidden, [&](int64_t i) { out[i] = bf16_encode(x[i]); });
    } else {
      auto* out = reinterpret_cast<float*>(row);
      for_each(hidden, [&](int64_t i) { out[i] = x[i]; });
    }
  }

  // Column i of a row as it was published.
  MEGAMOE_ROLE static float decode(const Shape& shape, const WireRow& row, int i) {
    if (shape.wire == Wire::FP8) {
      const float value = e4m3_decode(reinterpret_cast<const uint8_t*>(row.row)[i]);
      const int block = i / scale_block(shape.scale_format);
      return value * load_scale(shape.scale_format, row.scales, block);
    }
    return returned(shape.wire, row.row, i);
  }

  // row[first + i] = values[i] * weight.
  MEGAMOE_ROLE static void write_back(Wire wire, const float* values, float weight, int columns,
                                      int first, std::byte* row) {
    for (int i = 0; i < columns; ++i) {
      if (wire == Wire::FP32) {
        reinterpret_cast<float*>(row)[first + i] = values[i] * weight;
      } else {
        reinterpret_cast<uint16_t*>(row)[first + i] = bf16_encode(values[i] * weight);
      }
    }
  }

  MEGAMOE_ROLE static void sum_rows(Wire wire, const std::byte* const* rows, int count, int hidden,
                                    float* out) {
    for_each(hidden, [&](int64_t i) {
      float sum = 0.0f;
      for (int r = 0; r < count; ++r) sum += returned(wire, rows[r], static_cast<int>(i));
      out[i] = sum;
    });
  }

 private:
  // An element of a row that is BF16, or FP32 on the FP32 wire.
  MEGAMOE_ROLE static float returned(Wire wire, const std::byte* row, int i) {
    if (wire == Wire::FP32) return reinterpret_cast<const float*>(row)[i];
    return bf16_decode(reinterpret_cast<const uint16_t*>(row)[i]);
  }

  MEGAMOE_ROLE static void encode_block(const Shape& shape, const float* x, int block,
                                        std::byte* row, std::byte* scales) {
    const int first = block * scale_block(shape.scale_format);
    const int past = first + scale_block(shape.scale_format);
    const int end = past < shape.hidden ? past : shape.hidden;
    // Magnitudes order as integers; a NaN's would win, so it counts as zero.
    uint32_t largest = 0;
    for (int i = first; i < end; ++i) {
      const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
      if (magnitude <= 0x7f800000u && magnitude > largest) largest = magnitude;
    }
    const float scale =
        store_scale(shape.scale_format, block_scale(float_of(largest)), scales, block);
    for (int i = first; i < end; ++i) {
      reinterpret_cast<uint8_t*>(row)[i] = e4m3_encode(x[i] / scale);
    }
  }
};

}  // namespace megamoe::simt
