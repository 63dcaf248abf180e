// The AMX instructions that the GEMM needs. TileConfig is the operand of ldtilecfg (Intel SDM,
// volume 1, chapter 18).
// Included once per translation unit, inside a target region.
#pragma once

namespace megamoe::cpu {
namespace {

// Shapes of the eight tile registers, each at most 16 rows of 64 bytes.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows) {
    row_bytes[tile] = tile_rows > 0 ? 64 : 0;
    rows[tile] = static_cast<uint8_t>(tile_rows);
  }
};
static_assert(sizeof(TileConfig) == 64);

// The processor's own registers. Not the compilers' intrinsics: GCC 12's do not say that a tile
// load reads memory, so it may move the stores that fill it.
struct HardwareTiles {
  void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  void release() { asm volatile("tilerelease"); }
  template <int T>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  // `stride` is in bytes, from row to row.
  template <int T>
  void load(const void* from, ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  void store(void* to, ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }
  // C += A B over bf16 pairs.
  template <int C, int A, int B>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace
}  // namespace megamoe::cpu
