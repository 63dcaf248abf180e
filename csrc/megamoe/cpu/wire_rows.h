// The wire's rows on the CPU: how they are written, read, returned and summed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/row_codec.h"
#include "megamoe/ffn_side.h"
#include "megamoe/layout.h"

namespace megamoe::cpu {

struct WireRows {
  static void encode_row(const Shape& shape, const float* x, std::byte* row, std::byte* scales) {
    switch (shape.wire) {
      case Wire::FP8:
        row_codec().encode_fp8(shape.scale_format, x, shape.hidden, reinterpret_cast<uint8_t*>(row),
                               scales);
        break;
      case Wire::BF16:
        row_codec().encode_bf16(x, shape.hidden, reinterpret_cast<uint16_t*>(row));
        break;
      case Wire::FP32:
        __builtin_memcpy(row, x, static_cast<size_t>(shape.hidden) * sizeof(float));
        break;
    }
  }

  // The row's values: in `room` [hidden], or where it lies if they lie there.
  static const float* decode_row(const Shape& shape, const WireRow& row, float* room) {
    switch (shape.wire) {
      case Wire::FP8:
        row_codec().decode_fp8(shape.scale_format, reinterpret_cast<const uint8_t*>(row.row),
                               row.scales, shape.hidden, room);
        break;
      case Wire::BF16:
        row_codec().decode_bf16(reinterpret_cast<const uint16_t*>(row.row), shape.hidden, room);
        break;
      case Wire::FP32:
        return reinterpret_cast<const float*>(row.row);
    }
    return room;
  }

  // row[first + i] = values[i] * weight.
  static void write_back(Wire wire, const float* values, float weight, int columns, int first,
                         std::byte* row) {
    if (wire == Wire::FP32) {
      row_codec().scale_f32(values, weight, columns, reinterpret_cast<float*>(row) + first);
    } else {
      row_codec().scale_bf16(values, weight, columns, reinterpret_cast<uint16_t*>(row) + first);
    }
  }

  static void sum_rows(Wire wire, const std::byte* const* rows, int count, int hidden, float* out) {
    if (wire == Wire::FP32) {
      row_codec().sum_f32(rows, count, hidden, out);
    } else {
      row_codec().sum_bf16(rows, count, hidden, out);
    }
  }
};

}  // namespace megamoe::cpu
