// e4m3 codes to the bf16 of the same value.
// Included once per translation unit; the fp8_*.h headers are alternatives.
#pragma once

#include "megamoe/numerics.h"

namespace megamoe::cpu {
namespace {

struct Bf16OfCode {
  uint16_t bits[256];
  Bf16OfCode() {
    // Exact: bf16 has more exponent and more mantissa than e4m3.
    for (int code = 0; code < 256; ++code) {
      bits[code] = bf16_encode(e4m3_decode(static_cast<uint8_t>(code)));
    }
  }
};

// out[i] = codes[i] for n codes, none of them NaN.
void bf16_of_e4m3(const uint8_t* codes, int n, uint16_t* out) {
  static const Bf16OfCode table;
  for (int i = 0; i < n; ++i) out[i] = table.bits[codes[i]];
}

}  // namespace
}  // namespace megamoe::cpu
