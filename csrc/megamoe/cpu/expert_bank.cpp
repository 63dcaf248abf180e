#include "megamoe/cpu/expert_bank.h"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

namespace megamoe::cpu {
namespace {

void require(bool good, const std::string& sentence) {
  if (!good) throw std::invalid_argument(sentence);
}

}  // namespace

ExpertBank::ExpertBank(int moe_layers, const std::vector<int32_t>& expert_ids, int hidden,
                       int width, WeightType type)
    : moe_layers_(moe_layers), hidden_(hidden), width_(width), expert_ids_(expert_ids) {
  require(moe_layers >= 0, "moe_layers must not be negative");
  require(hidden > 0 && width > 0, "hidden and width must be positive");
  std::vector<int32_t> sorted = expert_ids;
  std::sort(sorted.begin(), sorted.end());
  require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
          "expert_ids must not repeat");
  require(sorted.empty() || sorted.front() >= 0, "expert_ids must not be negative");
  const size_t count = static_cast<size_t>(moe_layers) * expert_ids.size();
  experts_.reserve(count);
  const int gate_up_rows = static_cast<int>(gate_up_columns());
  for (size_t i = 0; i < count; ++i) {
    experts_.push_back(
        {PackedMatrix(gate_up_rows, hidden, type), PackedMatrix(hidden, width, type)});
  }
}

template <class T>
void ExpertBank::load(int layer, int expert, const T* gate, const T* up, const T* down) {
  require(layer >= 0 && layer < moe_layers_, "layer " + std::to_string(layer) + " is outside [0, " +
                                                 std::to_string(moe_layers_) + ")");
  const auto found = std::find(expert_ids_.begin(), expert_ids_.end(), expert);
  require(found != expert_ids_.end(), "expert " + std::to_string(expert) + " is not held here");
  const auto index = static_cast<size_t>(found - expert_ids_.begin());
  Expert& target = experts_[static_cast<size_t>(layer) * expert_ids_.size() + index];
  const auto put = [](PackedMatrix& matrix, int row, const T* w, int rows) {
    if constexpr (std::is_same_v<T, float>) {
      matrix.load_f32(row, w, rows);
    } else {
      matrix.load_bf16(row, w, rows);
    }
  };
  for (int first = 0; first < width_; first += kGateBlock) {
    const int rows = std::min(kGateBlock, width_ - first);
    const auto offset = static_cast<size_t>(first) * static_cast<size_t>(hidden_);
    put(target.gate_up, 2 * first, gate + offset, rows);
    put(target.gate_up, 2 * first + kGateBlock, up + offset, rows);
  }
  put(target.down, 0, down, hidden_);
}

template void ExpertBank::load(int, int, const float*, const float*, const float*);
template void ExpertBank::load(int, int, const uint16_t*, const uint16_t*, const uint16_t*);

size_t ExpertBank::bytes() const {
  size_t bytes = 0;
  for (const Expert& expert : experts_) bytes += expert.gate_up.bytes() + expert.down.bytes();
  return bytes;
}

std::vector<int32_t> ExpertBank::owned_index(int experts) const {
  std::vector<int32_t> index(static_cast<size_t>(experts), -1);
  for (size_t i = 0; i < expert_ids_.size(); ++i) {
    require(expert_ids_[i] < experts, "expert " + std::to_string(expert_ids_[i]) +
                                          " is outside [0, " + std::to_string(experts) + ")");
    index[static_cast<size_t>(expert_ids_[i])] = static_cast<int32_t>(i);
  }
  return index;
}

void ExpertBank::activate(Pool& pool, int layer, const TileSchedule& schedule, const float* rows,
                          ExpertScratch& scratch) const {
  const auto& tiles = schedule.tiles();
  const int panels = static_cast<int>(gate_up_columns()) / PackedMatrix::kPanel;
  const auto split = ColumnSplit::make(static_cast<int>(tiles.size()), panels, pool.threads());
  const RowCodec& codec = row_codec();
  pool.parallel_for(split.tasks(), [&](int task) {
    const Tile& tile = tiles[static_cast<size_t>(split.tile(task))];
    const int begin = split.begin(task, panels);
    const int end = split.end(task, panels);
    const float* x[TileSchedule::kTileRows];
    float* y[TileSchedule::kTileRows];
    for (int r = 0; r < tile.rows; ++r) {
      const auto copy = static_cast<size_t>(tile.first + r);
      const auto row = static_cast<size_t>(schedule.copies()[copy].row);
      x[r] = rows + row * static_cast<size_t>(hidden_);
      y[r] = scratch.gate_up.data() + copy * gate_up_columns();
    }
    gemm_rows(x, y, tile.rows, expert(layer, tile.expert).gate_up, begin, end, false);
    const int first = begin * kGateBlock;
    const int last = std::min(end * kGateBlock, width_);
    for (int r = 0; r < tile.rows; ++r) {
      const auto copy = static_cast<size_t>(tile.first + r);
      codec.swiglu(y[r] + begin * PackedMatrix::kPanel, last - first,
                   scratch.act.data() + copy * static_cast<size_t>(width_) + first);
    }
  });
}

}  // namespace megamoe::cpu
