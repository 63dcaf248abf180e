// The row operations as loops that the compiler makes vectors of.
// Included once per translation unit, inside the target region, after a simd_*.h and
// attention/vector_math.h.
#pragma once

namespace megamoe::cpu {
namespace {

// The largest magnitude. Magnitudes order as integers; a NaN's would win, so it counts as zero.
inline float largest_magnitude(const float* x, int n) {
  constexpr int kColumns = 32;
  int32_t largest[kColumns] = {};
  const auto magnitude = [](float value) {
    const int32_t bits = static_cast<int32_t>(bits_of(value) & 0x7fffffffu);
    return bits > 0x7f800000 ? 0 : bits;
  };
  int i = 0;
  for (; i + kColumns <= n; i += kColumns) {
    for (int c = 0; c < kColumns; ++c) {
      const int32_t candidate = magnitude(x[i + c]);
      largest[c] = candidate > largest[c] ? candidate : largest[c];
    }
  }
  for (; i < n; ++i) {
    const int32_t candidate = magnitude(x[i]);
    largest[0] = candidate > largest[0] ? candidate : largest[0];
  }
  int32_t all = 0;
  for (const int32_t column : largest) all = column > all ? column : all;
  return float_of(static_cast<uint32_t>(all));
}

void encode_fp8(ScaleFormat format, const float* x, int hidden, uint8_t* codes, std::byte* scales) {
  const int size = scale_block(format);
  for (int first = 0, b = 0; first < hidden; first += size, ++b) {
    const int n = hidden - first < size ? hidden - first : size;
    const float* block = x + first;
    const float scale = store_scale(format, block_scale(largest_magnitude(block, n)), scales, b);
    for (int i = 0; i < n; ++i) codes[first + i] = e4m3_encode(block[i] / scale);
  }
}

void decode_fp8(ScaleFormat format, const uint8_t* codes, const std::byte* scales, int hidden,
                float* out) {
  const int size = scale_block(format);
  for (int first = 0, b = 0; first < hidden; first += size, ++b) {
    const int n = hidden - first < size ? hidden - first : size;
    const float scale = load_scale(format, scales, b);
    for (int i = first; i < first + n; ++i) out[i] = e4m3_decode(codes[i]) * scale;
  }
}

void encode_bf16(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; ++i) out[i] = bf16_encode(x[i]);
}

void decode_bf16(const uint16_t* x, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = bf16_decode(x[i]);
}

void scale_bf16(const float* x, float weight, int n, uint16_t* out) {
  for (int i = 0; i < n; ++i) out[i] = bf16_encode(x[i] * weight);
}

void scale_f32(const float* x, float weight, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = x[i] * weight;
}

void add_scaled(const float* x, float weight, int n, float* sums) {
  for (int i = 0; i < n; ++i) sums[i] += x[i] * weight;
}

constexpr int kStrip = 64;
constexpr int kPrefetchBytes = 64;
constexpr int kAheadBytes = 1024;

// A strip of columns stays in registers while the rows pass.
template <class T, class Decode>
inline void sum_rows(const std::byte* const* rows, int count, int n, float* out, Decode&& decode) {
  int first = 0;
  for (; first + kStrip <= n; first += kStrip) {
    float sums[kStrip] = {};
    for (int r = 0; r < count; ++r) {
      const T* row = reinterpret_cast<const T*>(rows[r]) + first;
      // Rows lie far apart: without this each strip waits for memory once a row.
      for (int line = 0; line < kStrip; line += kPrefetchBytes / static_cast<int>(sizeof(T))) {
        __builtin_prefetch(row + kAheadBytes / static_cast<int>(sizeof(T)) + line);
      }
      for (int i = 0; i < kStrip; ++i) sums[i] += decode(row[i]);
    }
    for (int i = 0; i < kStrip; ++i) out[first + i] = sums[i];
  }
  for (; first < n; ++first) {
    float sum = 0.0f;
    for (int r = 0; r < count; ++r) sum += decode(reinterpret_cast<const T*>(rows[r])[first]);
    out[first] = sum;
  }
}

void sum_bf16(const std::byte* const* rows, int count, int n, float* out) {
  sum_rows<uint16_t>(rows, count, n, out, [](uint16_t v) { return bf16_decode(v); });
}

void sum_f32(const std::byte* const* rows, int count, int n, float* out) {
  sum_rows<float>(rows, count, n, out, [](float v) { return v; });
}

void swiglu(const float* gate_up, int n, float* out) {
  for (int first = 0; first < n; first += kGateBlock, gate_up += 2 * kGateBlock) {
    const int width = n - first < kGateBlock ? n - first : kGateBlock;
    for (int i = 0; i < width; i += simd::kLanes) {
      // Past `width` the block holds zeros: a whole vector may be read, not written.
      const simd::f32 gate = simd::load(gate_up + i);
      const simd::f32 up = simd::load(gate_up + kGateBlock + i);
      const simd::f32 power = attention::exp(simd::sub(simd::set1(0.0f), gate));
      const simd::f32 silu = simd::div(gate, simd::add(simd::set1(1.0f), power));
      const int count = width - i < simd::kLanes ? width - i : simd::kLanes;
      attention::store_lanes(out + first + i, simd::mul(silu, up), count);
    }
  }
}

constexpr RowCodec kRowCodec{encode_fp8, decode_fp8, encode_bf16, decode_bf16, scale_bf16,
                             scale_f32,  add_scaled, sum_bf16,    sum_f32,     swiglu};

}  // namespace
}  // namespace megamoe::cpu
