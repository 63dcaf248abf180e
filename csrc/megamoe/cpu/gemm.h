// Packed weights and the tile GEMM: y = x W^T with float32 accumulation.
//
// Numerics. Each output is one chain of multiply-adds over k, ascending, from zero (fused wherever
// the machine has the instruction); batch and tile shape do not enter, so a row's result is
// bit-identical in any batch on one machine. At Isa::Avx512Bf16 a BF16 matrix multiplies bf16
// pairs: activations are rounded to bf16 (nearest even) and k advances by two a step, in the order
// vdpbf16ps defines; subnormals flush to zero.
//
// At Isa::Amx a BF16 matrix multiplies the same pairs 32 k at a time, as tdpbf16ps defines: from
// zero, the even k are one chain and the odd k another, the two are added, and their sum is added
// to that of the k before; subnormals flush to zero. k is padded with zeros to a multiple of 32.
//
// FP8 weights are e4m3 codes with one float32 scale per 16 rows and 128 columns. Each code becomes
// the bf16 of the same value, exactly; every 128 columns are one chain as above, and the chains'
// sums, times their scales, are added in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "megamoe/cpu/isa.h"

namespace megamoe::cpu {

enum class WeightType { BF16 = 0, FP32 = 1, FP8 = 2 };

inline float bf16_to_f32(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

// Round to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  uint32_t word;
  __builtin_memcpy(&word, &value, sizeof(word));
  if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((word >> 16) | 0x40u);
  return static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

struct GemmCall;

// A weight [rows, cols] in panels of kPanel rows (output columns), each panel k-major, 64-byte
// aligned and padded with zeros. Unloaded rows are zero. Loading is not thread-safe.
class PackedMatrix {
 public:
  static constexpr int kPanel = 32;
  static constexpr int kScaleRows = kPanel / 2;  // that share an FP8 scale
  static constexpr int kScaleCols = 128;

  // Throws std::invalid_argument if a size is not positive, std::bad_alloc if memory is short.
  PackedMatrix(int rows, int cols, WeightType type);

  // Rows [first_row, first_row + n_rows) from w [n_rows, cols]; std::out_of_range if they do not
  // fit, std::invalid_argument if the matrix is FP8.
  void load_f32(int first_row, const float* w, int n_rows);
  void load_bf16(int first_row, const uint16_t* w, int n_rows);
  // At most kScaleRows rows from a multiple of it, and their scales [ceil(cols / kScaleCols)].
  // std::invalid_argument if a code is not a number, or the matrix is not FP8.
  void load_fp8(int first_row, const uint8_t* codes, int n_rows, const float* scales);

  // out[cols] = W[row], exactly as stored.
  void gather_row(int row, float* out) const;

  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int panels() const { return (rows_ + kPanel - 1) / kPanel; }
  WeightType type() const { return type_; }
  size_t bytes() const { return panel_bytes_ * panels(); }
  size_t panel_bytes() const { return panel_bytes_; }
  // Whether the kernel rounds activations to bf16 pairs. A row may then be rounded once,
  // [pair_words] words, and multiplied by several matrices of this type and level with gemm_pairs.
  bool takes_pairs() const { return round_ != nullptr; }
  static size_t pair_words(int cols);
  void round(const float* x, int cols, uint32_t* pairs) const { round_(x, cols, pairs); }
  const std::byte* panel(int index) const { return data_.get() + panel_bytes_ * index; }

 private:
  friend void gemm_rows(const float* const*, float* const*, int, const PackedMatrix&, int, int,
                        bool, const std::byte*);
  friend void gemm_pairs(const uint32_t* const*, float* const*, int, const PackedMatrix&, int, int,
                         const std::byte*);
  // How a panel orders its elements; FP8 codes lie as the bf16 they become.
  enum class Order { Rows, Halves, Pairs, CodePairs };
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* data) const;
  };

  int choose_kernel();  // returns the k that its panels are padded to a multiple of
  void check_rows(int first_row, int n_rows) const;
  size_t element_bytes() const;
  int scale_blocks() const { return (cols_ + kScaleCols - 1) / kScaleCols; }
  float* scales(int row) const;
  template <class T>
  T* elements(int row) const;
  size_t position(int row, int k) const;
  template <class Stored, class T, class Convert>
  void load(int first_row, const T* w, int n_rows, Convert convert);

  int rows_;
  int cols_;
  WeightType type_;
  Order order_ = Order::Rows;
  size_t head_bytes_ = 0;  // of a panel: its FP8 scales, two a block of columns
  void (*kernel_)(const GemmCall&);
  void (*round_)(const float*, int, uint32_t*);
  size_t panel_bytes_;
  std::unique_ptr<std::byte, Unmap> data_;
};

// y[i][c] (+)= sum over k of x[i][k] * W[c][k] for the columns c of panels [panel_begin,
// panel_end) and i in [0, m). Rows of x and y need no alignment and may lie anywhere.
// `next` is the panel that will be read after these, if known.
void gemm_rows(const float* const* x, float* const* y, int m, const PackedMatrix& w,
               int panel_begin, int panel_end, bool accumulate, const std::byte* next = nullptr);
// The same, not accumulating, from rows that w.round made.
void gemm_pairs(const uint32_t* const* x, float* const* y, int m, const PackedMatrix& w,
                int panel_begin, int panel_end, const std::byte* next = nullptr);

}  // namespace megamoe::cpu
