// e4m3 codes to bf16 pairs by table, AVX-512 VBMI.
// Included once per translation unit, inside the target region.
#pragma once

namespace megamoe::cpu {
namespace {

// The bf16 of the 128 codes without a sign: their low bytes, then their high ones.
struct Bf16OfCode {
  alignas(64) uint8_t bytes[4][64] = {};
  constexpr Bf16OfCode() {
    for (int code = 0; code < 128; ++code) {
      const int bits = bf16_of(code);
      bytes[code / 64][code % 64] = static_cast<uint8_t>(bits & 0xff);
      bytes[2 + code / 64][code % 64] = static_cast<uint8_t>(bits >> 8);
    }
  }
  static constexpr int bf16_of(int code) {
    if (code == 0) return 0;
    int exponent = code >> 3;
    int mantissa = code & 7;
    if (exponent == 0) {  // a subnormal becomes a normal number
      exponent = 1;
      for (; mantissa < 8; mantissa *= 2) --exponent;
    }
    return (exponent + 120) << 7 | (mantissa & 7) << 4;
  }
};
constexpr Bf16OfCode kBf16OfCode;

inline __m512i code_bytes(int quarter) { return _mm512_load_si512(kBf16OfCode.bytes[quarter]); }

// The pairs of the 32 columns of two k, sixteen columns a vector, from their 64 codes in the order
// of fp8_pair_position. A code without its sign picks one of 128 low and one of 128 high bytes.
inline void pairs_of_e4m3(const std::byte* from, __m512i (&pairs)[2]) {
  const __m512i codes = _mm512_load_si512(from);
  const __m512i lower = _mm512_permutex2var_epi8(code_bytes(0), codes, code_bytes(1));
  const __m512i unsigned_upper = _mm512_permutex2var_epi8(code_bytes(2), codes, code_bytes(3));
  // unsigned_upper | (codes & the sign bit)
  const __m512i upper =
      _mm512_ternarylogic_epi64(unsigned_upper, codes, _mm512_set1_epi8(-128), 0xf8);
  pairs[0] = _mm512_unpacklo_epi8(lower, upper);
  pairs[1] = _mm512_unpackhi_epi8(lower, upper);
}

}  // namespace
}  // namespace megamoe::cpu
