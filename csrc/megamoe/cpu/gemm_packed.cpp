#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/numerics.h"

namespace megamoe::cpu {
namespace {

constexpr size_t kHalf = PackedMatrix::kPanel / 2;
constexpr const char* kNeedsScales = "FP8 weights are loaded as codes with their scales";

size_t index(int value) { return static_cast<size_t>(value); }

GemmKernels kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::Avx2:
      return gemm_avx2();
    case Isa::Avx512:
      return gemm_avx512();
    case Isa::Avx512Bf16:
      return gemm_avx512bf16();
    case Isa::Amx:
#if defined(AFD_AMX_EMULATED)
      return gemm_amx_emulated();
#else
      return gemm_amx();
#endif
#endif
    default:
      return gemm_portable();
  }
}

// Zero-filled memory that becomes resident page by page and may be backed by huge pages.
std::byte* map_bytes(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: refusal changes speed only
  return static_cast<std::byte*>(data);
}

}  // namespace

void PackedMatrix::Unmap::operator()(std::byte* data) const { munmap(data, bytes); }

PackedMatrix::PackedMatrix(int rows, int cols, WeightType type)
    : rows_(rows),
      cols_(cols),
      type_(type),
      kernel_(nullptr),
      round_(nullptr),
      data_(nullptr, Unmap{0}) {
  if (rows <= 0 || cols <= 0) {
    throw std::invalid_argument("a matrix needs positive rows and cols, got [" +
                                std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  const size_t step = index(choose_kernel());
  const size_t depth = (index(cols) + step - 1) / step * step;
  if (type == WeightType::FP8) head_bytes_ = fp8_head_bytes(scale_blocks());
  panel_bytes_ = head_bytes_ + depth * kPanel * element_bytes();
  data_ = std::unique_ptr<std::byte, Unmap>(map_bytes(bytes()), Unmap{bytes()});
}

int PackedMatrix::choose_kernel() {
  const GemmKernels kernels = kernels_of(current_isa());
  if (type_ == WeightType::FP32) {
    kernel_ = kernels.fp32;
    return 1;
  }
  const bool pairs = kernels.bf16_pairs != nullptr;
  round_ = kernels.round;
  order_ = pairs ? Order::Pairs : Order::Halves;
  if (type_ == WeightType::BF16) {
    kernel_ = pairs ? kernels.bf16_pairs : kernels.bf16;
  } else {
    if (pairs) order_ = Order::CodePairs;
    kernel_ = pairs ? kernels.fp8_pairs : kernels.fp8;
  }
  return pairs ? kernels.pairs_depth : 1;
}

size_t PackedMatrix::element_bytes() const {
  switch (type_) {
    case WeightType::FP8:
      return sizeof(uint8_t);
    case WeightType::BF16:
      return sizeof(uint16_t);
    case WeightType::FP32:
      break;
  }
  return sizeof(float);
}

// Of a row's half panel: every second one belongs to it.
float* PackedMatrix::scales(int row) const {
  std::byte* panel = data_.get() + panel_bytes_ * index(row / kPanel);
  return reinterpret_cast<float*>(panel) + row % kPanel / kScaleRows;
}

template <class T>
T* PackedMatrix::elements(int row) const {
  return reinterpret_cast<T*>(data_.get() + panel_bytes_ * index(row / kPanel) + head_bytes_);
}

// Of an element within its panel.
size_t PackedMatrix::position(int row, int k) const {
  const size_t lane = index(row % kPanel);
  const size_t depth = index(k);
  switch (order_) {
    case Order::Rows:
      return depth * kPanel + lane;
    case Order::Halves:
      // Lanes c and c + 16 share a 32-bit word: a shift and a mask make both float32 vectors.
      return depth * kPanel + lane % kHalf * 2 + lane / kHalf;
    case Order::Pairs:
      return depth / 2 * (2 * kPanel) + lane * 2 + depth % 2;
    case Order::CodePairs:
      return depth / 2 * (2 * kPanel) + fp8_pair_position(lane, depth % 2);
  }
  return 0;
}

void PackedMatrix::check_rows(int first_row, int n_rows) const {
  if (first_row >= 0 && n_rows >= 0 && first_row <= rows_ - n_rows) return;
  throw std::out_of_range("rows [" + std::to_string(first_row) + ", " +
                          std::to_string(first_row + int64_t{n_rows}) +
                          ") lie outside a matrix of " + std::to_string(rows_) + " rows");
}

template <class Stored, class T, class Convert>
void PackedMatrix::load(int first_row, const T* w, int n_rows, Convert convert) {
  check_rows(first_row, n_rows);
  for (int row = first_row; row < first_row + n_rows; ++row, w += cols_) {
    Stored* panel = elements<Stored>(row);
    for (int k = 0; k < cols_; ++k) panel[position(row, k)] = convert(w[k]);
  }
}

void PackedMatrix::load_f32(int first_row, const float* w, int n_rows) {
  if (type_ == WeightType::FP8) throw std::invalid_argument(kNeedsScales);
  if (type_ == WeightType::FP32) {
    load<float>(first_row, w, n_rows, [](float value) { return value; });
  } else {
    load<uint16_t>(first_row, w, n_rows, f32_to_bf16);
  }
}

void PackedMatrix::load_bf16(int first_row, const uint16_t* w, int n_rows) {
  if (type_ == WeightType::FP8) throw std::invalid_argument(kNeedsScales);
  if (type_ == WeightType::FP32) {
    load<float>(first_row, w, n_rows, bf16_to_f32);
  } else {
    load<uint16_t>(first_row, w, n_rows, [](uint16_t value) { return value; });
  }
}

void PackedMatrix::load_fp8(int first_row, const uint8_t* codes, int n_rows, const float* given) {
  if (type_ != WeightType::FP8) {
    throw std::invalid_argument("FP8 codes and scales need a matrix of FP8 weights");
  }
  if (first_row % kScaleRows != 0 || n_rows > kScaleRows) {
    throw std::invalid_argument("FP8 rows are loaded in groups of " + std::to_string(kScaleRows));
  }
  const auto elements = index(n_rows) * index(cols_);
  const uint8_t* broken =
      std::find_if(codes, codes + elements, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
  if (broken != codes + elements) {
    throw std::invalid_argument("an FP8 weight is not a number, in column " +
                                std::to_string((broken - codes) % cols_) +
                                "; the checkpoint is damaged");
  }
  load<uint8_t>(first_row, codes, n_rows, [](uint8_t code) { return code; });
  float* kept = scales(first_row);
  for (int block = 0; block < scale_blocks(); ++block) kept[2 * block] = given[block];
}

void PackedMatrix::gather_row(int row, float* out) const {
  for (int k = 0; k < cols_; ++k) {
    const size_t at = position(row, k);
    switch (type_) {
      case WeightType::FP32:
        out[k] = elements<float>(row)[at];
        break;
      case WeightType::BF16:
        out[k] = bf16_to_f32(elements<uint16_t>(row)[at]);
        break;
      case WeightType::FP8:
        out[k] = e4m3_decode(elements<uint8_t>(row)[at]) * scales(row)[k / kScaleCols * 2];
        break;
    }
  }
}

void gemm_rows(const float* const* x, float* const* y, int m, const PackedMatrix& w,
               int panel_begin, int panel_end, bool accumulate, const std::byte* next) {
  if (m <= 0 || panel_begin >= panel_end) return;
  w.kernel_({x, nullptr, y, m, w.panel(panel_begin), w.panel_bytes(), w.rows(), w.cols(),
             panel_begin, panel_end, accumulate, w.head_bytes_, next});
}

void gemm_pairs(const uint32_t* const* x, float* const* y, int m, const PackedMatrix& w,
                int panel_begin, int panel_end, const std::byte* next) {
  if (m <= 0 || panel_begin >= panel_end) return;
  w.kernel_({nullptr, x, y, m, w.panel(panel_begin), w.panel_bytes(), w.rows(), w.cols(),
             panel_begin, panel_end, false, w.head_bytes_, next});
}

// An odd number of cache lines a row keeps the rows of a tile out of one another's cache sets.
size_t PackedMatrix::pair_words(int cols) {
  const size_t words = (index(cols) + 1) / 2;
  return (words + 15) / 16 * 16 + 16;
}

}  // namespace megamoe::cpu
