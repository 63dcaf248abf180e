// e4m3 codes to the bf16 of the same value, AVX2.
// Included once per translation unit, inside the target region; the fp8_*.h headers are
// alternatives.
#pragma once

namespace megamoe::cpu {
namespace {

// out[i] = codes[i] for n codes, none of them NaN; n is a multiple of 32.
void bf16_of_e4m3(const uint8_t* codes, int n, uint16_t* out) {
  // The subnormals 0, 1/512 … 7/512 as bf16, low and high bytes.
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 59, 59, 59, 60, 60, 60, 60, 0, 0, 0, 0, 0, 0, 0, 0));
  for (int i = 0; i < n; i += 16) {
    const __m256i word =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256i magnitude = _mm256_and_si256(word, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(word, magnitude), 8);
    const __m256i normal =
        _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16(120 << 7));
    // The upper byte of every index is zero, and so is the tables' first entry.
    const __m256i subnormal =
        _mm256_or_si256(_mm256_shuffle_epi8(low, magnitude),
                        _mm256_slli_epi16(_mm256_shuffle_epi8(high, magnitude), 8));
    const __m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    const __m256i value = _mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, small), sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), value);
  }
}

}  // namespace
}  // namespace megamoe::cpu
