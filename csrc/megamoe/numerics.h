// Number formats of the wire, one element or one block at a time; host and device.
//
// E4M3 is e4m3fn: no infinity, one NaN per sign, largest 448. Encoding saturates and rounds to
// nearest even. A block of elements along hidden (the last may be shorter) shares one scale, amax /
// 448; as UE8M0, an exponent alone, that is rounded up to a power of two (OCP Microscaling Formats
// 1.0, section 5.4.1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/host_device.h"

#if defined(__CUDACC__)
#define MEGAMOE_HD static __host__ __device__ __forceinline__
#else
// Inlined into every caller, so that it is compiled for the caller's instruction set.
#define MEGAMOE_HD static inline __attribute__((always_inline))
#endif

namespace megamoe {

enum class ScaleFormat : int32_t { Fp32Per128 = 0, Ue8m0Per128 = 1, Ue8m0Per32 = 2 };

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

// The nearest power of two at or above a positive scale, as an exponent with bias 127.
MEGAMOE_HD uint8_t ue8m0_encode(float scale) {
  const uint32_t bits = bits_of(scale);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  const uint32_t normal = exponent < 1u ? 1u : exponent;
  return static_cast<uint8_t>(normal > 254u ? 254u : normal);
}

// 2^(exponent - 127), which is subnormal for 0; 255 is NaN.
MEGAMOE_HD float ue8m0_decode(uint8_t exponent) {
  const uint32_t wide = exponent;
  if (wide == 0u) return float_of(1u << 22);
  return float_of(wide == 255u ? 0x7fc00000u : wide << 23);
}

MEGAMOE_HOST_DEVICE constexpr int scale_block(ScaleFormat format) {
  return format == ScaleFormat::Ue8m0Per32 ? 32 : 128;
}
MEGAMOE_HOST_DEVICE constexpr int scale_blocks(ScaleFormat format, int hidden) {
  return (hidden + scale_block(format) - 1) / scale_block(format);
}
// Of the scales of a row.
MEGAMOE_HOST_DEVICE constexpr int scale_bytes(ScaleFormat format, int hidden) {
  return scale_blocks(format, hidden) * (format == ScaleFormat::Fp32Per128 ? 4 : 1);
}

// Stores the scale of a row's block; returns it as the reader will see it.
MEGAMOE_HD float store_scale(ScaleFormat format, float scale, std::byte* scales, int block) {
  if (format == ScaleFormat::Fp32Per128) {
    reinterpret_cast<float*>(scales)[block] = scale;
    return scale;
  }
  const uint8_t exponent = ue8m0_encode(scale);
  scales[block] = static_cast<std::byte>(exponent);
  return ue8m0_decode(exponent);
}

MEGAMOE_HD float load_scale(ScaleFormat format, const std::byte* scales, int block) {
  if (format == ScaleFormat::Fp32Per128) return reinterpret_cast<const float*>(scales)[block];
  return ue8m0_decode(static_cast<uint8_t>(scales[block]));
}

}  // namespace megamoe
