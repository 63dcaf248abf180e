// Sixteen-lane vectors, AVX-512.
// Included once per translation unit, inside the target region; the simd_*.h are alternatives.
#pragma once

namespace megamoe::cpu {
namespace {
namespace simd {

inline constexpr int kLanes = 16;
using f32 = __m512;

inline f32 load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, f32 v) { _mm512_storeu_ps(p, v); }
inline f32 set1(float a) { return _mm512_set1_ps(a); }
inline f32 fma(f32 a, f32 b, f32 c) { return _mm512_fmadd_ps(a, b, c); }
inline f32 max(f32 a, f32 b) { return _mm512_max_ps(a, b); }
inline f32 min(f32 a, f32 b) { return _mm512_min_ps(a, b); }
inline f32 shift_left_16(__m512i words) {
  return _mm512_castsi512_ps((__m512i)((__v16su)words << 16));
}
inline void load_bf16_halves(const uint32_t* p, f32& low, f32& high) {
  const __m512i words = _mm512_loadu_si512(p);
  low = shift_left_16(words);
  high = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
}
inline f32 load_bf16(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return shift_left_16(_mm512_cvtepu16_epi32(halves));
}
inline float sum(f32 a) { return _mm512_reduce_add_ps(a); }
inline float max_of(f32 a) { return _mm512_reduce_max_ps(a); }
inline __m512 add_even_odd_32(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
inline __m512 add_even_odd_64(__m512 a, __m512 b) {
  const __m512d x = _mm512_castps_pd(a);
  const __m512d y = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
inline __m512 add_halves_128(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
// Lane i of the result is the sum of the lanes of rows[i].
inline f32 sum_rows(const f32 (&rows)[16]) {
  f32 quads[4];
  for (int i = 0; i < 4; ++i) {
    // Within each 128-bit block: lanes become (row 4i, row 4i+1, row 4i+2, row 4i+3).
    const f32 a = add_even_odd_32(rows[4 * i], rows[4 * i + 1]);
    const f32 b = add_even_odd_32(rows[4 * i + 2], rows[4 * i + 3]);
    quads[i] = add_even_odd_64(a, b);
  }
  return add_halves_128(add_halves_128(quads[0], quads[1]), add_halves_128(quads[2], quads[3]));
}
inline f32 round(f32 a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a * 2^n for integral n, rounded once.
inline f32 scale(f32 a, f32 n) { return _mm512_scalef_ps(a, n); }
inline f32 add(f32 a, f32 b) { return _mm512_add_ps(a, b); }
inline f32 sub(f32 a, f32 b) { return _mm512_sub_ps(a, b); }
inline f32 mul(f32 a, f32 b) { return _mm512_mul_ps(a, b); }
inline f32 div(f32 a, f32 b) { return _mm512_div_ps(a, b); }

}  // namespace simd
}  // namespace
}  // namespace megamoe::cpu
