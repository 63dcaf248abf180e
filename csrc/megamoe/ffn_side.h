// An FFN rank's half of the boundary: one call a step, all layers and lanes.
//
//   for layer, for lane:
//     await PUB[a] >= q of every attention rank a of the step; acquire
//     schedule the copies owned here; pull the rows they need, which a target may leave in IN
//     compute; write OUT[a][token][slot], or the sum of a token's slots into the first of them
//     DONE[a][f] = q for every a of the step, zero rows included; IN is read no more
#pragma once

#include <cstdint>

#include "megamoe/memory.h"
#include "megamoe/tile_schedule.h"
#include "megamoe/watch.h"

namespace megamoe {

// Where an FFN rank finds a row of IN.
struct WireRow {
  const std::byte* row;
  const std::byte* scales;
};

template <class Target>
class FfnSide {
 public:
  template <class T>
  using List = typename Target::Lists::template List<T>;

  // `owned_index` [attention_ranks][experts]: see Routes.
  MEGAMOE_HOST_DEVICE FfnSide(const Memory& memory, int ffn_rank, List<int32_t> owned_index,
                              typename Target::Experts experts, uint64_t deadline_ns,
                              typename Target::Failures failures = {},
                              typename Target::Lists lists = {})
      : memory_(memory),
        ffn_rank_(ffn_rank),
        owned_index_(std::move(owned_index)),
        experts_(std::move(experts)),
        deadline_ns_(deadline_ns),
        failures_(failures),
        expert_tokens_(
            lists.template zeros<int64_t>(static_cast<size_t>(memory.layout.shape.moe_layers) *
                                          static_cast<size_t>(memory.layout.shape.experts))),
        sources_(
            lists.template empty<Routes>(static_cast<size_t>(memory.layout.shape.attention_ranks))),
        schedule_(lists, most_rows(memory.layout.shape),
                  most_rows(memory.layout.shape) * static_cast<size_t>(memory.layout.shape.top_k),
                  static_cast<size_t>(experts_.owned())) {}

  // `attention_ranks`: who takes part in this step. False if a failure was reported instead of
  // thrown.
  template <class Watch = NoWatch>
  MEGAMOE_ROLE bool serve(uint64_t step, int lanes, const List<int32_t>& attention_ranks,
                          Watch watch = {}) {
    const Shape& shape = memory_.layout.shape;
    for (int layer = 0; layer < shape.moe_layers; ++layer) {
      for (int lane = 0; lane < lanes; ++lane) {
        watch.waiting(layer, lane);
        for (const int32_t rank : attention_ranks) {
          const WaitSite site{
              shape.attention_ranks + ffn_rank_, WordName::Pub, rank, step, layer, lane};
          if (!expect<Target>(memory_.pub(rank, lane), memory_, deadline_ns_, wait_ns_, site,
                              failures_)) {
            return false;
          }
        }
        watch.computing();
        // After a step's last layer comes another step.
        const int next_layer = lane + 1 < lanes ? layer : (layer + 1) % shape.moe_layers;
        if (!compute(layer, next_layer, lane, attention_ranks)) return false;
        for (const int32_t rank : attention_ranks) {
          publish<Target>(memory_.done(rank, lane, ffn_rank_), memory_.sequence(step, layer));
        }
        watch.published(sources_, schedule_);
      }
    }
    return true;
  }

  // Whether this rank has told `rank` that the step, or a later one, is done.
  MEGAMOE_ROLE bool served(uint64_t step, int rank) const {
    return reached(Target::load_acquire(memory_.done(rank, 0, ffn_rank_).value),
                   memory_.sequence(step, 0));
  }

  MEGAMOE_HOST_DEVICE uint64_t wait_ns() const { return wait_ns_; }
  // [moe_layers][experts]
  MEGAMOE_HOST_DEVICE const List<int64_t>& expert_tokens() const { return expert_tokens_; }

 private:
  MEGAMOE_HOST_DEVICE static size_t most_rows(const Shape& shape) {
    return static_cast<size_t>(shape.attention_ranks) * static_cast<size_t>(shape.max_tokens);
  }

  MEGAMOE_ROLE bool plan(int layer, int lane, const List<int32_t>& attention_ranks) {
    const Shape& shape = memory_.layout.shape;
    sources_.clear();
    for (const int32_t rank : attention_ranks) {
      const int32_t tokens = memory_.count(rank, lane);
      if (tokens < 0 || tokens > shape.max_tokens) {
        failures_.bad_count(rank, layer, tokens);
        return false;
      }
      sources_.push_back(
          {memory_.ids(rank, lane), tokens,
           owned_index_.data() + static_cast<size_t>(rank) * static_cast<size_t>(shape.experts)});
    }
    const BadRoute bad = schedule_.build(sources_, shape.top_k, shape.experts, experts_.owned());
    if (bad) {
      failures_.bad_expert(attention_ranks[static_cast<size_t>(bad.source)], layer, bad.token,
                           bad.id, shape.experts);
      return false;
    }
    count_tokens(layer);
    return true;
  }

  MEGAMOE_ROLE bool compute(int layer, int next_layer, int lane,
                            const List<int32_t>& attention_ranks) {
    const Shape& shape = memory_.layout.shape;
    if (!Target::on_leader([&] { return plan(layer, lane, attention_ranks); })) return false;
    const auto& copies = schedule_.copies();
    const auto& rows = schedule_.rows();
    experts_.pull(shape, rows.size(), [&](size_t i) {
      const int rank = attention_ranks[static_cast<size_t>(rows[i].source)];
      return WireRow{memory_.row(rank, lane, rows[i].token),
                     memory_.scales(rank, lane, rows[i].token)};
    });
    const bool reduced = shape.return_mode == ReturnMode::Reduced;
    if (reduced) experts_.clear_sums(shape, rows.size());
    experts_.compute(
        layer, next_layer, schedule_, [&](int copy, const float* values, int first, int columns) {
          const RoutedCopy& routed = copies[static_cast<size_t>(copy)];
          const PulledRow& row = rows[static_cast<size_t>(routed.row)];
          const int rank = attention_ranks[static_cast<size_t>(row.source)];
          const float weight =
              memory_.weights(rank, lane)[int64_t{row.token} * shape.top_k + routed.slot];
          if (reduced) {
            experts_.add_to_sum(shape, routed.row, values, weight, first, columns);
          } else {
            Target::write_back(shape.wire, values, weight, columns, first,
                               memory_.out(rank, lane, row.token, routed.slot));
          }
        });
    if (reduced) {
      experts_.return_sums(shape, rows.size(), [&](size_t i) {
        const int rank = attention_ranks[static_cast<size_t>(rows[i].source)];
        return memory_.out(rank, lane, rows[i].token, rows[i].slot);
      });
    }
    return true;
  }

  MEGAMOE_ROLE void count_tokens(int layer) {
    const auto experts = static_cast<size_t>(memory_.layout.shape.experts);
    int64_t* counts = expert_tokens_.data() + static_cast<size_t>(layer) * experts;
    for (const Tile& tile : schedule_.tiles()) counts[experts_.id(tile.expert)] += tile.rows;
  }

  Memory memory_;
  int ffn_rank_;
  List<int32_t> owned_index_;
  typename Target::Experts experts_;
  uint64_t deadline_ns_;
  typename Target::Failures failures_;
  List<int64_t> expert_tokens_;
  List<Routes> sources_;
  TileSchedule<typename Target::Lists> schedule_;
  uint64_t wait_ns_ = 0;
};

}  // namespace megamoe
