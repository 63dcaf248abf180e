// An FFN rank's experts: a bank with the pool and working memory that compute on it, from rows of
// the wire to rows of the wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "megamoe/cpu/expert_bank.h"
#include "megamoe/cpu/row_codec.h"
#include "megamoe/cpu/rows_in_place.h"
#include "megamoe/ffn_side.h"
#include "megamoe/layout.h"

namespace megamoe::cpu {

// Where the rows of IN lie that a layer and lane need: ExpertBank reads them.
template <class Rows>
class PulledRows {
 public:
  template <class Where>
  void pull(const Shape& shape, size_t count, Where&& where) {
    shape_ = shape;
    rows_.resize(count);
    for (size_t i = 0; i < count; ++i) rows_[i] = where(i);
  }
  void prefetch(int32_t i) const { prefetch_lines(at(i).row, shape_.row_bytes()); }
  const float* read(int32_t i, float* room) const { return Rows::decode_row(shape_, at(i), room); }

 private:
  const WireRow& at(int32_t i) const { return rows_[static_cast<size_t>(i)]; }

  Shape shape_{};
  std::vector<WireRow> rows_;
};

// `Rows` is WireRows, or what a test makes of it.
template <class Rows>
class ExpertsOver {
 public:
  ExpertsOver(const ExpertBank& bank, Pool& pool) : bank_(&bank), pool_(&pool) {}
  int owned() const { return bank_->owned(); }
  size_t id(int index) const {
    return static_cast<size_t>(bank_->expert_ids()[static_cast<size_t>(index)]);
  }

  // Keeps where the rows lie, where(i) being row i: compute reads them.
  template <class Where>
  void pull(const Shape& shape, size_t count, Where&& where) {
    rows_.pull(shape, count, std::forward<Where>(where));
  }

  // Of the rows pulled last.
  template <class Sink>
  void compute(int layer, int next_layer, const TileSchedule& schedule, Sink&& sink) {
    bank_->compute(*pool_, layer, next_layer, schedule, rows_, scratch_, std::forward<Sink>(sink));
  }

  // The return mode that adds up a row's copies: clear, add in the order in which compute hands
  // the copies over, return. where(i) gives the returned row of row i.
  void clear_sums(const Shape& shape, size_t count) {
    float* sums = sums_.reserve(count * static_cast<size_t>(shape.hidden));
    for_each_row(shape, count, [&](size_t i) {
      std::fill_n(sums + i * static_cast<size_t>(shape.hidden), shape.hidden, 0.0f);
    });
  }
  void add_to_sum(const Shape& shape, int row, const float* values, float weight, int first,
                  int columns) {
    row_codec().add_scaled(values, weight, columns, sum(shape, static_cast<size_t>(row)) + first);
  }
  template <class Where>
  void return_sums(const Shape& shape, size_t count, Where&& where) {
    for_each_row(shape, count, [&](size_t i) {
      Rows::write_back(shape.wire, sum(shape, i), 1.0f, shape.hidden, 0, where(i));
    });
  }

 private:
  float* sum(const Shape& shape, size_t row) {
    return sums_.data() + row * static_cast<size_t>(shape.hidden);
  }

  template <class F>
  void for_each_row(const Shape& shape, size_t count, F&& fn) {
    // Waking a thread costs as much as decoding some thousands of elements.
    constexpr size_t kTaskElements = 32 * 1024;
    const size_t elements = count * static_cast<size_t>(shape.hidden);
    const size_t tasks = std::max<size_t>(1, elements / kTaskElements);
    pool_->parallel_for(static_cast<int>(tasks), [&](int task) {
      const auto part = static_cast<size_t>(task);
      const size_t end = count * (part + 1) / tasks;
      for (size_t i = count * part / tasks; i < end; ++i) fn(i);
    });
  }

  const ExpertBank* bank_;
  Pool* pool_;
  PulledRows<Rows> rows_;
  GrowBuffer<float> sums_;
  ExpertScratch scratch_;
};

}  // namespace megamoe::cpu
