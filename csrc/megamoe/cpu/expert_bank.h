// The experts one process holds, packed for the tile GEMM, and their computation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/pool.h"
#include "megamoe/cpu/row_codec.h"
#include "megamoe/experts.h"
#include "megamoe/tile_schedule.h"

namespace megamoe::cpu {

// Working memory of one computation at a time; grows to the largest step and stays.
struct ExpertScratch {
  std::vector<float> gate_up;
  std::vector<float> act;
  std::vector<float> down;
};

class ExpertBank {
 public:
  // Throws std::invalid_argument for a size that is not positive or an id that is negative,
  // repeated or missing.
  ExpertBank(int moe_layers, const std::vector<int32_t>& expert_ids, int hidden, int width,
             WeightType type);

  // gate, up [width, hidden]; down [hidden, width]. T is float or uint16_t (bfloat16 bits).
  template <class T>
  void load(int layer, int expert, const T* gate, const T* up, const T* down);

  int moe_layers() const { return moe_layers_; }
  int hidden() const { return hidden_; }
  int width() const { return width_; }
  int owned() const { return static_cast<int>(expert_ids_.size()); }
  const std::vector<int32_t>& expert_ids() const { return expert_ids_; }
  size_t bytes() const;

  // owned_index for TileSchedule, over `experts` experts; throws std::invalid_argument if an owned
  // id is outside.
  std::vector<int32_t> owned_index(int experts) const;

  // Computes every copy of the schedule. `rows` [pulled rows][hidden] as FP32. For each copy and
  // column range, calls sink(copy index, const float* values, first column, columns) with the
  // unweighted outputs of columns [first, first + columns).
  template <class Sink>
  void compute(Pool& pool, int layer, const TileSchedule& schedule, const float* rows,
               ExpertScratch& scratch, Sink&& sink) const {
    const auto copies = schedule.copies().size();
    scratch.gate_up.resize(copies * gate_up_columns());
    scratch.act.resize(copies * static_cast<size_t>(width_));
    scratch.down.resize(copies * down_columns());
    activate(pool, layer, schedule, rows, scratch);
    project(pool, layer, schedule, scratch, std::forward<Sink>(sink));
  }

 private:
  struct Expert {
    PackedMatrix gate_up;  // 16 gates, 16 ups, 16 gates …: one panel makes 16 activations
    PackedMatrix down;
  };

  const Expert& expert(int layer, int index) const {
    return experts_[static_cast<size_t>(layer) * expert_ids_.size() + static_cast<size_t>(index)];
  }
  size_t gate_up_columns() const {
    return static_cast<size_t>((width_ + kGateBlock - 1) / kGateBlock) * PackedMatrix::kPanel;
  }
  size_t down_columns() const {
    return static_cast<size_t>((hidden_ + PackedMatrix::kPanel - 1) / PackedMatrix::kPanel) *
           PackedMatrix::kPanel;
  }

  void activate(Pool& pool, int layer, const TileSchedule& schedule, const float* rows,
                ExpertScratch& scratch) const;

  template <class Sink>
  void project(Pool& pool, int layer, const TileSchedule& schedule, ExpertScratch& scratch,
               Sink&& sink) const {
    const auto& tiles = schedule.tiles();
    const int panels = static_cast<int>(down_columns()) / PackedMatrix::kPanel;
    const auto split = ColumnSplit::make(static_cast<int>(tiles.size()), panels, pool.threads());
    pool.parallel_for(split.tasks(), [&](int task) {
      const Tile& tile = tiles[static_cast<size_t>(split.tile(task))];
      const int begin = split.begin(task, panels);
      const int end = split.end(task, panels);
      const float* x[TileSchedule::kTileRows];
      float* y[TileSchedule::kTileRows];
      for (int r = 0; r < tile.rows; ++r) {
        const auto copy = static_cast<size_t>(tile.first + r);
        x[r] = scratch.act.data() + copy * static_cast<size_t>(width_);
        y[r] = scratch.down.data() + copy * down_columns();
      }
      gemm_rows(x, y, tile.rows, expert(layer, tile.expert).down, begin, end, false);
      const int first = begin * PackedMatrix::kPanel;
      const int last = end * PackedMatrix::kPanel < hidden_ ? end * PackedMatrix::kPanel : hidden_;
      for (int r = 0; r < tile.rows; ++r) sink(tile.first + r, y[r] + first, first, last - first);
    });
  }

  int moe_layers_;
  int hidden_;
  int width_;
  std::vector<int32_t> expert_ids_;
  std::vector<Expert> experts_;
};

}  // namespace megamoe::cpu
