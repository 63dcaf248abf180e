// The AMX instructions of amx_tiles.h in software, as the Intel SDM defines them (volume 2,
// LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS), with the checks that raise #GP or #UD.
// Included once per translation unit, inside a target region with AVX-512, after amx_tiles.h.
#pragma once

namespace megamoe::cpu {
namespace {

class EmulatedTiles {
 public:
  static constexpr int kTiles = 8;
  static constexpr int kRows = 16;
  static constexpr int kRowBytes = 64;

  void configure(const TileConfig& config) {
    require(config.palette == 1, "ldtilecfg: the palette is not 1");
    require(config.start_row == 0, "ldtilecfg: restarts in the middle of a tile");
    for (const uint8_t byte : config.reserved) require(byte == 0, "ldtilecfg: reserved bytes");
    for (int t = 0; t < 16; ++t) {
      const int rows = config.rows[t];
      const int bytes = config.row_bytes[t];
      require(t < kTiles || (rows == 0 && bytes == 0), "ldtilecfg: there are eight tiles");
      require(rows <= kRows && bytes <= kRowBytes, "ldtilecfg: a tile has 16 rows of 64 bytes");
      require((rows == 0) == (bytes == 0), "ldtilecfg: rows without bytes, or bytes without rows");
    }
    config_ = config;
    configured_ = true;
    __builtin_memset(data_, 0, sizeof(data_));
  }
  void release() { configured_ = false; }

  template <int T>
  void zero() {
    zero(T);
  }
  template <int T>
  void load(const void* from, ptrdiff_t stride) {
    load(T, from, stride);
  }
  template <int T>
  void store(void* to, ptrdiff_t stride) {
    store(T, to, stride);
  }
  template <int C, int A, int B>
  void dot() {
    dot(C, A, B);
  }

  void zero(int t) {
    require_tile(t);
    __builtin_memset(data_[t], 0, sizeof(data_[t]));
  }

  void load(int t, const void* from, ptrdiff_t stride) {
    zero(t);
    for (int r = 0; r < config_.rows[t]; ++r) {
      __builtin_memcpy(data_[t][r], static_cast<const char*>(from) + r * stride,
                       config_.row_bytes[t]);
    }
  }

  void store(int t, void* to, ptrdiff_t stride) const {
    require_tile(t);
    for (int r = 0; r < config_.rows[t]; ++r) {
      __builtin_memcpy(static_cast<char*>(to) + r * stride, data_[t][r], config_.row_bytes[t]);
    }
  }

  // The barriers keep the arithmetic between the two changes of the rounding mode.
  void dot(int c, int a, int b) {
    require_shapes(c, a, b);
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x0040;
    constexpr unsigned kNearestNoTraps = 0x1f80;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(kFlushToZero | kDenormalsAreZero | kNearestNoTraps);
    asm volatile("" : : : "memory");
    for (int r = 0; r < config_.rows[c]; ++r) multiply_row(data_[c][r], data_[a][r], a, data_[b]);
    asm volatile("" : : : "memory");
    _mm_setcsr(before);
  }

 private:
  static void require(bool good, const char* why) {
    if (!good) tile_fault(why);
  }
  void require_tile(int t) const {
    require(configured_, "no tiles are configured");
    require(t >= 0 && t < kTiles && config_.rows[t] > 0, "the tile has no rows");
  }
  void require_shapes(int c, int a, int b) const {
    for (const int t : {c, a, b}) {
      require_tile(t);
      require(config_.row_bytes[t] % 4 == 0, "tdpbf16ps: rows are not of whole 32-bit words");
    }
    require(c != a && c != b && a != b, "tdpbf16ps: the three tiles must differ");
    require(config_.rows[c] == config_.rows[a], "tdpbf16ps: sums and A differ in rows");
    require(config_.row_bytes[c] == config_.row_bytes[b],
            "tdpbf16ps: sums and B differ in columns");
    require(config_.row_bytes[a] / 4 == config_.rows[b], "tdpbf16ps: A and B differ in depth");
  }

  // A word's low half is the pair's first element.
  static __m512 first(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
  static __m512 second(__m512i words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
  }

  void multiply_row(uint32_t* sums, const uint32_t* pairs, int a, const uint32_t (*b)[16]) const {
    __m512 firsts = _mm512_setzero_ps();
    __m512 seconds = _mm512_setzero_ps();
    for (int k = 0; k < config_.row_bytes[a] / 4; ++k) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(pairs[k]));
      const __m512i w = _mm512_load_si512(b[k]);
      firsts = _mm512_fmadd_ps(first(x), first(w), firsts);
      seconds = _mm512_fmadd_ps(second(x), second(w), seconds);
    }
    const __m512 both = _mm512_add_ps(firsts, seconds);
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), both));
  }

  alignas(64) uint32_t data_[kTiles][kRows][kRowBytes / 4];
  TileConfig config_;
  bool configured_ = false;
};

}  // namespace
}  // namespace megamoe::cpu
