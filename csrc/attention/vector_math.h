// Whole-array helpers over the vectors of a simd_*.h header.
// Included once per translation unit, inside the target region.
#pragma once

namespace attention {
namespace {

namespace simd = megamoe::cpu::simd;
using simd::f32;

inline f32 load_part(const float* p, int count, float fill) {
  float lanes[simd::kLanes];
  for (int i = 0; i < simd::kLanes; ++i) lanes[i] = i < count ? p[i] : fill;
  return simd::load(lanes);
}

inline void store_part(float* p, f32 v, int count) {
  float lanes[simd::kLanes];
  simd::store(lanes, v);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// Calls body(load, store, offset) for each vector of a row; the last may be partial, its missing
// lanes are `fill`.
template <class Body>
inline void for_vectors(int width, Body&& body) {
  int i = 0;
  for (; i + simd::kLanes <= width; i += simd::kLanes) body(i, simd::kLanes);
  if (i < width) body(i, width - i);
}

inline f32 load_lanes(const float* p, int count, float fill = 0.0f) {
  return count == simd::kLanes ? simd::load(p) : load_part(p, count, fill);
}

inline void store_lanes(float* p, f32 v, int count) {
  if (count == simd::kLanes) {
    simd::store(p, v);
  } else {
    store_part(p, v, count);
  }
}

// Within 1 ulp; NaN stays NaN, below -104 it is 0, above 88.8 infinity. Cephes' polynomial on
// [-ln 2 / 2, ln 2 / 2] after an exact two-part reduction.
inline f32 exp(f32 x) {
  // The operand order lets NaN through: max and min return the second when either is NaN.
  x = simd::min(simd::set1(89.0f), simd::max(simd::set1(-104.0f), x));
  const f32 n = simd::round(simd::mul(x, simd::set1(1.44269504f)));
  f32 r = simd::fma(n, simd::set1(-0.693359375f), x);
  r = simd::fma(n, simd::set1(2.12194440e-4f), r);
  f32 y = simd::set1(1.9875691500e-4f);
  y = simd::fma(y, r, simd::set1(1.3981999507e-3f));
  y = simd::fma(y, r, simd::set1(8.3334519073e-3f));
  y = simd::fma(y, r, simd::set1(4.1665795894e-2f));
  y = simd::fma(y, r, simd::set1(1.6666665459e-1f));
  y = simd::fma(y, r, simd::set1(5.0000001201e-1f));
  y = simd::add(simd::fma(y, simd::mul(r, r), r), simd::set1(1.0f));
  return simd::scale(y, n);
}

inline f32 sigmoid(f32 x) {
  const f32 one = simd::set1(1.0f);
  return simd::div(one, simd::add(one, exp(simd::sub(simd::set1(0.0f), x))));
}

}  // namespace
}  // namespace attention
