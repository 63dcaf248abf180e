// Paged attention of a few queries against one key-value head: online softmax by blocks.
// Included once per translation unit, inside the target region, after vector_math.h.
//
//   positions  0 ........ 31 | 32 ....... 63 | ...      blocks, whatever the page size
//   per block  gather rows (bf16 to float32) -> scores -> running max, sum -> weighted values
//
// A query touches only its own valid positions of a block, in ascending order, so neither the other
// queries of the call nor the batch change its result.
#pragma once

namespace attention {
namespace {

using megamoe::cpu::Scratch;

constexpr int kBlock = 32;        // positions; a multiple of every lane count
constexpr int kChunkVectors = 4;  // of an output row, accumulated in registers at a time

// One query's running softmax.
struct Running {
  float max;
  float sum;
};

// Float32 rows of up to kBlock positions: pointers into the cache, or widened copies.
struct Block {
  const float* keys[kBlock];
  const float* values[kBlock];
  float* widened;  // [2][kBlock][padded_dim], used for bf16
};

inline void widen(const uint16_t* from, float* to, int count) {
  for (int i = 0; i < count; i += simd::kLanes) simd::store(to + i, simd::load_bf16(from + i));
}

// Returns -1, or the position whose page id is bad.
inline int gather(const Sweep& s, int first, int count, Block& block) {
  int page = first / s.page_size;
  int offset = first % s.page_size;
  for (int j = 0; j < count; ++j) {
    const int32_t id = s.page_table[page];
    if (id < 0 || id >= s.pages) return first + j;
    const int64_t at = s.page_stride * id + int64_t{s.padded_dim} * offset;
    if (s.bf16) {
      float* key = block.widened + s.padded_dim * j;
      float* value = block.widened + s.padded_dim * (kBlock + j);
      widen(static_cast<const uint16_t*>(s.keys) + at, key, s.padded_dim);
      widen(static_cast<const uint16_t*>(s.values) + at, value, s.padded_dim);
      block.keys[j] = key;
      block.values[j] = value;
    } else {
      block.keys[j] = static_cast<const float*>(s.keys) + at;
      block.values[j] = static_cast<const float*>(s.values) + at;
    }
    if (++offset == s.page_size) {
      offset = 0;
      ++page;
    }
  }
  return -1;
}

// scores[j] = scale * q . key[j] for j < valid, -infinity up to the next multiple of the lanes.
inline void score(const Sweep& s, const Block& block, const float* q, int valid, float* scores) {
  for (int j0 = 0; j0 < valid; j0 += simd::kLanes) {
    const float* keys[simd::kLanes];
    for (int j = 0; j < simd::kLanes; ++j) keys[j] = block.keys[j0 + j < valid ? j0 + j : j0];
    f32 sums[simd::kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < simd::kLanes; ++j) sums[j] = simd::set1(0.0f);
    for (int d = 0; d < s.padded_dim; d += simd::kLanes) {
      const f32 part = simd::load(q + d);
#pragma GCC unroll 16
      for (int j = 0; j < simd::kLanes; ++j) {
        sums[j] = simd::fma(part, simd::load(keys[j] + d), sums[j]);
      }
    }
    simd::store(scores + j0, simd::mul(simd::sum_rows(sums), simd::set1(s.scale)));
    for (int j = valid - j0; j < simd::kLanes; ++j) scores[j0 + j] = -__builtin_inff();
  }
}

// Turns scores into weights; returns the factor by which earlier sums shrink.
inline float soften(float* scores, int valid, Running& running) {
  f32 largest = simd::set1(running.max);
  for (int j = 0; j < valid; j += simd::kLanes) {
    largest = simd::max(largest, simd::load(scores + j));
  }
  const float max = simd::max_of(largest);
  f32 total = simd::set1(0.0f);
  for (int j = 0; j < valid; j += simd::kLanes) {
    const f32 weight = exp(simd::sub(simd::load(scores + j), simd::set1(max)));
    simd::store(scores + j, weight);
    total = simd::add(total, weight);
  }
  float shrink[simd::kLanes];
  simd::store(shrink, exp(simd::set1(running.max - max)));
  running.sum = running.sum * shrink[0] + simd::sum(total);
  running.max = max;
  return shrink[0];
}

// sums = sums * shrink + weights . values, over NV vectors from element d; even and odd positions
// make two chains, which hides the latency of the multiply-add.
template <int NV>
inline void accumulate(const Block& block, const float* weights, int valid, float shrink, int d,
                       float* sums) {
  f32 even[NV];
  f32 odd[NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    even[v] = simd::mul(simd::load(sums + d + v * simd::kLanes), simd::set1(shrink));
    odd[v] = simd::set1(0.0f);
  }
  int j = 0;
  for (; j + 2 <= valid; j += 2) {
    const f32 w0 = simd::set1(weights[j]);
    const f32 w1 = simd::set1(weights[j + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      const int at = d + v * simd::kLanes;
      even[v] = simd::fma(w0, simd::load(block.values[j] + at), even[v]);
      odd[v] = simd::fma(w1, simd::load(block.values[j + 1] + at), odd[v]);
    }
  }
  if (j < valid) {
    const f32 w = simd::set1(weights[j]);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      even[v] = simd::fma(w, simd::load(block.values[j] + d + v * simd::kLanes), even[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    simd::store(sums + d + v * simd::kLanes, simd::add(even[v], odd[v]));
  }
}

inline void accumulate_row(const Sweep& s, const Block& block, const float* weights, int valid,
                           float shrink, float* sums) {
  constexpr int kChunk = kChunkVectors * simd::kLanes;
  int d = 0;
  for (; d + kChunk <= s.padded_dim; d += kChunk) {
    accumulate<kChunkVectors>(block, weights, valid, shrink, d, sums);
  }
  for (; d < s.padded_dim; d += simd::kLanes) {
    accumulate<1>(block, weights, valid, shrink, d, sums);
  }
}

inline void finish(const Sweep& s, int row, int head, const Running& running, const float* sums) {
  float* out = s.out + s.out_stride * row + int64_t{s.head_dim} * head;
  const bool empty = s.lengths[row] <= 0;
  const f32 inverse = simd::set1(empty ? 0.0f : 1.0f / running.sum);
  for_vectors(s.head_dim, [&](int d, int count) {
    store_lanes(out + d, simd::mul(simd::load(sums + d), inverse), count);
  });
  s.lse[s.lse_stride * row + head] =
      empty ? -__builtin_inff() : running.max + __builtin_logf(running.sum);
}

int sweep(const Sweep& s) {
  const int queries = s.rows * s.group;
  const size_t width = static_cast<size_t>(s.padded_dim);
  const Scratch<float> q(width * queries);
  const Scratch<float> sums(width * queries);
  const Scratch<Running> running(queries);
  const Scratch<float> widened(s.bf16 ? 2 * kBlock * width : 1);
  int longest = 0;
  for (int i = 0; i < queries; ++i) {
    const float* from = s.q + s.q_stride * (i / s.group) + int64_t{s.head_dim} * (i % s.group);
    for (int d = 0; d < s.padded_dim; ++d) {
      q[width * i + d] = d < s.head_dim ? from[d] : 0.0f;
      sums[width * i + d] = 0.0f;
    }
    running[i] = {-__builtin_inff(), 0.0f};
    if (s.lengths[i / s.group] > longest) longest = s.lengths[i / s.group];
  }
  Block block;
  block.widened = widened.get();
  for (int first = 0; first < longest; first += kBlock) {
    const int count = longest - first < kBlock ? longest - first : kBlock;
    const int bad = gather(s, first, count, block);
    if (bad >= 0) return bad;
    for (int i = 0; i < queries; ++i) {
      const int left = s.lengths[i / s.group] - first;
      if (left <= 0) continue;
      const int valid = left < kBlock ? left : kBlock;
      float scores[kBlock];
      score(s, block, q.get() + width * i, valid, scores);
      const float shrink = soften(scores, valid, running[i]);
      accumulate_row(s, block, scores, valid, shrink, sums.get() + width * i);
    }
  }
  for (int i = 0; i < queries; ++i) {
    finish(s, i / s.group, i % s.group, running[i], sums.get() + width * i);
  }
  return -1;
}

}  // namespace
}  // namespace attention
