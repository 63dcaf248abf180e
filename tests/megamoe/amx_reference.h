// What the AMX level must compute, one output at a time and without vectors: the order that
// cpu/gemm.h states, and the exact value in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "megamoe/cpu/gemm.h"
#include "megamoe/numerics.h"

namespace amx_reference {

// A weight as it was before packing: bf16 values, and with FP8 a scale per 16 rows and 128 columns.
struct Weight {
  int rows;
  int cols;
  std::vector<float> values;  // [rows][cols]
  std::vector<float> scales;  // [ceil(rows / 16)][ceil(cols / 128)]; empty for BF16

  float value(int row, int k) const {
    return values[static_cast<size_t>(row) * static_cast<size_t>(cols) + static_cast<size_t>(k)];
  }
  float scale(int row, int k) const {
    const size_t blocks = (static_cast<size_t>(cols) + 127) / 128;
    return scales[static_cast<size_t>(row / 16) * blocks + static_cast<size_t>(k / 128)];
  }
};

inline float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// An activation as the kernel sees it.
inline float rounded(float x) {
  return megamoe::cpu::bf16_to_f32(megamoe::cpu::f32_to_bf16(flushed(x)));
}

// tdpbf16ps's sum of k in [first, end), in steps of 32, the last one padded with zeros: they make a
// positive zero of a negative one.
inline float chain(const float* x, const Weight& w, int row, int first, int end) {
  float sum = 0.0f;
  for (int step = first; step < end; step += 32) {
    float halves[2] = {0.0f, 0.0f};
    for (int k = step; k < step + 32; ++k) {
      float& half = halves[k % 2];
      const float activation = k < end ? flushed(rounded(x[k])) : 0.0f;
      const float weight = k < end ? flushed(w.value(row, k)) : 0.0f;
      half = flushed(std::fma(activation, weight, half));
    }
    sum = flushed(sum + flushed(halves[0] + halves[1]));
  }
  return sum;
}

// The bits that y[row] must have when it was `before`.
inline float expected(const float* x, const Weight& w, int row, bool accumulate, float before) {
  if (w.scales.empty()) {
    const float sum = chain(x, w, row, 0, w.cols);
    return accumulate ? before + sum : sum;
  }
  float y = before;
  for (int k = 0; k < w.cols; k += 128) {
    const float sum = chain(x, w, row, k, std::min(k + 128, w.cols));
    const float scale = w.scale(row, k);
    y = k == 0 && !accumulate ? scale * sum : std::fma(scale, sum, y);
  }
  return y;
}

struct Exact {
  double value;
  double size;  // of the summands
};

inline Exact exact(const float* x, const Weight& w, int row, bool accumulate, float before) {
  Exact sum{accumulate ? before : 0.0, accumulate ? std::fabs(before) : 0.0};
  for (int k = 0; k < w.cols; ++k) {
    const double scale = w.scales.empty() ? 1.0 : w.scale(row, k);
    const double term = double{rounded(x[k])} * w.value(row, k) * scale;
    sum.value += term;
    sum.size += std::fabs(term);
  }
  return sum;
}

// Roundings on the way of a product into its output, each of at most half a unit.
inline double bound(const Exact& sum, int cols) {
  const double roundings = 16 + 2 + cols / 32.0 + 2 * (cols / 128.0 + 1);
  return roundings * 0x1p-24 * sum.size + 1e-35 * cols;
}

}  // namespace amx_reference
