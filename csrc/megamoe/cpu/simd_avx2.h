// Eight-lane vectors, AVX2 with FMA.
// Included once per translation unit, inside the target region; the simd_*.h are alternatives.
#pragma once

namespace megamoe::cpu {
namespace {
namespace simd {

inline constexpr int kLanes = 8;
using f32 = __m256;

inline f32 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, f32 v) { _mm256_storeu_ps(p, v); }
inline f32 set1(float a) { return _mm256_set1_ps(a); }
inline f32 fma(f32 a, f32 b, f32 c) { return _mm256_fmadd_ps(a, b, c); }
inline f32 max(f32 a, f32 b) { return _mm256_max_ps(a, b); }
inline f32 min(f32 a, f32 b) { return _mm256_min_ps(a, b); }
inline void load_bf16_halves(const uint32_t* p, f32& low, f32& high) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  low = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  high = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536)));
}
inline f32 load_bf16(const uint16_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline __m128 fold(f32 a) {
  return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
inline float sum(f32 a) {
  const __m128 b = fold(a);
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float max_of(f32 a) {
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
// Lane i of the result is the sum of the lanes of rows[i].
inline f32 sum_rows(const f32 (&rows)[8]) {
  const f32 a = _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]), _mm256_hadd_ps(rows[2], rows[3]));
  const f32 b = _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]), _mm256_hadd_ps(rows[6], rows[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
inline f32 round(f32 a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline f32 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// a * 2^n for integral n in [-252, 254]: in two factors, so that neither leaves the normal range.
inline f32 scale(f32 a, f32 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(a, power_of_two(half)),
                       power_of_two(_mm256_sub_epi32(whole, half)));
}
inline f32 add(f32 a, f32 b) { return _mm256_add_ps(a, b); }
inline f32 sub(f32 a, f32 b) { return _mm256_sub_ps(a, b); }
inline f32 mul(f32 a, f32 b) { return _mm256_mul_ps(a, b); }
inline f32 div(f32 a, f32 b) { return _mm256_div_ps(a, b); }

}  // namespace simd
}  // namespace
}  // namespace megamoe::cpu
