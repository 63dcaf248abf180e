// An FFN rank's experts on the SIMT target: one thread an output element, weights as they come.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "megamoe/ffn_side.h"
#include "megamoe/host_device.h"
#include "megamoe/layout.h"
#include "megamoe/numerics.h"
#include "megamoe/simt/lists.h"
#include "megamoe/tile_schedule.h"

namespace megamoe::simt {

// [layers][owned] of gate [width][hidden], up [width][hidden], down [hidden][width]; FP32.
struct Weights {
  float* data;
  int32_t* ids;  // [owned]
  int layers;
  int owned;
  int hidden;
  int width;

  MEGAMOE_HOST_DEVICE size_t matrix() const {
    return static_cast<size_t>(hidden) * static_cast<size_t>(width);
  }
  MEGAMOE_HOST_DEVICE float* of(int layer, int expert) const {
    const auto index = static_cast<size_t>(layer) * static_cast<size_t>(owned);
    return data + 3 * matrix() * (index + static_cast<size_t>(expert));
  }
};

template <class Target>
class Experts {
 public:
  using Schedule = TileSchedule<Lists>;

  MEGAMOE_HOST_DEVICE Experts(const Weights& weights, size_t most_rows, Arena& arena)
      : weights_(weights),
        rows_(arena.take<float>(most_rows * static_cast<size_t>(weights.hidden))),
        sums_(arena.take<float>(most_rows * static_cast<size_t>(weights.hidden))),
        act_(arena.take<float>(static_cast<size_t>(Schedule::kTileRows) *
                               static_cast<size_t>(weights.width))) {}

  MEGAMOE_HOST_DEVICE int owned() const { return weights_.owned; }
  MEGAMOE_ROLE size_t id(int index) const { return static_cast<size_t>(weights_.ids[index]); }

  // Decodes each needed row once. where(i) gives row i and its scales.
  template <class Where>
  MEGAMOE_ROLE void pull(const Shape& shape, size_t count, Where&& where) {
    Target::for_each(static_cast<int64_t>(count) * shape.hidden, [&](int64_t i) {
      const WireRow row = where(static_cast<size_t>(i / shape.hidden));
      rows_[i] = Target::decode(shape, row, static_cast<int>(i % shape.hidden));
    });
    Target::sync();
  }

  // The return mode that adds up a row's copies: clear, add as compute hands the copies over,
  // return. A thread keeps its columns throughout. where(i) gives the returned row of row i.
  MEGAMOE_ROLE void clear_sums(const Shape& shape, size_t count) {
    Target::for_each(shape.hidden, [&](int64_t column) {
      for (size_t i = 0; i < count; ++i) *sum(i, column) = 0.0f;
    });
  }
  MEGAMOE_ROLE void add_to_sum(const Shape&, int row, const float* values, float weight, int first,
                               int columns) {
    for (int i = 0; i < columns; ++i) {
      float* total = sum(static_cast<size_t>(row), first + i);
      *total = *total + values[i] * weight;
    }
  }
  template <class Where>
  MEGAMOE_ROLE void return_sums(const Shape& shape, size_t count, Where&& where) {
    Target::for_each(shape.hidden, [&](int64_t column) {
      for (size_t i = 0; i < count; ++i) {
        Target::write_back(shape.wire, sum(i, column), 1.0f, 1, static_cast<int>(column), where(i));
      }
    });
  }

  // Calls sink(copy, value, column, 1) for each output element; all of a column on one thread, in
  // the order of copies.
  template <class Sink>
  MEGAMOE_ROLE void compute(int layer, int /*next_layer*/, const Schedule& schedule, Sink&& sink) {
    for (const Tile& tile : schedule.tiles()) {
      activate(layer, tile, schedule);
      Target::sync();
      project(layer, tile, sink);
      Target::sync();
    }
  }

 private:
  MEGAMOE_ROLE float* sum(size_t row, int64_t column) const {
    return sums_ + row * static_cast<size_t>(weights_.hidden) + column;
  }

  // One chain of fused multiply-adds over k, ascending, as the CPU target sums.
  MEGAMOE_ROLE static float dot(const float* x, const float* w, int n) {
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum = fmaf(x[k], w[k], sum);
    return sum;
  }

  MEGAMOE_ROLE void activate(int layer, const Tile& tile, const Schedule& schedule) {
    const int hidden = weights_.hidden;
    const int width = weights_.width;
    const float* gate = weights_.of(layer, tile.expert);
    const float* up = gate + weights_.matrix();
    Target::for_each(int64_t{tile.rows} * width, [&](int64_t i) {
      const RoutedCopy& copy = schedule.copies()[static_cast<size_t>(tile.first + i / width)];
      const float* x = rows_ + int64_t{copy.row} * hidden;
      const int64_t column = i % width;
      const float g = dot(x, gate + column * hidden, hidden);
      act_[i] = g / (1.0f + expf(-g)) * dot(x, up + column * hidden, hidden);
    });
  }

  template <class Sink>
  MEGAMOE_ROLE void project(int layer, const Tile& tile, Sink&& sink) {
    const int hidden = weights_.hidden;
    const int width = weights_.width;
    const float* down = weights_.of(layer, tile.expert) + 2 * weights_.matrix();
    Target::for_each(hidden, [&](int64_t column) {
      for (int32_t r = 0; r < tile.rows; ++r) {
        const float value = dot(act_ + int64_t{r} * width, down + column * width, width);
        sink(tile.first + r, &value, static_cast<int>(column), 1);
      }
    });
  }

  Weights weights_;
  float* rows_;  // [most_rows][hidden]
  float* sums_;  // [most_rows][hidden]
  float* act_;   // [kTileRows][width]
};

}  // namespace megamoe::simt
