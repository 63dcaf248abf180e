// An FFN rank's half of the boundary: one call a step, all layers and lanes.
//
//   for layer, for lane:
//     await PUB[a] >= q of every attention rank a of the step; acquire
//     schedule the copies owned here; pull each needed row once
//     compute; write OUT[a][token][slot]
//     DONE[a][f] = q for every a of the step, zero rows included
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "megamoe/memory.h"
#include "megamoe/tile_schedule.h"

namespace megamoe {

template <class Target>
class FfnSide {
 public:
  // `owned_index` as TileSchedule wants it.
  FfnSide(const Memory& memory, int ffn_rank, std::vector<int32_t> owned_index,
          typename Target::Experts experts, uint64_t deadline_ns)
      : memory_(memory),
        ffn_rank_(ffn_rank),
        owned_index_(std::move(owned_index)),
        experts_(std::move(experts)),
        deadline_ns_(deadline_ns),
        expert_tokens_(static_cast<size_t>(memory.layout.shape.moe_layers) *
                       static_cast<size_t>(memory.layout.shape.experts)) {}

  // `attention_ranks`: who takes part in this step.
  void serve(uint64_t step, int lanes, const std::vector<int32_t>& attention_ranks) {
    const Shape& shape = memory_.layout.shape;
    for (int layer = 0; layer < shape.moe_layers; ++layer) {
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int32_t rank : attention_ranks) {
          expect<Target>(memory_.pub(rank, lane), memory_, deadline_ns_, wait_ns_,
                         {shape.attention_ranks + ffn_rank_, "PUB", rank, step, layer, lane});
        }
        compute(layer, lane, attention_ranks);
        for (const int32_t rank : attention_ranks) {
          publish<Target>(memory_.done(rank, lane, ffn_rank_), memory_.sequence(step, layer));
        }
      }
    }
  }

  // Whether this rank has told `rank` that the step, or a later one, is done.
  bool served(uint64_t step, int rank) const {
    return reached(Target::load_acquire(memory_.done(rank, 0, ffn_rank_).value),
                   memory_.sequence(step, 0));
  }

  uint64_t wait_ns() const { return wait_ns_; }
  // [moe_layers][experts]
  const std::vector<int64_t>& expert_tokens() const { return expert_tokens_; }

 private:
  void compute(int layer, int lane, const std::vector<int32_t>& attention_ranks) {
    const Shape& shape = memory_.layout.shape;
    sources_.clear();
    for (const int32_t rank : attention_ranks) {
      const int32_t tokens = memory_.count(rank, lane);
      if (tokens < 0 || tokens > shape.max_tokens) Target::bad_count(rank, layer, tokens);
      sources_.push_back({memory_.ids(rank, lane), tokens});
    }
    if (const auto bad = schedule_.build(sources_, shape.top_k, owned_index_, experts_.owned())) {
      Target::bad_expert(attention_ranks[static_cast<size_t>(bad->source)], layer, bad->token,
                         bad->id, shape.experts);
    }
    const auto& copies = schedule_.copies();
    const auto& rows = schedule_.rows();
    experts_.pull(shape.wire, shape.hidden, rows.size(), [&](size_t i) {
      const int rank = attention_ranks[static_cast<size_t>(rows[i].source)];
      return std::pair<const std::byte*, const float*>(memory_.row(rank, lane, rows[i].token),
                                                       memory_.scales(rank, lane, rows[i].token));
    });
    experts_.compute(layer, schedule_, [&](int copy, const float* values, int first, int columns) {
      const RoutedCopy& routed = copies[static_cast<size_t>(copy)];
      const PulledRow& row = rows[static_cast<size_t>(routed.row)];
      const int rank = attention_ranks[static_cast<size_t>(row.source)];
      const float weight =
          memory_.weights(rank, lane)[int64_t{row.token} * shape.top_k + routed.slot];
      Target::write_back(shape.wire, values, weight, columns, first,
                         memory_.out(rank, lane, row.token, routed.slot));
    });
    count_tokens(layer);
  }

  void count_tokens(int layer) {
    const auto experts = static_cast<size_t>(memory_.layout.shape.experts);
    int64_t* counts = expert_tokens_.data() + static_cast<size_t>(layer) * experts;
    for (const Tile& tile : schedule_.tiles()) counts[experts_.id(tile.expert)] += tile.rows;
  }

  Memory memory_;
  int ffn_rank_;
  std::vector<int32_t> owned_index_;
  typename Target::Experts experts_;
  uint64_t deadline_ns_;
  std::vector<int64_t> expert_tokens_;
  std::vector<Routes> sources_;
  TileSchedule schedule_;
  uint64_t wait_ns_ = 0;
};

}  // namespace megamoe
