// An attention rank's half of the boundary.
//
//   dispatch(q)   write IN; PUB = q
//   combine(q)    await DONE[f] >= q of every FFN rank f; reduce OUT
//
// On one lane dispatch(q + 1) follows combine(q), which saw DONE = q from every f: nobody reads
// IN(q) any more, and OUT(q) has been read before PUB = q + 1 lets anyone write OUT(q + 1).
#pragma once

#include <cstdint>

#include "megamoe/memory.h"

namespace megamoe {

template <class Target>
class AttentionSide {
 public:
  AttentionSide(const Memory& memory, int rank, uint64_t deadline_ns)
      : memory_(memory), rank_(rank), deadline_ns_(deadline_ns) {}

  // x [tokens][hidden] with a row stride in elements; ids and weights [tokens][top_k].
  void dispatch(uint64_t step, int layer, int lane, const float* x, int64_t x_stride,
                const int32_t* ids, const float* weights, int tokens) {
    const Shape& shape = memory_.layout.shape;
    check_ids(ids, layer, tokens);
    for (int token = 0; token < tokens; ++token) {
      Target::encode_row(shape.wire, x + x_stride * token, shape.hidden,
                         memory_.row(rank_, lane, token), memory_.scales(rank_, lane, token));
    }
    const auto routes = static_cast<size_t>(tokens) * static_cast<size_t>(shape.top_k);
    __builtin_memcpy(memory_.ids(rank_, lane), ids, routes * sizeof(int32_t));
    __builtin_memcpy(memory_.weights(rank_, lane), weights, routes * sizeof(float));
    memory_.count(rank_, lane) = tokens;
    sent_[lane] = tokens;
    bytes_out_ +=
        static_cast<uint64_t>(tokens) *
        (memory_.layout.row_bytes() + static_cast<uint64_t>(memory_.layout.row_scales()) * 4 +
         static_cast<uint64_t>(shape.top_k) * 8);
    publish<Target>(memory_.pub(rank_, lane), sequence(step, layer));
  }

  // out [tokens of the dispatch][hidden]: the sum over each token's slots, ascending.
  void combine(uint64_t step, int layer, int lane, float* out, int64_t out_stride) {
    const Shape& shape = memory_.layout.shape;
    for (int f = 0; f < shape.ffn_ranks; ++f) {
      expect<Target>(memory_.done(rank_, lane, f), sequence(step, layer), memory_, deadline_ns_,
                     wait_ns_, rank_, "DONE", shape.attention_ranks + f);
    }
    const int32_t* ids = memory_.ids(rank_, lane);
    uint64_t rows = 0;
    for (int token = 0; token < sent_[lane]; ++token, ids += shape.top_k) {
      const std::byte* chosen[kMaxTopK];
      int count = 0;
      for (int slot = 0; slot < shape.top_k; ++slot) {
        if (ids[slot] >= 0) chosen[count++] = memory_.out(rank_, lane, token, slot);
      }
      Target::sum_rows(shape.wire, chosen, count, shape.hidden, out + out_stride * token);
      rows += static_cast<uint64_t>(count);
    }
    bytes_back_ += rows * memory_.layout.out_row_bytes();
  }

  int tokens_sent(int lane) const { return sent_[lane]; }
  uint64_t wait_ns() const { return wait_ns_; }
  uint64_t bytes_out() const { return bytes_out_; }
  uint64_t bytes_back() const { return bytes_back_; }

 private:
  uint64_t sequence(uint64_t step, int layer) const {
    return sequence_number(0, step, static_cast<uint64_t>(memory_.layout.shape.moe_layers),
                           static_cast<uint64_t>(layer));
  }

  void check_ids(const int32_t* ids, int layer, int tokens) const {
    const Shape& shape = memory_.layout.shape;
    for (int i = 0; i < tokens * shape.top_k; ++i) {
      if (ids[i] < -1 || ids[i] >= shape.experts) {
        Target::bad_expert(rank_, layer, i / shape.top_k, ids[i], shape.experts);
      }
    }
  }

  Memory memory_;
  int rank_;
  uint64_t deadline_ns_;
  int sent_[kMaxLanes] = {};
  uint64_t wait_ns_ = 0;
  uint64_t bytes_out_ = 0;
  uint64_t bytes_back_ = 0;
};

}  // namespace megamoe
