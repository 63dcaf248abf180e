#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>

#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/gemm_kernels.h"

namespace megamoe::cpu {
namespace {

constexpr int kHalf = PackedMatrix::kPanel / 2;

GemmKernels kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::Avx2:
      return gemm_avx2();
    case Isa::Avx512:
      return gemm_avx512();
    case Isa::Avx512Bf16:
      return gemm_avx512bf16();
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
      layout_(Layout::Fp32),
      kernel_(nullptr),
      data_(nullptr, Unmap{0}) {
  if (rows <= 0 || cols <= 0) {
    throw std::invalid_argument("a matrix needs positive rows and cols, got [" +
                                std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  const GemmKernels kernels = kernels_of(current_isa());
  size_t depth = cols;
  if (type == WeightType::FP32) {
    kernel_ = kernels.fp32;
  } else if (kernels.bf16_pairs != nullptr) {
    layout_ = Layout::Bf16Pairs;
    kernel_ = kernels.bf16_pairs;
    depth += depth % 2;
  } else {
    layout_ = Layout::Bf16;
    kernel_ = kernels.bf16;
  }
  panel_bytes_ = depth * kPanel * (type == WeightType::FP32 ? sizeof(float) : sizeof(uint16_t));
  data_ = std::unique_ptr<std::byte, Unmap>(map_bytes(bytes()), Unmap{bytes()});
}

// In elements of the stored type, from the start of the matrix.
size_t PackedMatrix::element_offset(int row, int k) const {
  const int lane = row % kPanel;
  const size_t depth = static_cast<size_t>(k);
  const size_t element_bytes = layout_ == Layout::Fp32 ? sizeof(float) : sizeof(uint16_t);
  const size_t start = panel_bytes_ / element_bytes * static_cast<size_t>(row / kPanel);
  switch (layout_) {
    case Layout::Fp32:
      return start + depth * kPanel + lane;
    case Layout::Bf16:
      // Lanes c and c + 16 share a 32-bit word: a shift and a mask make both float32 vectors.
      return start + depth * kPanel + (lane % kHalf) * 2 + lane / kHalf;
    case Layout::Bf16Pairs:
      return start + (depth / 2) * (2 * kPanel) + lane * 2 + depth % 2;
  }
  return start;
}

template <class T, class Convert>
void PackedMatrix::load(int first_row, const T* w, int n_rows, Convert convert) {
  if (first_row < 0 || n_rows < 0 || first_row > rows_ - n_rows) {
    throw std::out_of_range("rows [" + std::to_string(first_row) + ", " +
                            std::to_string(first_row + int64_t{n_rows}) +
                            ") lie outside a matrix of " + std::to_string(rows_) + " rows");
  }
  using Stored = decltype(convert(*w));
  Stored* data = reinterpret_cast<Stored*>(data_.get());
  for (int r = 0; r < n_rows; ++r) {
    for (int k = 0; k < cols_; ++k) {
      data[element_offset(first_row + r, k)] = convert(w[static_cast<size_t>(r) * cols_ + k]);
    }
  }
}

void PackedMatrix::load_f32(int first_row, const float* w, int n_rows) {
  if (layout_ == Layout::Fp32) {
    load(first_row, w, n_rows, [](float value) { return value; });
  } else {
    load(first_row, w, n_rows, f32_to_bf16);
  }
}

void PackedMatrix::load_bf16(int first_row, const uint16_t* w, int n_rows) {
  if (layout_ == Layout::Fp32) {
    load(first_row, w, n_rows, bf16_to_f32);
  } else {
    load(first_row, w, n_rows, [](uint16_t value) { return value; });
  }
}

void PackedMatrix::gather_row(int row, float* out) const {
  if (layout_ == Layout::Fp32) {
    const float* data = reinterpret_cast<const float*>(data_.get());
    for (int k = 0; k < cols_; ++k) out[k] = data[element_offset(row, k)];
  } else {
    const uint16_t* data = reinterpret_cast<const uint16_t*>(data_.get());
    for (int k = 0; k < cols_; ++k) out[k] = bf16_to_f32(data[element_offset(row, k)]);
  }
}

void gemm_rows(const float* const* x, float* const* y, int m, const PackedMatrix& w,
               int panel_begin, int panel_end, bool accumulate) {
  if (m <= 0 || panel_begin >= panel_end) return;
  w.kernel_({x, y, m, w.panel(panel_begin), w.panel_bytes(), w.rows(), w.cols(), panel_begin,
             panel_end, accumulate});
}

}  // namespace megamoe::cpu
