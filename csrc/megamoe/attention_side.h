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
  // What a lane has sent and not yet combined.
  struct Away {
    uint64_t step;
    int layer;
    int tokens;
  };

  MEGAMOE_HOST_DEVICE AttentionSide(const Memory& memory, int rank, uint64_t deadline_ns,
                                    typename Target::Failures failures = {})
      : memory_(memory), rank_(rank), deadline_ns_(deadline_ns), failures_(failures) {}

  // x [tokens][hidden] with a row stride in elements; ids and weights [tokens][top_k]. The lane
  // must not be away. False if a failure was reported instead of thrown.
  MEGAMOE_ROLE bool dispatch(uint64_t step, int layer, int lane, const float* x, int64_t x_stride,
                             const int32_t* ids, const float* weights, int tokens) {
    const Shape& shape = memory_.layout.shape;
    if (!Target::on_leader([&] { return check_ids(ids, layer, tokens); })) return false;
    for (int token = 0; token < tokens; ++token) {
      Target::encode_row(shape, x + x_stride * token, memory_.row(rank_, lane, token),
                         memory_.scales(rank_, lane, token));
    }
    int32_t* published_ids = memory_.ids(rank_, lane);
    float* published_weights = memory_.weights(rank_, lane);
    Target::for_each(int64_t{tokens} * shape.top_k, [&](int64_t i) {
      published_ids[i] = ids[i];
      published_weights[i] = weights[i];
    });
    if (Target::leader()) {
      memory_.count(rank_, lane) = tokens;
      lanes_[lane] = {true, {step, layer, tokens}};
    }
    publish<Target>(memory_.pub(rank_, lane), memory_.sequence(step, layer));
    return true;
  }

  // out [tokens of the dispatch][hidden]: the sum over each token's returned rows, by ascending
  // slot. The lane must be away. False as in dispatch.
  MEGAMOE_ROLE bool combine(int lane, float* out, int64_t out_stride) {
    const Shape& shape = memory_.layout.shape;
    const Away away = lanes_[lane].away;
    for (int f = 0; f < shape.ffn_ranks; ++f) {
      const WaitSite site{rank_,     WordName::Done, shape.attention_ranks + f,
                          away.step, away.layer,     lane};
      if (!expect<Target>(memory_.done(rank_, lane, f), memory_, deadline_ns_, wait_ns_, site,
                          failures_)) {
        return false;
      }
    }
    const int32_t* ids = memory_.ids(rank_, lane);
    for (int token = 0; token < away.tokens; ++token, ids += shape.top_k) {
      const std::byte* returned[kMaxTopK];
      Crossing crossing{0, 0, 0};
      for (int slot = 0; slot < shape.top_k; ++slot) {
        if (ids[slot] < 0) continue;
        const bool first = is_first_of_its_rank(ids, slot);
        ++crossing.copies;
        crossing.pulls += first;
        if (shape.return_mode == ReturnMode::Reduced && !first) continue;
        returned[crossing.returned++] = memory_.out(rank_, lane, token, slot);
      }
      Target::sum_rows(shape.wire, returned, crossing.returned, shape.hidden,
                       out + out_stride * token);
      if (Target::leader()) count_bytes(crossing);
    }
    if (Target::leader()) {
      bytes_out_ += static_cast<uint64_t>(shape.ffn_ranks) * sizeof(int32_t);  // the counts
      lanes_[lane].is_away = false;
    }
    return true;
  }

  // Null unless the lane is away.
  MEGAMOE_HOST_DEVICE const Away* away(int lane) const {
    return lanes_[lane].is_away ? &lanes_[lane].away : nullptr;
  }
  // Whether the lane's PUB is at this number or past it: DONE would look reached at once.
  MEGAMOE_ROLE bool published(uint64_t step, int layer, int lane) const {
    return reached(Target::load_acquire(memory_.pub(rank_, lane).value),
                   memory_.sequence(step, layer));
  }
  MEGAMOE_HOST_DEVICE uint64_t wait_ns() const { return wait_ns_; }
  // What the FFN ranks need of IN, once each, and what they wrote to OUT.
  MEGAMOE_HOST_DEVICE uint64_t bytes_out() const { return bytes_out_; }
  MEGAMOE_HOST_DEVICE uint64_t bytes_back() const { return bytes_back_; }

 private:
  struct Lane {
    bool is_away = false;
    Away away{};
  };

  MEGAMOE_ROLE bool check_ids(const int32_t* ids, int layer, int tokens) const {
    const Shape& shape = memory_.layout.shape;
    for (int64_t i = 0; i < int64_t{tokens} * shape.top_k; ++i) {
      if (ids[i] < -1 || ids[i] >= shape.experts) {
        failures_.bad_expert(rank_, layer, static_cast<int>(i / shape.top_k), ids[i],
                             shape.experts);
        return false;
      }
    }
    return true;
  }

  // Whether no earlier slot of the token goes to the same FFN rank.
  MEGAMOE_ROLE bool is_first_of_its_rank(const int32_t* ids, int slot) const {
    const int32_t* owner = memory_.owner(rank_);
    for (int before = 0; before < slot; ++before) {
      if (ids[before] >= 0 && owner[ids[before]] == owner[ids[slot]]) return false;
    }
    return true;
  }

  // What crosses for one token: a row to each FFN rank that serves one of its experts (which may
  // read it again for the next one, out of its cache), the routed copies, and the rows that come
  // back.
  struct Crossing {
    int pulls;
    int copies;
    int returned;
  };

  // Every FFN rank reads the ids.
  MEGAMOE_ROLE void count_bytes(const Crossing& crossing) {
    const Layout& layout = memory_.layout;
    const uint64_t id_bytes = static_cast<uint64_t>(layout.shape.top_k) * sizeof(int32_t);
    bytes_out_ +=
        static_cast<uint64_t>(crossing.pulls) * (layout.row_bytes() + layout.row_scale_bytes()) +
        static_cast<uint64_t>(layout.shape.ffn_ranks) * id_bytes +
        static_cast<uint64_t>(crossing.copies) * sizeof(float);
    bytes_back_ += static_cast<uint64_t>(crossing.returned) * layout.out_row_bytes();
  }

  Memory memory_;
  int rank_;
  uint64_t deadline_ns_;
  typename Target::Failures failures_;
  Lane lanes_[kMaxLanes];
  uint64_t wait_ns_ = 0;
  uint64_t bytes_out_ = 0;
  uint64_t bytes_back_ = 0;
};

}  // namespace megamoe
