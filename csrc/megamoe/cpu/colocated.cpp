#include "megamoe/cpu/colocated.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "megamoe/cpu/row_codec.h"
#include "megamoe/cpu/rows_in_place.h"
#include "megamoe/errors.h"
#include "megamoe/layout.h"

namespace megamoe::cpu {
namespace {

// Bounds the returned rows, one per slot, however long the prompt.
constexpr int kChunkTokens = 1024;

struct Release {
  std::atomic<bool>& busy;
  ~Release() { busy.store(false, std::memory_order_release); }
};

}  // namespace

ColocatedExperts::ColocatedExperts(int moe_layers, const std::vector<int32_t>& expert_ids,
                                   int hidden, int width, WeightType type)
    : bank_(moe_layers, expert_ids, hidden, width, type) {
  const auto largest = std::max_element(expert_ids.begin(), expert_ids.end());
  owned_index_ = bank_.owned_index(largest == expert_ids.end() ? 0 : *largest + 1);
}

void ColocatedExperts::check_ids(int layer, const Batch& batch) const {
  const int experts = static_cast<int>(owned_index_.size());
  for (int64_t i = 0; i < int64_t{batch.tokens} * batch.top_k; ++i) {
    const int32_t id = batch.ids[i];
    if (id == -1) continue;
    if (id >= 0 && id < experts && owned_index_[static_cast<size_t>(id)] >= 0) continue;
    throw BadExpertId("MoE layer " + std::to_string(layer) + ", token " +
                      std::to_string(i / batch.top_k) + ": expert id " + std::to_string(id) +
                      " is not held by this rank");
  }
}

void ColocatedExperts::forward(Pool& pool, int layer, const Batch& batch) {
  if (busy_.exchange(true, std::memory_order_acquire)) {
    throw std::logic_error("two threads called forward of the same Experts at the same time");
  }
  const Release release{busy_};
  check_ids(layer, batch);
  for (int first = 0; first < batch.tokens; first += kChunkTokens) {
    Batch chunk = batch;
    chunk.tokens = std::min(kChunkTokens, batch.tokens - first);
    chunk.x += batch.x_stride * first;
    chunk.out += batch.out_stride * first;
    chunk.ids += int64_t{first} * batch.top_k;
    chunk.weights += int64_t{first} * batch.top_k;
    const bool last = first + chunk.tokens == batch.tokens;
    forward_chunk(pool, layer, last ? (layer + 1) % bank_.moe_layers() : layer, chunk);
  }
}

void ColocatedExperts::forward_chunk(Pool& pool, int layer, int next_layer, const Batch& batch) {
  const int top_k = batch.top_k;
  const int hidden = bank_.hidden();
  schedule_.build({{batch.ids, batch.tokens, owned_index_.data()}}, top_k,
                  static_cast<int>(owned_index_.size()), bank_.owned());
  const auto slots = static_cast<size_t>(batch.tokens) * static_cast<size_t>(top_k);
  float* returned = returned_.reserve(slots * static_cast<size_t>(hidden));
  const RowCodec& codec = row_codec();
  const RowsInPlace rows(hidden, [&](int32_t i) {
    return batch.x + batch.x_stride * schedule_.rows()[static_cast<size_t>(i)].token;
  });
  bank_.compute(pool, layer, next_layer, schedule_, rows, scratch_,
                [&](int copy, const float* values, int first, int columns) {
                  const RoutedCopy& routed = schedule_.copies()[static_cast<size_t>(copy)];
                  const int token = schedule_.rows()[static_cast<size_t>(routed.row)].token;
                  const int64_t slot = int64_t{token} * top_k + routed.slot;
                  codec.scale_f32(values, batch.weights[slot], columns,
                                  returned + slot * hidden + first);
                });
  for (int token = 0; token < batch.tokens; ++token) {
    const std::byte* chosen[kMaxTopK];
    int count = 0;
    for (int slot = 0; slot < top_k; ++slot) {
      const int64_t at = int64_t{token} * top_k + slot;
      if (batch.ids[at] >= 0)
        chosen[count++] = reinterpret_cast<const std::byte*>(returned + at * hidden);
    }
    codec.sum_f32(chosen, count, hidden, batch.out + batch.out_stride * token);
  }
}

}  // namespace megamoe::cpu
