// Decode and extend attention over a paged cache.
#pragma once

#include <cstdint>

#include "attention/kv_cache.h"
#include "attention/rows.h"
#include "megamoe/cpu/pool.h"

namespace attention {

struct PagedQueries {
  Rows<const float> q;        // [n, heads * head_dim]
  const int32_t* row_slot;    // [n]
  const int32_t* row_length;  // [n], positions the row attends to
  Rows<const int32_t> page_table;
  float scale;
  Rows<float> out;  // [n, heads * head_dim]
  Rows<float> lse;  // [n, heads]
};

// Throws std::invalid_argument, naming the row, for a slot, length or page id out of range.
void paged_attention(megamoe::cpu::Pool& pool, const KvCache& cache, int layer,
                     const PagedQueries& queries);

// Merges the partial (out_b, lse_b) into (out_a, lse_a), both over the same queries. The vector of
// an empty shard (lse = -infinity) is not read; two empty shards leave out = 0.
void merge_attention(const Rows<float>& out_a, const Rows<float>& lse_a,
                     const Rows<const float>& out_b, const Rows<const float>& lse_b, int head_dim);

}  // namespace attention
