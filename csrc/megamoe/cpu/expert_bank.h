// The experts one process holds, packed for the tile GEMM, and their computation.
//
// Wave by wave, a wave being the tiles that are in cache at the same time:
//
//   gather    x[copy] = a pulled row, decoded, and rounded where the kernel takes bf16 pairs
//   activate  act[copy] = silu(gate) * up
//   project   down(act[copy])              handed to a sink, column range by column range
//
// The first is split over copies, the second over (tile, columns), the third over columns, so that
// a single token keeps every thread busy and a sink may add up the copies of a row in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/grow_buffer.h"
#include "megamoe/cpu/lists.h"
#include "megamoe/cpu/pool.h"

namespace megamoe::cpu {

// Working memory of one computation at a time: what Wave names.
struct ExpertScratch {
  GrowBuffer<const float*> x;
  GrowBuffer<float> room;
  GrowBuffer<uint32_t> x_pairs;
  GrowBuffer<float> act;
  GrowBuffer<uint32_t> act_pairs;
  GrowBuffer<float> columns;
};

// An e4m3 weight [rows][cols] and its scales, one per block of scale_rows by scale_cols.
struct Fp8Weight {
  const uint8_t* codes;
  const float* scales;  // [ceil(rows / scale_rows)][ceil(cols / scale_cols)]
  int scale_rows;       // a multiple of PackedMatrix::kScaleRows
  int scale_cols;       // a multiple of PackedMatrix::kScaleCols
};

class ExpertBank {
 public:
  // Throws std::invalid_argument for a size that is not positive or an id that is negative or
  // repeated.
  ExpertBank(int moe_layers, const std::vector<int32_t>& expert_ids, int hidden, int width,
             WeightType type);

  // gate, up [width, hidden]; down [hidden, width]. T is float or uint16_t (bfloat16 bits).
  template <class T>
  void load(int layer, int expert, const T* gate, const T* up, const T* down);
  // The same for a bank of FP8 weights. Throws std::invalid_argument for a block that the packed
  // form cannot hold, or a code that is not a number.
  void load_fp8(int layer, int expert, const Fp8Weight& gate, const Fp8Weight& up,
                const Fp8Weight& down);

  int moe_layers() const { return moe_layers_; }
  int hidden() const { return hidden_; }
  int width() const { return width_; }
  int owned() const { return static_cast<int>(expert_ids_.size()); }
  const std::vector<int32_t>& expert_ids() const { return expert_ids_; }
  size_t bytes() const;
  // Every expert's gates and ups, or downs, of one layer.
  const PackedMatrix& gate_up(int layer) const { return layers_[index(layer)].gate_up; }
  const PackedMatrix& down(int layer) const { return layers_[index(layer)].down; }

  // owned_index for TileSchedule, over `experts` experts; throws std::invalid_argument if an owned
  // id is outside.
  std::vector<int32_t> owned_index(int experts) const;

  // Computes every copy of the schedule. `next_layer` is the one computed after it, whose beginning
  // is fetched meanwhile, as far as one can tell which expert's that is.
  //
  // rows.read(i, room) returns the i-th pulled row [hidden],
  // made in room [hidden] or where it lies; it is called once for each copy, in its wave, which
  // uses what it returned. rows.prefetch(i) comes somewhat before.
  //
  // For each copy and column range, calls sink(copy index, const float* values, first column,
  // columns) with the unweighted outputs of columns [first, first + columns). The calls for one
  // column follow the order of the copies, one at a time. All these are called on any thread of
  // the pool.
  template <class Rows, class Sink>
  void compute(Pool& pool, int layer, int next_layer, const TileSchedule& schedule,
               const Rows& rows, ExpertScratch& scratch, Sink&& sink) const {
    const auto& tiles = schedule.tiles();
    for (size_t begin = 0, end; begin < tiles.size(); begin = end) {
      end = wave_end(tiles, begin, pool.threads());
      const Wave wave = make_wave(layer, next_layer, schedule, begin, end, pool.threads(), scratch);
      gather(pool, wave, rows);
      activate(pool, wave);
      project(pool, wave, sink);
    }
  }

 private:
  static constexpr int kTasksPerThread = 4;

  // Every expert of a layer lies in one matrix: expert i's rows start at i times its padded rows.
  struct Layer {
    PackedMatrix gate_up;  // 16 gates, 16 ups, 16 gates …: one panel makes 16 activations
    PackedMatrix down;
  };

  // Calls put(matrix, matrix row, source, source's first row, rows) for each group of rows that
  // lie together.
  template <class Weight, class Put>
  void place(int layer, int expert, const Weight& gate, const Weight& up, const Weight& down,
             Put&& put);

  // Tiles whose rows and activations live at the same time.
  struct Wave {
    const Layer* layer;
    const TileSchedule* schedule;
    size_t first_tile;
    int tiles;
    int threads;
    int32_t first_copy;
    int32_t copies;
    int gather_tasks;
    const float** x;        // [copies]: each [hidden]; or null, where the kernel takes pairs
    float* room;            // of one copy in turn for a task, or of all: […][room_floats]
    uint32_t* x_pairs;      // [copies][pair_words], or null
    float* act;             // [copies][width]
    uint32_t* act_pairs;    // [copies][pair_words], or null
    float* columns;         // of a few panels, [parts][copies][kChunkColumns]
    const std::byte* next;  // the panel read after this wave, as far as one can know

    const Tile& tile(int i) const { return schedule->tiles()[first_tile + static_cast<size_t>(i)]; }
    size_t row(const Tile& tile) const { return index(tile.first - first_copy); }
    float* part_columns(int part, size_t row) const {
      return columns + (index(part) * index(copies) + row) * kChunkColumns;
    }
  };

  // A range of panels, cut so that a pool has a few tasks a thread.
  struct Split {
    Split(int threads, int tiles, int panels) : panels_(panels) {
      const int wanted = (kTasksPerThread * threads + tiles - 1) / tiles;
      parts_ = threads == 1 ? 1 : std::clamp(wanted, 1, panels);
    }
    int parts() const { return parts_; }
    int begin(int part) const { return panels_ * part / parts_; }
    int end(int part) const { return panels_ * (part + 1) / parts_; }

   private:
    int panels_;
    int parts_;
  };

  // Panels whose columns leave the first GEMM's kernel before the next ones start: they stay in the
  // second-level cache.
  static constexpr int kChunkPanels = 16;
  static constexpr size_t kChunkColumns = kChunkPanels * PackedMatrix::kPanel;

  static size_t wave_end(const std::vector<Tile>& tiles, size_t begin, int threads);
  Wave make_wave(int layer, int next_layer, const TileSchedule& schedule, size_t begin, size_t end,
                 int threads, ExpertScratch& scratch) const;
  int gather_tasks(int threads, int32_t copies) const;
  void activate(Pool& pool, const Wave& wave) const;
  // Columns of panels [begin, end) of a tile, into its part's.
  void gate_up_chunk(const Wave& wave, int t, int part, int begin, int end) const;
  void down_chunk(const Wave& wave, int t, int part, int begin, int end,
                  const std::byte* next) const;
  // What a part reads after its tile t's downs up to `end`.
  const std::byte* after_downs(const Wave& wave, const Split& split, int t, int part,
                               int end) const;

  template <class Rows>
  void gather(Pool& pool, const Wave& wave, const Rows& rows) const {
    const RoutedCopy* copies = wave.schedule->copies().data() + wave.first_copy;
    pool.parallel_for(wave.gather_tasks, [&](int task) {
      const int32_t end = wave.copies * (task + 1) / wave.gather_tasks;
      for (int32_t i = wave.copies * task / wave.gather_tasks; i < end; ++i) {
        if (i + 1 < end) rows.prefetch(copies[i + 1].row);
        if (wave.x_pairs == nullptr) {
          wave.x[i] = rows.read(copies[i].row, wave.room + index(i) * room_floats());
        } else {
          float* room = wave.room + index(task) * room_floats();
          const float* values = rows.read(copies[i].row, room);
          uint32_t* pairs = wave.x_pairs + index(i) * PackedMatrix::pair_words(hidden_);
          wave.layer->gate_up.round(values, hidden_, pairs);
        }
      }
    });
  }

  template <class Sink>
  void project(Pool& pool, const Wave& wave, Sink&& sink) const {
    const Split split(wave.threads, 1, down_panels());
    pool.parallel_for(split.parts(), [&](int part) {
      for (int t = 0; t < wave.tiles; ++t) {
        const Tile& tile = wave.tile(t);
        for (int begin = split.begin(part), end; begin < split.end(part); begin = end) {
          end = std::min(begin + kChunkPanels, split.end(part));
          down_chunk(wave, t, part, begin, end, after_downs(wave, split, t, part, end));
          const int first = begin * PackedMatrix::kPanel;
          const int columns = std::min(end * PackedMatrix::kPanel, hidden_) - first;
          for (int32_t r = 0; r < tile.rows; ++r) {
            sink(tile.first + r, wave.part_columns(part, index(r)), first, columns);
          }
        }
      }
    });
  }

  static size_t index(int32_t i) { return static_cast<size_t>(i); }
  // An odd number of cache lines keeps the rows of a tile out of one another's cache sets.
  size_t room_floats() const { return (index(hidden_) + 31) / 32 * 32 + 16; }
  int gate_up_panels() const {
    return (width_ + PackedMatrix::kPanel / 2 - 1) / (PackedMatrix::kPanel / 2);
  }
  int down_panels() const { return (hidden_ + PackedMatrix::kPanel - 1) / PackedMatrix::kPanel; }

  int moe_layers_;
  int hidden_;
  int width_;
  std::vector<int32_t> expert_ids_;
  std::vector<Layer> layers_;
};

}  // namespace megamoe::cpu
