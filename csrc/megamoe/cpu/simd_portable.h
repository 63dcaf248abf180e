// Four-lane vectors through compiler extensions: SSE2, NEON, or whatever the target has.
// Included once per translation unit; the simd_*.h headers are alternatives.
#pragma once

#include <cstdint>
#include <cstring>

namespace megamoe::cpu {
namespace {
namespace simd {

inline constexpr int kLanes = 4;
typedef float f32 __attribute__((vector_size(16)));
typedef int32_t i32 __attribute__((vector_size(16)));

inline f32 load(const float* p) {
  f32 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void store(float* p, f32 v) { std::memcpy(p, &v, sizeof(v)); }
inline f32 set1(float a) { return f32{a, a, a, a}; }
inline f32 fma(f32 a, f32 b, f32 c) {
#if defined(__FP_FAST_FMAF)
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}
inline f32 max(f32 a, f32 b) { return a > b ? a : b; }
inline f32 min(f32 a, f32 b) { return a < b ? a : b; }
inline f32 as_f32(i32 a) { return reinterpret_cast<f32>(a); }
// Words that hold two bf16: the value in the low half, and the one in the high half.
inline void load_bf16_halves(const uint32_t* p, f32& low, f32& high) {
  i32 words;
  std::memcpy(&words, p, sizeof(words));
  low = as_f32(words << 16);
  high = as_f32(words & static_cast<int32_t>(0xffff0000));
}
inline f32 load_bf16(const uint16_t* p) { return as_f32(i32{p[0], p[1], p[2], p[3]} << 16); }
inline float sum(f32 a) { return (a[0] + a[2]) + (a[1] + a[3]); }
inline float max_of(f32 a) {
  const float x = a[0] > a[1] ? a[0] : a[1];
  const float y = a[2] > a[3] ? a[2] : a[3];
  return x > y ? x : y;
}
// Lane i of the result is the sum of the lanes of rows[i].
inline f32 sum_rows(const f32 (&rows)[4]) {
  return f32{sum(rows[0]), sum(rows[1]), sum(rows[2]), sum(rows[3])};
}
inline f32 round(f32 a) {
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits; exact for |a| < 2^22.
  const f32 magic = set1(12582912.0f);
  return (a + magic) - magic;
}
// a * 2^n for integral n in [-252, 254]: in two factors, so that neither leaves the normal range.
inline f32 scale(f32 a, f32 n) {
  const i32 whole = __builtin_convertvector(n, i32);
  const i32 half = whole >> 1;
  return a * as_f32((half + 127) << 23) * as_f32((whole - half + 127) << 23);
}
inline f32 add(f32 a, f32 b) { return a + b; }
inline f32 sub(f32 a, f32 b) { return a - b; }
inline f32 mul(f32 a, f32 b) { return a * b; }
inline f32 div(f32 a, f32 b) { return a / b; }

}  // namespace simd
}  // namespace
}  // namespace megamoe::cpu
