#include "ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <latch>
#include <new>

#include "megamoe/cpu/amx.h"
#include "megamoe/cpu/isa.h"

#if defined(__x86_64__)
#include "megamoe/cpu/intrinsics.h"

MEGAMOE_TARGET("amx-tile,amx-bf16," MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/amx_tiles.h"
// The emulation needs the tiles' configuration.
#include "megamoe/cpu/amx_emulated.h"

namespace bench {
namespace {

#if defined(AFD_AMX_EMULATED)
using Tiles = megamoe::cpu::EmulatedTiles;
#else
using Tiles = megamoe::cpu::HardwareTiles;
#endif

// The GEMM's four accumulators, `steps` times; returns one of the sums.
float add_tiles_up(int steps) {
  alignas(64) uint32_t pairs[16][16];
  for (auto& row : pairs) {
    for (uint32_t& pair : row) pair = 0x3c003c00u;
  }
  alignas(64) float sums[16][16];
  megamoe::cpu::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, 16);
  Tiles tiles;
  tiles.configure(config);
  tiles.load<4>(pairs, sizeof(pairs[0]));
  tiles.load<5>(pairs, sizeof(pairs[0]));
  tiles.load<6>(pairs, sizeof(pairs[0]));
  tiles.load<7>(pairs, sizeof(pairs[0]));
  for (int i = 0; i < steps; ++i) {
    tiles.dot<0, 4, 6>();
    tiles.dot<1, 4, 7>();
    tiles.dot<2, 5, 6>();
    tiles.dot<3, 5, 7>();
  }
  tiles.store<3>(sums, sizeof(sums[0]));
  tiles.release();
  return sums[0][0];
}

}  // namespace
}  // namespace bench
MEGAMOE_TARGET_END
#endif

namespace bench {
namespace {

constexpr int kChains = 24;  // hide any multiply-add's latency
constexpr int kSteps = 1'000'000;

struct Work {
  double flops;
  float checksum;
};

// Four lanes through compiler extensions, as the portable level's vectors.
Work portable() {
  typedef float Vector __attribute__((vector_size(16)));
  Vector sums[8] = {};
  const Vector x = Vector{} + 1e-3f;
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < 8; ++c) sums[c] += x * x;
    asm volatile("" : : "x"(sums[0]));
  }
  float total = 0.0f;
  for (const Vector& sum : sums) total += sum[0];
  return {2.0 * 4 * 8 * kSteps, total};
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] Work avx2() {
  __m256 sums[8];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(1e-3f);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < 8; ++c) sums[c] = _mm256_fmadd_ps(x, x, sums[c]);
    asm volatile("" : : "x"(sums[0]));
  }
  float total = 0.0f;
  for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
  return {2.0 * 8 * 8 * kSteps, total};
}

[[gnu::target("avx512f")]] Work avx512() {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512 x = _mm512_set1_ps(1e-3f);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_fmadd_ps(x, x, sums[c]);
    asm volatile("" : : "v"(sums[0]));
  }
  float total = 0.0f;
  for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
  return {2.0 * 16 * kChains * kSteps, total};
}

[[gnu::target("avx512f,avx512bf16")]] Work avx512bf16() {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3c003c00);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbf16_ps(sums[c], x, x);
    asm volatile("" : : "v"(sums[0]));
  }
  float total = 0.0f;
  for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
  return {2.0 * 32 * kChains * kSteps, total};
}

Work amx() { return {2.0 * 16 * 16 * 32 * 4 * kSteps, add_tiles_up(kSteps)}; }
#endif

uint64_t add_up_portable(const std::byte* from, size_t bytes) {
  typedef uint64_t Vector __attribute__((vector_size(16), may_alias));
  constexpr size_t kAhead = 4096;
  Vector sums[4] = {};
  for (size_t at = 0; at + 64 <= bytes; at += 64) {
    __builtin_prefetch(from + at + kAhead);
    const auto* line = reinterpret_cast<const Vector*>(from + at);
    for (int i = 0; i < 4; ++i) sums[i] += line[i];
  }
  return static_cast<uint64_t>((sums[0] + sums[1] + sums[2] + sums[3])[0]);
}
#if defined(__x86_64__)
[[gnu::target("avx512f")]] uint64_t add_up_avx512(const std::byte* from, size_t bytes) {
  constexpr size_t kAhead = 4096;
  __m512i sums[4];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (size_t at = 0; at + 256 <= bytes; at += 256) {
#pragma GCC unroll 4
    for (size_t s = 0; s < 4; ++s) {
      __builtin_prefetch(from + at + 64 * s + kAhead);
      sums[s] = _mm512_add_epi64(sums[s], _mm512_load_si512(from + at + 64 * s));
    }
  }
  const __m512i all =
      _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(all));
}
#endif

uint64_t add_up(const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  if (megamoe::cpu::current_isa() >= megamoe::cpu::Isa::Avx512) return add_up_avx512(from, bytes);
#endif
  return add_up_portable(from, bytes);
}

Work multiply([[maybe_unused]] bool pairs) {
  using megamoe::cpu::Isa;
  switch (megamoe::cpu::current_isa()) {
#if defined(__x86_64__)
    case Isa::Avx2:
      return avx2();
    case Isa::Avx512:
      return avx512();
    case Isa::Avx512Bf16:
      return pairs ? avx512bf16() : avx512();
    case Isa::Amx:
      return pairs ? amx() : avx512();
#endif
    default:
      return portable();
  }
}

}  // namespace

void Ceilings::Free::operator()(std::byte* data) const { munmap(data, kBytes); }

// In huge pages where the system gives them, as packed weights are.
Ceilings::Buffer Ceilings::buffer(int value) {
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  madvise(data, kBytes, MADV_HUGEPAGE);
  std::memset(data, value, kBytes);
  return Buffer(static_cast<std::byte*>(data));
}

// Each buffer is touched first by a thread of its own, so that they spread over NUMA nodes.
Ceilings::Ceilings(Clock clock, int threads)
    : clock_(clock), pool_(threads), from_(static_cast<size_t>(threads)), to_(buffer(2)) {
  together_ns([this](size_t i) { from_[i] = buffer(1); });
}

double Ceilings::together_ns(const std::function<void(size_t)>& work) {
  std::latch all_here(threads());
  std::vector<uint64_t> elapsed_ns(static_cast<size_t>(threads()));
  // Nobody goes on before all have an index: each thread takes one.
  pool_.parallel_for(threads(), [&](int thread) {
    all_here.arrive_and_wait();
    const auto i = static_cast<size_t>(thread);
    const uint64_t start = clock_.now_ns();
    work(i);
    elapsed_ns[i] = clock_.now_ns() - start;
  });
  return static_cast<double>(*std::max_element(elapsed_ns.begin(), elapsed_ns.end()));
}

double Ceilings::read_gbps() {
  const double elapsed_ns =
      together_ns([this](size_t i) { sink_ += add_up(from_[i].get(), kBytes); });
  return static_cast<double>(kBytes) * threads() / elapsed_ns;
}

double Ceilings::copy_gbps() {
  const uint64_t start = clock_.now_ns();
  std::memcpy(to_.get(), from_[0].get(), kBytes);
  asm volatile("" : : "r"(to_.get()) : "memory");
  return 2.0 * static_cast<double>(kBytes) / static_cast<double>(clock_.now_ns() - start);
}

double Ceilings::peak_gflops(bool pairs) {
  std::vector<double> flops(static_cast<size_t>(threads()));
  const double elapsed_ns = together_ns([&](size_t i) {
    const Work work = multiply(pairs);
    sink_ += static_cast<uint64_t>(work.checksum);
    flops[i] = work.flops;
  });
  return flops[0] * threads() / elapsed_ns;
}

}  // namespace bench
