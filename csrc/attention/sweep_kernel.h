// Paged attention of a few queries against one key-value head: online softmax by blocks.
// Included once per translation unit, inside the target region, after sweep_tiles.h.
//
//   positions  0 ........ 63 | 64 ...... 127 | ...      blocks, whatever the page size
//   per block  find rows -> scores -> running max and sum -> weighted values
//
// A query uses only its own valid positions of a block, in ascending order, so neither the other
// queries of the call nor the batch change its result.
#pragma once

namespace attention {
namespace {

using megamoe::cpu::Scratch;

// From this many queries on, bf16 rows are widened once instead of in every tile.
constexpr int kWidenQueries = 2 * kTileQueries + 1;

template <class Element>
struct Block {
  // Padded to whole tiles with a readable row.
  const Element* keys[kBlock];
  const Element* values[kBlock];
};

// The queries, in rows of padded_dim, and what has been summed for them.
struct State {
  State(int queries, size_t width) : q(queries * width), sums(queries * width), running(queries) {}
  Scratch<float> q;
  Scratch<float> sums;
  Scratch<Running> running;
};

// Returns -1, or the position whose page id is bad.
template <class Element>
inline int find_rows(const Sweep& s, int first, int count, Block<Element>& block) {
  const Element* keys = static_cast<const Element*>(s.keys);
  const Element* values = static_cast<const Element*>(s.values);
  int page = first / s.page_size;
  int offset = first % s.page_size;
  for (int j = 0; j < count; ++page, offset = 0) {
    const int32_t id = s.page_table[page];
    if (id < 0 || id >= s.pages) return first + j;
    int64_t at = s.page_stride * id + int64_t{s.padded_dim} * offset;
    const int end = count - j < s.page_size - offset ? count : j + s.page_size - offset;
    for (; j < end; ++j, at += s.padded_dim) {
      block.keys[j] = keys + at;
      block.values[j] = values + at;
    }
  }
  for (int j = count; j % 8 != 0; ++j) {
    block.keys[j] = block.keys[0];
    block.values[j] = block.values[0];
  }
  return -1;
}

// Pages lie anywhere, so the hardware does not see the next block coming.
template <class Element>
inline void prefetch(const Block<Element>& block, int count, int padded_dim) {
  constexpr int kLine = 64 / sizeof(Element);
  for (int j = 0; j < count; ++j) {
    for (int d = 0; d < padded_dim; d += kLine) {
      __builtin_prefetch(block.keys[j] + d, 0, 2);
      __builtin_prefetch(block.values[j] + d, 0, 2);
    }
  }
}

template <int Q, class Element>
inline void attend_tile(const Sweep& s, const Block<Element>& block, int first, int query,
                        State& state) {
  const size_t at = static_cast<size_t>(s.padded_dim) * query;
  float scores[Q * kBlock];
  float shrink[Q];
  int valid[Q];
  int most = 0;
  int least = kBlock;
  for (int i = 0; i < Q; ++i) {
    const int left = s.lengths[(query + i) / s.group] - first;
    valid[i] = left < 0 ? 0 : left < kBlock ? left : kBlock;
    most = valid[i] > most ? valid[i] : most;
    least = valid[i] < least ? valid[i] : least;
  }
  score<Q>(block.keys, most, state.q.get() + at, s.padded_dim, s.scale, scores);
  for (int i = 0; i < Q; ++i) {
    shrink[i] = valid[i] > 0 ? soften(scores + i * kBlock, valid[i], state.running[query + i]) : 1;
  }
  float* sums = state.sums.get() + at;
  accumulate_rows<Q>(block.values, 0, least, scores, shrink, s.padded_dim, sums);
  const float keep = 1.0f;
  for (int i = 0; i < Q; ++i) {
    if (valid[i] == least) continue;
    accumulate_rows<1>(block.values, least, valid[i], scores + i * kBlock, &keep, s.padded_dim,
                       sums + static_cast<size_t>(s.padded_dim) * i);
  }
}

template <int Q, class Element>
inline void attend_tiles(const Sweep& s, const Block<Element>& block, int first, int query,
                         State& state) {
  const int queries = s.rows * s.group;
  for (; query + Q <= queries; query += Q) attend_tile<Q>(s, block, first, query, state);
  if constexpr (Q > 1) {
    if (query < queries) attend_tiles<Q - 1>(s, block, first, query, state);
  }
}

inline void widen(const uint16_t* from, float* to, int count) {
  for (int i = 0; i < count; i += simd::kLanes) simd::store(to + i, simd::load_bf16(from + i));
}

inline void widen_block(const Sweep& s, const Block<uint16_t>& block, int count, float* scratch,
                        Block<float>& wide) {
  for (int j = 0; j < (count + 7) / 8 * 8; ++j) {
    float* key = scratch + static_cast<size_t>(s.padded_dim) * j;
    float* value = key + static_cast<size_t>(s.padded_dim) * kBlock;
    widen(block.keys[j], key, s.padded_dim);
    widen(block.values[j], value, s.padded_dim);
    wide.keys[j] = key;
    wide.values[j] = value;
  }
}

template <class Element>
inline int attend_blocks(const Sweep& s, int longest, State& state) {
  const bool widens = sizeof(Element) == 2 && s.rows * s.group >= kWidenQueries;
  const Scratch<float> scratch(widens ? size_t{2} * kBlock * s.padded_dim : 0);
  Block<Element> blocks[2];
  Block<float> wide;
  int count = longest < kBlock ? longest : kBlock;
  int bad = find_rows(s, 0, count, blocks[0]);
  for (int first = 0, turn = 0; first < longest && bad < 0; first += kBlock, turn ^= 1) {
    const Block<Element>& block = blocks[turn];
    const int now = count;
    const int next = first + kBlock;
    if (next < longest) {
      count = longest - next < kBlock ? longest - next : kBlock;
      bad = find_rows(s, next, count, blocks[turn ^ 1]);
      if (bad < 0) prefetch(blocks[turn ^ 1], count, s.padded_dim);
    }
    if constexpr (sizeof(Element) == 2) {
      if (widens) {
        widen_block(s, block, now, scratch.get(), wide);
        attend_tiles<kTileQueries>(s, wide, first, 0, state);
        continue;
      }
    }
    attend_tiles<kTileQueries>(s, block, first, 0, state);
  }
  return bad;
}

inline void finish(const Sweep& s, int query, const State& state) {
  const int row = query / s.group;
  const int head = query % s.group;
  const float* sums = state.sums.get() + static_cast<size_t>(s.padded_dim) * query;
  float* out = s.out + s.out_stride * row + int64_t{s.head_dim} * head;
  const bool empty = s.lengths[row] <= 0;
  const float total = simd::sum(state.running[query].sums);
  const f32 inverse = simd::set1(empty ? 0.0f : 1.0f / total);
  for_vectors(s.head_dim, [&](int d, int count) {
    store_lanes(out + d, simd::mul(simd::load(sums + d), inverse), count);
  });
  s.lse[s.lse_stride * row + head] =
      empty ? -__builtin_inff() : state.running[query].max + __builtin_logf(total);
}

int sweep(const Sweep& s) {
  const int queries = s.rows * s.group;
  const size_t width = static_cast<size_t>(s.padded_dim);
  State state(queries, width);
  int longest = 0;
  for (int i = 0; i < queries; ++i) {
    const float* from = s.q + s.q_stride * (i / s.group) + int64_t{s.head_dim} * (i % s.group);
    for (int d = 0; d < s.padded_dim; ++d) {
      state.q[width * i + d] = d < s.head_dim ? from[d] : 0.0f;
      state.sums[width * i + d] = 0.0f;
    }
    state.running[i] = {simd::set1(0.0f), -__builtin_inff()};
    if (s.lengths[i / s.group] > longest) longest = s.lengths[i / s.group];
  }
  const int bad =
      s.bf16 ? attend_blocks<uint16_t>(s, longest, state) : attend_blocks<float>(s, longest, state);
  if (bad >= 0) return bad;
  for (int i = 0; i < queries; ++i) finish(s, i, state);
  return -1;
}

}  // namespace
}  // namespace attention
