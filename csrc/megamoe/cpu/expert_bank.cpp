#include "megamoe/cpu/expert_bank.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "megamoe/cpu/row_codec.h"

namespace megamoe::cpu {
namespace {

constexpr int kPanel = PackedMatrix::kPanel;
static_assert(kPanel == 2 * kGateBlock, "a panel holds a block of gates and its ups");

// Rows alive at once: they stay in cache, and memory does not grow with the step.
constexpr int kWaveRows = 512;

void require(bool good, const std::string& sentence) {
  if (!good) throw std::invalid_argument(sentence);
}

// What one tile multiplies, rounded or not, and where its products go.
struct TileRows {
  const float* x[TileSchedule::kTileRows];
  const uint32_t* pairs[TileSchedule::kTileRows];
  float* y[TileSchedule::kTileRows];

  void multiply(const PackedMatrix& weight, int rows, bool rounded, int begin, int end,
                const std::byte* next) const {
    if (rounded) {
      gemm_pairs(pairs, y, rows, weight, begin, end, next);
    } else {
      gemm_rows(x, y, rows, weight, begin, end, false, next);
    }
  }
};

int matrix_rows(size_t experts, int panels) {
  const size_t rows = experts * static_cast<size_t>(panels) * kPanel;
  require(rows <= static_cast<size_t>(std::numeric_limits<int>::max()),
          "the experts of one layer have too many rows for one matrix");
  return static_cast<int>(rows);
}

}  // namespace

ExpertBank::ExpertBank(int moe_layers, const std::vector<int32_t>& expert_ids, int hidden,
                       int width, WeightType type)
    : moe_layers_(moe_layers), hidden_(hidden), width_(width), expert_ids_(expert_ids) {
  require(moe_layers >= 0, "moe_layers must not be negative");
  require(hidden > 0 && width > 0, "hidden and width must be positive");
  require(width < (1 << 24) && hidden < (1 << 24), "hidden and width must be below 2^24");
  std::vector<int32_t> sorted = expert_ids;
  std::sort(sorted.begin(), sorted.end());
  require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
          "expert_ids must not repeat");
  require(sorted.empty() || sorted.front() >= 0, "expert_ids must not be negative");
  if (expert_ids.empty()) return;
  const int gate_up_rows = matrix_rows(expert_ids.size(), gate_up_panels());
  const int down_rows = matrix_rows(expert_ids.size(), down_panels());
  layers_.reserve(index(moe_layers));
  for (int layer = 0; layer < moe_layers; ++layer) {
    layers_.push_back(
        {PackedMatrix(gate_up_rows, hidden, type), PackedMatrix(down_rows, width, type)});
  }
}

template <class Weight, class Put>
void ExpertBank::place(int layer, int expert, const Weight& gate, const Weight& up,
                       const Weight& down, Put&& put) {
  require(layer >= 0 && layer < moe_layers_, "layer " + std::to_string(layer) + " is outside [0, " +
                                                 std::to_string(moe_layers_) + ")");
  const auto found = std::find(expert_ids_.begin(), expert_ids_.end(), expert);
  require(found != expert_ids_.end(), "expert " + std::to_string(expert) + " is not held here");
  const int position = static_cast<int>(found - expert_ids_.begin());
  Layer& target = layers_[index(layer)];
  const int first_row = position * gate_up_panels() * kPanel;
  for (int first = 0; first < width_; first += kGateBlock) {
    const int rows = std::min(kGateBlock, width_ - first);
    put(target.gate_up, first_row + 2 * first, gate, first, rows);
    put(target.gate_up, first_row + 2 * first + kGateBlock, up, first, rows);
  }
  const int down_row = position * down_panels() * kPanel;
  for (int first = 0; first < hidden_; first += PackedMatrix::kScaleRows) {
    const int rows = std::min(PackedMatrix::kScaleRows, hidden_ - first);
    put(target.down, down_row + first, down, first, rows);
  }
}

template <class T>
void ExpertBank::load(int layer, int expert, const T* gate, const T* up, const T* down) {
  const auto put = [](PackedMatrix& matrix, int row, const T* w, int first, int rows) {
    const T* source = w + index(first) * index(matrix.cols());
    if constexpr (std::is_same_v<T, float>) {
      matrix.load_f32(row, source, rows);
    } else {
      matrix.load_bf16(row, source, rows);
    }
  };
  place(layer, expert, gate, up, down, put);
}

template void ExpertBank::load(int, int, const float*, const float*, const float*);
template void ExpertBank::load(int, int, const uint16_t*, const uint16_t*, const uint16_t*);

void ExpertBank::load_fp8(int layer, int expert, const Fp8Weight& gate, const Fp8Weight& up,
                          const Fp8Weight& down) {
  for (const Fp8Weight* weight : {&gate, &up, &down}) {
    require(weight->scale_rows > 0 && weight->scale_rows % PackedMatrix::kScaleRows == 0,
            "an FP8 scale must cover a multiple of 16 rows, covers " +
                std::to_string(weight->scale_rows));
    require(weight->scale_cols > 0 && weight->scale_cols % PackedMatrix::kScaleCols == 0,
            "an FP8 scale must cover a multiple of 128 columns, covers " +
                std::to_string(weight->scale_cols));
  }
  std::vector<float> scales;
  const auto put = [&](PackedMatrix& matrix, int row, const Fp8Weight& w, int first, int rows) {
    const int row_scales = (matrix.cols() + w.scale_cols - 1) / w.scale_cols;
    const float* given = w.scales + index(first / w.scale_rows) * index(row_scales);
    scales.clear();
    for (int col = 0; col < matrix.cols(); col += PackedMatrix::kScaleCols) {
      scales.push_back(given[col / w.scale_cols]);
    }
    matrix.load_fp8(row, w.codes + index(first) * index(matrix.cols()), rows, scales.data());
  };
  place(layer, expert, gate, up, down, put);
}

size_t ExpertBank::bytes() const {
  size_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.gate_up.bytes() + layer.down.bytes();
  return bytes;
}

std::vector<int32_t> ExpertBank::owned_index(int experts) const {
  std::vector<int32_t> positions(index(experts), -1);
  for (size_t i = 0; i < expert_ids_.size(); ++i) {
    require(expert_ids_[i] < experts, "expert " + std::to_string(expert_ids_[i]) +
                                          " is outside [0, " + std::to_string(experts) + ")");
    positions[index(expert_ids_[i])] = static_cast<int32_t>(i);
  }
  return positions;
}

size_t ExpertBank::wave_end(const std::vector<Tile>& tiles, size_t begin, int threads) {
  // One thread takes a tile through both phases; more need a few tiles to share.
  const int limit = threads == 1 ? 0 : kWaveRows;
  int rows = tiles[begin].rows;
  size_t end = begin + 1;
  while (end < tiles.size() && rows + tiles[end].rows <= limit) rows += tiles[end++].rows;
  return end;
}

ExpertBank::Wave ExpertBank::make_wave(int layer, int next_layer, const TileSchedule& schedule,
                                       size_t begin, size_t end, int threads,
                                       ExpertScratch& scratch) const {
  const auto& tiles = schedule.tiles();
  const Tile& first = tiles[begin];
  const Tile& last = tiles[end - 1];
  const int32_t copies = last.first + last.rows - first.first;
  const int count = static_cast<int>(end - begin);
  const int parts = std::max(Split(threads, count, gate_up_panels()).parts(),
                             Split(threads, 1, down_panels()).parts());
  // After a layer's last tile the next layer's first one is read, of the same expert most likely.
  const bool more = end < tiles.size();
  const int next_expert = more ? tiles[end].expert : tiles[0].expert;
  const PackedMatrix& next_weight = gate_up(more ? layer : next_layer);
  // Both matrices are of one type.
  const bool takes_pairs = layers_[index(layer)].down.takes_pairs();
  const int tasks = gather_tasks(threads, copies);
  const auto pairs_of = [&](GrowBuffer<uint32_t>& pairs, int cols) {
    return takes_pairs ? pairs.reserve(index(copies) * PackedMatrix::pair_words(cols)) : nullptr;
  };
  return {&layers_[index(layer)],
          &schedule,
          begin,
          count,
          threads,
          first.first,
          copies,
          tasks,
          takes_pairs ? nullptr : scratch.x.reserve(index(copies)),
          scratch.room.reserve(index(takes_pairs ? tasks : copies) * room_floats()),
          pairs_of(scratch.x_pairs, hidden_),
          scratch.act.reserve(index(copies) * index(width_)),
          pairs_of(scratch.act_pairs, width_),
          scratch.columns.reserve(index(parts) * index(copies) * kChunkColumns),
          next_weight.panel(next_expert * gate_up_panels())};
}

int ExpertBank::gather_tasks(int threads, int32_t copies) const {
  // Waking a thread costs as much as decoding some thousands of elements.
  constexpr int64_t kTaskElements = 32 * 1024;
  const int64_t wanted = int64_t{copies} * hidden_ / kTaskElements;
  const int most = threads == 1 ? 1 : std::min(kTasksPerThread * threads, copies);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, most));
}

void ExpertBank::activate(Pool& pool, const Wave& wave) const {
  const Split split(wave.threads, wave.tiles, gate_up_panels());
  const RowCodec& codec = row_codec();
  pool.parallel_for(wave.tiles * split.parts(), [&](int task) {
    const int t = task / split.parts();
    const int part = task % split.parts();
    const Tile& tile = wave.tile(t);
    for (int begin = split.begin(part), end; begin < split.end(part); begin = end) {
      end = std::min(begin + kChunkPanels, split.end(part));
      gate_up_chunk(wave, t, part, begin, end);
      const int first = begin * kGateBlock;
      const int columns = std::min(end * kGateBlock, width_) - first;
      for (size_t row = wave.row(tile); row < wave.row(tile) + index(tile.rows); ++row) {
        float* act = wave.act + row * index(width_) + first;
        codec.swiglu(wave.part_columns(part, row), columns, act);
        if (wave.act_pairs == nullptr) continue;
        // A block of gates starts on a pair.
        uint32_t* pairs = wave.act_pairs + row * PackedMatrix::pair_words(width_) + first / 2;
        wave.layer->down.round(act, columns, pairs);
      }
    }
  });
}

void ExpertBank::gate_up_chunk(const Wave& wave, int t, int part, int begin, int end) const {
  const Tile& tile = wave.tile(t);
  const int base = tile.expert * gate_up_panels();
  const PackedMatrix& weight = wave.layer->gate_up;
  const std::byte* next = weight.panel(base + end);
  if (end == gate_up_panels()) {
    next = t + 1 < wave.tiles ? weight.panel(wave.tile(t + 1).expert * gate_up_panels())
                              : wave.layer->down.panel(wave.tile(0).expert * down_panels());
  }
  TileRows tile_rows;
  for (int r = 0; r < tile.rows; ++r) {
    const size_t row = wave.row(tile) + index(r);
    // The GEMM counts columns from the matrix's first.
    tile_rows.y[r] = wave.part_columns(part, row) - int64_t{base + begin} * kPanel;
    if (wave.x_pairs != nullptr) {
      tile_rows.pairs[r] = wave.x_pairs + row * PackedMatrix::pair_words(hidden_);
    } else {
      tile_rows.x[r] = wave.x[row];
    }
  }
  tile_rows.multiply(weight, tile.rows, wave.x_pairs != nullptr, base + begin, base + end, next);
}

const std::byte* ExpertBank::after_downs(const Wave& wave, const Split& split, int t, int part,
                                         int end) const {
  const auto panel = [&](int tile, int i) {
    return wave.layer->down.panel(wave.tile(tile).expert * down_panels() + i);
  };
  if (end < split.end(part)) return panel(t, end);
  return t + 1 < wave.tiles ? panel(t + 1, split.begin(part)) : wave.next;
}

void ExpertBank::down_chunk(const Wave& wave, int t, int part, int begin, int end,
                            const std::byte* next) const {
  const Tile& tile = wave.tile(t);
  const int base = tile.expert * down_panels();
  const PackedMatrix& weight = wave.layer->down;
  TileRows tile_rows;
  for (int r = 0; r < tile.rows; ++r) {
    const size_t row = wave.row(tile) + index(r);
    // A part takes its tiles one after the other, in the same place.
    tile_rows.y[r] = wave.part_columns(part, index(r)) - int64_t{base + begin} * kPanel;
    if (wave.act_pairs != nullptr) {
      tile_rows.pairs[r] = wave.act_pairs + row * PackedMatrix::pair_words(width_);
    } else {
      tile_rows.x[r] = wave.act + row * index(width_);
    }
  }
  tile_rows.multiply(weight, tile.rows, wave.act_pairs != nullptr, base + begin, base + end, next);
}

}  // namespace megamoe::cpu
