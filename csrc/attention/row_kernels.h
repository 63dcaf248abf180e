// Norms, rotation, activation and softmax pieces: one row a call.
// Included once per translation unit, inside the target region, after vector_math.h.
#pragma once

namespace attention {
namespace {

inline void scale_row(const float* x, const float* weight, float squares, float eps, float* out,
                      int width) {
  const f32 inverse = simd::set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps));
  for_vectors(width, [&](int i, int count) {
    const f32 normed = simd::mul(load_lanes(x + i, count), inverse);
    store_lanes(out + i, simd::mul(normed, load_lanes(weight + i, count)), count);
  });
}

void rms_norm(const float* x, const float* weight, float eps, float* out, int width) {
  f32 sums[2] = {simd::set1(0.0f), simd::set1(0.0f)};
  int next = 0;
  for_vectors(width, [&](int i, int count) {
    const f32 v = load_lanes(x + i, count);
    sums[next] = simd::fma(v, v, sums[next]);
    next ^= 1;
  });
  scale_row(x, weight, simd::sum(simd::add(sums[0], sums[1])), eps, out, width);
}

void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, float* out,
                  int width) {
  f32 sums[2] = {simd::set1(0.0f), simd::set1(0.0f)};
  int next = 0;
  for_vectors(width, [&](int i, int count) {
    const f32 v = simd::add(load_lanes(residual + i, count), load_lanes(delta + i, count));
    store_lanes(residual + i, v, count);
    sums[next] = simd::fma(v, v, sums[next]);
    next ^= 1;
  });
  scale_row(residual, weight, simd::sum(simd::add(sums[0], sums[1])), eps, out, width);
}

void rope(float* x, const float* cos, const float* sin, int heads, int head_dim, int half) {
  for (int head = 0; head < heads; ++head, x += head_dim) {
    float* upper = x + half;
    for_vectors(half, [&](int i, int count) {
      const f32 a = load_lanes(x + i, count);
      const f32 b = load_lanes(upper + i, count);
      const f32 c = load_lanes(cos + i, count);
      const f32 s = load_lanes(sin + i, count);
      store_lanes(x + i, simd::sub(simd::mul(a, c), simd::mul(b, s)), count);
      store_lanes(upper + i, simd::add(simd::mul(b, c), simd::mul(a, s)), count);
    });
  }
}

void silu_mul(const float* gate, const float* up, float* out, int width) {
  for_vectors(width, [&](int i, int count) {
    const f32 g = load_lanes(gate + i, count);
    const f32 denominator = simd::add(simd::set1(1.0f), exp(simd::sub(simd::set1(0.0f), g)));
    store_lanes(out + i, simd::mul(simd::div(g, denominator), load_lanes(up + i, count)), count);
  });
}

void sigmoid_row(const float* x, float* out, int width) {
  for_vectors(width, [&](int i, int count) {
    store_lanes(out + i, sigmoid(load_lanes(x + i, count)), count);
  });
}

float max_row(const float* x, int width) {
  f32 largest = load_part(x, width < simd::kLanes ? width : simd::kLanes, x[0]);
  // x - x is zero for numbers and NaN for NaN and infinities; the sum keeps any NaN.
  f32 nans = simd::set1(0.0f);
  for_vectors(width, [&](int i, int count) {
    const f32 v = load_lanes(x + i, count, x[0]);
    largest = simd::max(largest, v);
    nans = simd::add(nans, simd::mul(v, simd::set1(0.0f)));
  });
  const float found = simd::max_of(largest);
  if (simd::sum(nans) == 0.0f) return found;
  // Infinities come here too: look again, exactly.
  for (int i = 0; i < width; ++i) {
    if (x[i] != x[i]) return x[i];
  }
  float exact = x[0];
  for (int i = 1; i < width; ++i) exact = x[i] > exact ? x[i] : exact;
  return exact;
}

// Whether any of `count` elements passes. Without an early exit the compiler makes vectors of it.
template <class Test>
inline bool any_of(const float* x, int count, Test&& test) {
  int found = 0;
  for (int i = 0; i < count; ++i) found |= test(x[i]);
  return found != 0;
}

constexpr int kStretch = 128;

int find(const float* x, float value, int width) {
  const auto equal = [value](float v) { return v == value; };
  int i = 0;
  while (i + kStretch <= width && !any_of(x + i, kStretch, equal)) i += kStretch;
  while (i < width && x[i] != value) ++i;
  return i;
}

int at_least(const float* x, float threshold, int width, int32_t* out) {
  const auto passes = [threshold](float v) { return v >= threshold; };
  int count = 0;
  for (int first = 0; first < width; first += kStretch) {
    const int end = first + kStretch < width ? first + kStretch : width;
    if (end - first == kStretch && !any_of(x + first, kStretch, passes)) continue;
    for (int i = first; i < end; ++i) {
      out[count] = i;
      count += passes(x[i]);
    }
  }
  return count;
}

float exp_sum(const float* x, float shift, float scale, float* out, int width) {
  const f32 offset = simd::set1(shift);
  const f32 factor = simd::set1(scale);
  f32 total = simd::set1(0.0f);
  for_vectors(width, [&](int i, int count) {
    const f32 v = simd::mul(simd::sub(load_lanes(x + i, count), offset), factor);
    const f32 power = exp(v);
    store_lanes(out + i, power, count);
    // A partial vector's missing lanes must not count.
    total = simd::add(total, count == simd::kLanes ? power : load_part(out + i, count, 0.0f));
  });
  return simd::sum(total);
}

void mix(float a, const float* x, float b, const float* y, float* out, int width) {
  for_vectors(width, [&](int i, int count) {
    const f32 scaled = simd::mul(simd::set1(b), load_lanes(y + i, count));
    store_lanes(out + i, simd::fma(simd::set1(a), load_lanes(x + i, count), scaled), count);
  });
}

}  // namespace
}  // namespace attention
