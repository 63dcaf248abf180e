// Register tiles of paged attention: a few queries against a few positions.
// Included once per translation unit, inside the target region, after vector_math.h.
//
// A score is one chain over vectors of the head, then a fixed tree over lanes; an output element is
// one chain over ascending positions. Neither depends on the tile's shape.
#pragma once

namespace attention {
namespace {

constexpr int kBlock = 64;  // positions; a multiple of every tile's
constexpr int kTileQueries = simd::kLanes / 4;
constexpr int kChunkVectors = 4;  // of an output row, kept in registers at a time

inline f32 load_element(const float* p) { return simd::load(p); }
inline f32 load_element(const uint16_t* p) { return simd::load_bf16(p); }

// Positions a tile of Q queries scores at once: sums fit one sum_rows, pointers fit registers.
template <int Q>
constexpr int tile_positions() {
  return Q == 1 ? (simd::kLanes < 8 ? simd::kLanes : 8) : Q == 2 ? simd::kLanes / 2 : 4;
}

// scores[i * kBlock + j] = scale * q[i] . keys[j] for i < Q, j < count rounded up to the tile;
// keys[] is readable that far.
template <int Q, class Element>
inline void score(const Element* const* keys, int count, const float* q, int padded_dim,
                  float scale, float* scores) {
  constexpr int kPositions = tile_positions<Q>();
  for (int j0 = 0; j0 < count; j0 += kPositions) {
    const Element* rows[kPositions];
#pragma GCC unroll 8
    for (int j = 0; j < kPositions; ++j) rows[j] = keys[j0 + j];
    f32 sums[simd::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < simd::kLanes; ++i) sums[i] = simd::set1(0.0f);
    for (int d = 0; d < padded_dim; d += simd::kLanes) {
      f32 part[Q];
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) part[i] = simd::load(q + i * padded_dim + d);
#pragma GCC unroll 8
      for (int j = 0; j < kPositions; ++j) {
        const f32 key = load_element(rows[j] + d);
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          sums[i * kPositions + j] = simd::fma(part[i], key, sums[i * kPositions + j]);
        }
      }
    }
    float found[simd::kLanes];
    simd::store(found, simd::mul(simd::sum_rows(sums), simd::set1(scale)));
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      __builtin_memcpy(scores + i * kBlock + j0, found + i * kPositions,
                       kPositions * sizeof(float));
    }
  }
}

// sums[i] = sums[i] * shrink[i] + sum over j in [begin, end) of weights[i * kBlock + j] * values[j]
// for i < Q, over NV vectors from element d.
template <int Q, int NV, class Element>
inline void accumulate(const Element* const* values, int begin, int end, const float* weights,
                       const float* shrink, int padded_dim, int d, float* sums) {
  f32 chains[Q][NV];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const f32 before = simd::load(sums + i * padded_dim + d + v * simd::kLanes);
      chains[i][v] = simd::mul(before, simd::set1(shrink[i]));
    }
  }
  for (int j = begin; j < end; ++j) {
    const Element* row = values[j] + d;
    f32 value[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) value[v] = load_element(row + v * simd::kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      const f32 weight = simd::set1(weights[i * kBlock + j]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) chains[i][v] = simd::fma(weight, value[v], chains[i][v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      simd::store(sums + i * padded_dim + d + v * simd::kLanes, chains[i][v]);
    }
  }
}

template <int Q, class Element>
inline void accumulate_rows(const Element* const* values, int begin, int end, const float* weights,
                            const float* shrink, int padded_dim, float* sums) {
  constexpr int kChunk = kChunkVectors * simd::kLanes;
  int d = 0;
  for (; d + kChunk <= padded_dim; d += kChunk) {
    accumulate<Q, kChunkVectors>(values, begin, end, weights, shrink, padded_dim, d, sums);
  }
  for (; d < padded_dim; d += simd::kLanes) {
    accumulate<Q, 1>(values, begin, end, weights, shrink, padded_dim, d, sums);
  }
}

// One query's running softmax; the sum stays in lanes until the end.
struct Running {
  f32 sums;
  float max;
};

// Turns scores into weights; returns the factor by which earlier sums shrink. Lanes past `valid`
// weigh nothing.
inline float soften(float* scores, int valid, Running& running) {
  const int padded = (valid + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
  for (int j = valid; j < padded; ++j) scores[j] = -__builtin_inff();
  f32 largest = simd::set1(running.max);
  for (int j = 0; j < padded; j += simd::kLanes) {
    largest = simd::max(largest, simd::load(scores + j));
  }
  const float max = simd::max_of(largest);
  float shrink = 1.0f;
  if (max != running.max) {
    float lanes[simd::kLanes];
    simd::store(lanes, exp(simd::set1(running.max - max)));
    shrink = lanes[0];
    running.sums = simd::mul(running.sums, simd::set1(shrink));
    running.max = max;
  }
  for (int j = 0; j < padded; j += simd::kLanes) {
    const f32 weight = exp(simd::sub(simd::load(scores + j), simd::set1(max)));
    simd::store(scores + j, weight);
    running.sums = simd::add(running.sums, weight);
  }
  return shrink;
}

}  // namespace
}  // namespace attention
