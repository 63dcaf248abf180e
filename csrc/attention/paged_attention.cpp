#include "attention/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/kernels.h"

namespace attention {
namespace {

constexpr int kGroupRows = 16;     // consecutive rows of a slot that share one read of the cache
constexpr int kGroupQueries = 64;  // bounds the working set of a sweep to the first-level caches
constexpr int64_t kInlineMultiplies = 1 << 18;  // less work than waking a thread takes

// Rows [first, first + count) of one slot.
struct RowGroup {
  int first;
  int count;
};

[[noreturn]] void bad_row(const char* name, int row, int64_t value, int64_t limit) {
  throw std::invalid_argument(std::string(name) + "[" + std::to_string(row) +
                              "] = " + std::to_string(value) + " is outside [0, " +
                              std::to_string(limit) + "]");
}

void check_rows(const KvCache& cache, const PagedQueries& queries) {
  const int64_t reach = int64_t{queries.page_table.width} * cache.shape().page_size;
  for (int i = 0; i < queries.q.n; ++i) {
    if (queries.row_length[i] < 0 || queries.row_length[i] > reach) {
      bad_row("row_length", i, queries.row_length[i], reach);
    }
    if (queries.row_slot[i] < 0 || queries.row_slot[i] >= queries.page_table.n) {
      bad_row("row_slot", i, queries.row_slot[i], int64_t{queries.page_table.n} - 1);
    }
  }
}

std::vector<RowGroup> group_rows(const PagedQueries& queries, int most) {
  std::vector<RowGroup> groups;
  groups.reserve(queries.q.n);
  for (int i = 0; i < queries.q.n; ++i) {
    const bool joins = !groups.empty() && groups.back().count < most &&
                       queries.row_slot[i] == queries.row_slot[i - 1];
    if (joins) {
      ++groups.back().count;
    } else {
      groups.push_back({i, 1});
    }
  }
  return groups;
}

Sweep sweep_of(const KvCache& cache, int layer, const PagedQueries& queries, int heads_per_kv,
               const RowGroup& rows, int kv_head) {
  const KvCache::Shape& shape = cache.shape();
  const int64_t first_head = int64_t{kv_head} * heads_per_kv;
  Sweep sweep;
  sweep.keys = cache.keys(layer, kv_head);
  sweep.values = cache.values(layer, kv_head);
  sweep.bf16 = shape.type == megamoe::cpu::WeightType::BF16;
  sweep.head_dim = shape.head_dim;
  sweep.padded_dim = cache.padded_dim();
  sweep.page_stride = cache.page_stride();
  sweep.page_size = shape.page_size;
  sweep.pages = shape.pages;
  sweep.page_table = queries.page_table.row(queries.row_slot[rows.first]);
  sweep.rows = rows.count;
  sweep.group = heads_per_kv;
  sweep.lengths = queries.row_length + rows.first;
  sweep.scale = queries.scale;
  sweep.q = queries.q.row(rows.first) + first_head * shape.head_dim;
  sweep.q_stride = queries.q.stride;
  sweep.out = queries.out.row(rows.first) + first_head * shape.head_dim;
  sweep.out_stride = queries.out.stride;
  sweep.lse = queries.lse.row(rows.first) + first_head;
  sweep.lse_stride = queries.lse.stride;
  return sweep;
}

}  // namespace

void paged_attention(megamoe::cpu::Pool& pool, const KvCache& cache, int layer,
                     const PagedQueries& queries) {
  cache.check_layer(layer);
  check_rows(cache, queries);
  const KvCache::Shape& shape = cache.shape();
  const int heads_per_kv = queries.lse.width / shape.kv_heads;
  const int most = std::clamp(kGroupQueries / heads_per_kv, 1, kGroupRows);
  const std::vector<RowGroup> groups = group_rows(queries, most);
  const Kernels& table = kernels();
  std::atomic<int64_t> bad_page{-1};  // first row of the group << 32 | position
  const auto work = [&](int task) {
    const RowGroup& rows = groups[task / shape.kv_heads];
    const int bad =
        table.sweep(sweep_of(cache, layer, queries, heads_per_kv, rows, task % shape.kv_heads));
    if (bad >= 0) bad_page.store((int64_t{rows.first} << 32) | bad, std::memory_order_relaxed);
  };
  int64_t positions = 0;
  for (int i = 0; i < queries.q.n; ++i) positions += queries.row_length[i];
  const int tasks = static_cast<int>(groups.size()) * shape.kv_heads;
  if (positions * queries.q.width < kInlineMultiplies) {
    for (int task = 0; task < tasks; ++task) work(task);
  } else {
    pool.parallel_for(tasks, work);
  }
  if (bad_page.load() >= 0) {
    const int slot = queries.row_slot[bad_page.load() >> 32];
    const int page = static_cast<int>(bad_page.load() & 0xffffffff) / shape.page_size;
    throw std::invalid_argument("page_table[" + std::to_string(slot) + ", " + std::to_string(page) +
                                "] = " + std::to_string(queries.page_table.row(slot)[page]) +
                                " is outside [0, " + std::to_string(shape.pages) + ")");
  }
}

void merge_attention(const Rows<float>& out_a, const Rows<float>& lse_a,
                     const Rows<const float>& out_b, const Rows<const float>& lse_b, int head_dim) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  const Kernels& table = kernels();
  for (int i = 0; i < lse_a.n; ++i) {
    for (int head = 0; head < lse_a.width; ++head) {
      float* a = out_a.row(i) + int64_t{head_dim} * head;
      const float* b = out_b.row(i) + int64_t{head_dim} * head;
      float& lse = lse_a.row(i)[head];
      const float other = lse_b.row(i)[head];
      if (lse == kEmpty && other == kEmpty) {
        std::fill_n(a, head_dim, 0.0f);
      } else if (lse == kEmpty) {
        std::copy_n(b, head_dim, a);
        lse = other;
      } else if (other != kEmpty) {
        const double most = std::max(lse, other);
        const double share_a = std::exp(lse - most);
        const double share_b = std::exp(other - most);
        const double total = share_a + share_b;
        table.mix(static_cast<float>(share_a / total), a, static_cast<float>(share_b / total), b, a,
                  head_dim);
        lse = static_cast<float>(most + std::log(total));
      }
    }
  }
}

}  // namespace attention
