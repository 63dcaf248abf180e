// The CPU target: what the protocol's templates ask of a machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "megamoe/cpu/expert_bank.h"
#include "megamoe/cpu/lists.h"
#include "megamoe/cpu/row_codec.h"
#include "megamoe/cpu/wait.h"
#include "megamoe/failures.h"
#include "megamoe/layout.h"
#include "megamoe/memory.h"

namespace megamoe::cpu {

struct Target : Waiting {
  using Lists = cpu::Lists;

  // A bank of experts with the pool and working memory that compute on it.
  class Experts {
   public:
    Experts(const ExpertBank& bank, Pool& pool) : bank_(&bank), pool_(&pool) {}
    int owned() const { return bank_->owned(); }
    size_t id(int index) const {
      return static_cast<size_t>(bank_->expert_ids()[static_cast<size_t>(index)]);
    }

    // Decodes each needed row once, however many of its experts live here. where(i) gives row i
    // and its scales.
    template <class Where>
    void pull(const Shape& shape, size_t count, Where&& where) {
      rows_.resize(count);
      if (shape.wire == Wire::FP32) {  // usable where it lies
        for (size_t i = 0; i < count; ++i) {
          rows_[i] = reinterpret_cast<const float*>(where(i).row);
        }
        return;
      }
      const auto width = static_cast<size_t>(shape.hidden);
      float* decoded = decoded_.reserve(count * width);
      for_each_row(shape, count, [&](size_t i) {
        const auto [row, scales] = where(i);
        decode_row(shape, row, scales, decoded + i * width);
        rows_[i] = decoded + i * width;
      });
    }

    // Of the rows pulled last.
    template <class Sink>
    void compute(int layer, const TileSchedule& schedule, Sink&& sink) {
      bank_->compute(*pool_, layer, schedule, rows_.data(), scratch_, std::forward<Sink>(sink));
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
        write_back(shape.wire, sum(shape, i), 1.0f, shape.hidden, 0, where(i));
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
    std::vector<const float*> rows_;
    GrowBuffer<float> decoded_;
    GrowBuffer<float> sums_;
    ExpertScratch scratch_;
  };

  static void encode_row(const Shape& shape, const float* x, std::byte* row, std::byte* scales) {
    switch (shape.wire) {
      case Wire::FP8:
        row_codec().encode_fp8(shape.scale_format, x, shape.hidden, reinterpret_cast<uint8_t*>(row),
                               scales);
        break;
      case Wire::BF16:
        row_codec().encode_bf16(x, shape.hidden, reinterpret_cast<uint16_t*>(row));
        break;
      case Wire::FP32:
        __builtin_memcpy(row, x, static_cast<size_t>(shape.hidden) * sizeof(float));
        break;
    }
  }

  static void decode_row(const Shape& shape, const std::byte* row, const std::byte* scales,
                         float* out) {
    switch (shape.wire) {
      case Wire::FP8:
        row_codec().decode_fp8(shape.scale_format, reinterpret_cast<const uint8_t*>(row), scales,
                               shape.hidden, out);
        break;
      case Wire::BF16:
        row_codec().decode_bf16(reinterpret_cast<const uint16_t*>(row), shape.hidden, out);
        break;
      case Wire::FP32:
        __builtin_memcpy(out, row, static_cast<size_t>(shape.hidden) * sizeof(float));
        break;
    }
  }

  // row[first + i] = values[i] * weight.
  static void write_back(Wire wire, const float* values, float weight, int columns, int first,
                         std::byte* row) {
    if (wire == Wire::FP32) {
      row_codec().scale_f32(values, weight, columns, reinterpret_cast<float*>(row) + first);
    } else {
      row_codec().scale_bf16(values, weight, columns, reinterpret_cast<uint16_t*>(row) + first);
    }
  }

  static void sum_rows(Wire wire, const std::byte* const* rows, int count, int hidden, float* out) {
    if (wire == Wire::FP32) {
      row_codec().sum_f32(rows, count, hidden, out);
    } else {
      row_codec().sum_bf16(rows, count, hidden, out);
    }
  }

  // A rank is one thread.
  static void sync() {}
  static constexpr bool leader() { return true; }
  template <class F>
  static bool on_leader(F&& fn) {
    return fn();
  }
  template <class F>
  static void for_each(int64_t count, F&& fn) {
    for (int64_t i = 0; i < count; ++i) fn(i);
  }

  struct Failures {
    [[noreturn]] void wait_failed(const WaitResult& result, const WaitSite& site, uint64_t expected,
                                  uint64_t deadline_ns) const {
      throw_wait_failed(result, site, expected, deadline_ns);
    }
    [[noreturn]] void bad_expert(int rank, int layer, int token, int id, int experts) const {
      throw_bad_expert(rank, layer, token, id, experts);
    }
    [[noreturn]] void bad_count(int rank, int layer, int tokens) const {
      throw_bad_count(rank, layer, tokens);
    }
  };
};

}  // namespace megamoe::cpu
