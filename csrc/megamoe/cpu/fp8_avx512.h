// e4m3 codes to the bf16 of the same value, AVX-512.
// Included once per translation unit, inside the target region; the fp8_*.h headers are
// alternatives.
#pragma once

namespace megamoe::cpu {
namespace {

// out[i] = codes[i] for n codes, none of them NaN; n is a multiple of 32.
void bf16_of_e4m3(const uint8_t* codes, int n, uint16_t* out) {
  constexpr int kAhead = 2048;
  // The subnormals 0, 1/512 … 7/512 as bf16.
  const __m512i subnormal = _mm512_castsi128_si512(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __m512i sign_bit = _mm512_set1_epi16(-32768);
  for (int i = 0; i < n; i += 32) {
    const __m512i word =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    if (i % 64 == 0) __builtin_prefetch(codes + i + kAhead);
    const __m512i magnitude = _mm512_and_si512(word, _mm512_set1_epi16(0x7f));
    const __m512i normal =
        _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    const __mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    const __m512i value = _mm512_mask_permutexvar_epi16(normal, small, magnitude, subnormal);
    // value | (word << 8 & sign_bit)
    const __m512i signed_value =
        _mm512_ternarylogic_epi64(value, _mm512_slli_epi16(word, 8), sign_bit, 0xf8);
    _mm512_storeu_si512(out + i, signed_value);
  }
}

}  // namespace
}  // namespace megamoe::cpu
