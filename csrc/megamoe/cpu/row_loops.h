// The loops behind RowOps, for the compiler to vectorise at the including file's level.
// Included once per translation unit, inside the target region.
#pragma once

namespace megamoe::cpu {
namespace {

void quantise(const float* __restrict x, uint8_t* __restrict codes, float* __restrict scales,
              int n) {
  for (int first = 0; first < n; first += kScaleBlock) {
    const int width = n - first < kScaleBlock ? n - first : kScaleBlock;
    const float* block = x + first;
    // Magnitudes order like their bits; integers let the reduction be vectorised. NaN is left out
    // of the scale, or it would spoil its whole block.
    uint32_t most = 0;
    for (int i = 0; i < width; ++i) {
      const uint32_t magnitude = bits_of(block[i]) & 0x7fffffffu;
      const uint32_t candidate = magnitude > 0x7f800000u ? 0u : magnitude;
      most = candidate > most ? candidate : most;
    }
    const float scale = e4m3_scale(float_of(most));
    for (int i = 0; i < width; ++i) codes[first + i] = megamoe::to_e4m3(block[i] / scale);
    scales[first / kScaleBlock] = scale;
  }
}

void dequantise(const uint8_t* __restrict codes, const float* __restrict scales,
                float* __restrict x, int n) {
  for (int first = 0; first < n; first += kScaleBlock) {
    const int width = n - first < kScaleBlock ? n - first : kScaleBlock;
    const float scale = scales[first / kScaleBlock];
    for (int i = 0; i < width; ++i) x[first + i] = megamoe::from_e4m3(codes[first + i]) * scale;
  }
}

void to_bf16_row(const float* __restrict x, uint16_t* __restrict out, int n) {
  for (int i = 0; i < n; ++i) out[i] = megamoe::to_bf16(x[i]);
}

void from_bf16_row(const uint16_t* __restrict x, float* __restrict out, int n) {
  for (int i = 0; i < n; ++i) out[i] = megamoe::from_bf16(x[i]);
}

void scale_to_bf16(const float* __restrict x, float factor, uint16_t* __restrict out, int n) {
  for (int i = 0; i < n; ++i) out[i] = megamoe::to_bf16(x[i] * factor);
}

void scale_to_f32(const float* __restrict x, float factor, float* __restrict out, int n) {
  for (int i = 0; i < n; ++i) out[i] = x[i] * factor;
}

void add_bf16(const uint16_t* __restrict x, float* __restrict sum, int n) {
  for (int i = 0; i < n; ++i) sum[i] += megamoe::from_bf16(x[i]);
}

void add_f32(const float* __restrict x, float* __restrict sum, int n) {
  for (int i = 0; i < n; ++i) sum[i] += x[i];
}

void swiglu_row(float* __restrict gate, const float* __restrict up, int n) {
  for (int i = 0; i < n; ++i) gate[i] = megamoe::swiglu(gate[i], up[i]);
}

constexpr RowOps kRowOps{quantise,      dequantise,   to_bf16_row, from_bf16_row, scale_to_bf16,
                         scale_to_f32, add_bf16,     add_f32,     swiglu_row};

}  // namespace
}  // namespace megamoe::cpu
