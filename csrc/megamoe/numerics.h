// Number formats of the wire, one element or one block at a time; host and device.
//
// E4M3 is e4m3fn: no infinity, one NaN per sign, largest 448. Encoding saturates and rounds to
// nearest even. A block of 128 elements along hidden (the last may be shorter) shares one FP32
// scale, amax / 448.
#pragma once

#include <cstdint>

#include "megamoe/host_device.h"

#if defined(__CUDACC__)
#define MEGAMOE_HD static __host__ __device__ __forceinline__
#else
// Inlined into every caller, so that it is compiled for the caller's instruction set.
#define MEGAMOE_HD static inline __attribute__((always_inline))
#endif

namespace megamoe {

constexpr int kScaleBlock = 128;
constexpr float kE4m3Max = 448.0f;

MEGAMOE_HD uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

MEGAMOE_HD float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

MEGAMOE_HD uint8_t e4m3_encode(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t normal = (rounded >> 20) - (120u << 3);
  // Adding 2^14 leaves the multiple of 2^-9 nearest to a subnormal in the low bits.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 16384.0f) - bits_of(16384.0f);
  const uint32_t finite = magnitude < 0x3c800000u ? subnormal : normal;
  // 464 is half-way from 448 to the code that would be 480.
  const uint32_t saturated = magnitude > 0x43e00000u ? 0x7eu : finite;
  const uint32_t code = magnitude > 0x7f800000u ? 0x7fu : saturated;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
}

MEGAMOE_HD float e4m3_decode(uint8_t code) {
  const uint32_t wide = code;
  const uint32_t magnitude = wide & 0x7fu;
  const float normal = float_of((magnitude << 20) + (120u << 23));
  // Not by scaling a float subnormal: those take a slow path on some processors.
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * (1.0f / 512.0f);
  const float finite = magnitude < 8u ? subnormal : normal;
  const uint32_t bits = magnitude == 0x7fu ? 0x7fc00000u : bits_of(finite);
  return float_of(bits | ((wide & 0x80u) << 24));
}

MEGAMOE_HD float bf16_decode(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

// Nearest even; NaN stays NaN.
MEGAMOE_HD uint16_t bf16_encode(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// The scale of a block whose largest magnitude is `amax`; never zero.
MEGAMOE_HD float block_scale(float amax) {
  const float scale = amax / kE4m3Max;
  return scale > 0.0f ? scale : 1.0f;
}

MEGAMOE_HOST_DEVICE constexpr int scale_blocks(int hidden) {
  return (hidden + kScaleBlock - 1) / kScaleBlock;
}

}  // namespace megamoe
