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
    void pull(Wire wire, int hidden, size_t count, Where&& where) {
      rows_.resize(count);
      if (wire == Wire::FP32) {  // usable where it lies
        for (size_t i = 0; i < count; ++i) {
          rows_[i] = reinterpret_cast<const float*>(where(i).row);
        }
        return;
      }
      const auto width = static_cast<size_t>(hidden);
      float* decoded = decoded_.reserve(count * width);
      const auto decode = [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          const auto [row, scales] = where(i);
          decode_row(wire, row, scales, hidden, decoded + i * width);
          rows_[i] = decoded + i * width;
        }
      };
      // Waking a thread costs as much as decoding some thousands of elements.
      constexpr size_t kTaskElements = 32 * 1024;
      const size_t tasks = std::max<size_t>(1, count * width / kTaskElements);
      pool_->parallel_for(static_cast<int>(tasks), [&](int task) {
        const auto part = static_cast<size_t>(task);
        decode(count * part / tasks, count * (part + 1) / tasks);
      });
    }

    // Of the rows pulled last.
    template <class Sink>
    void compute(int layer, const TileSchedule& schedule, Sink&& sink) {
      bank_->compute(*pool_, layer, schedule, rows_.data(), scratch_, std::forward<Sink>(sink));
    }

   private:
    const ExpertBank* bank_;
    Pool* pool_;
    std::vector<const float*> rows_;
    GrowBuffer<float> decoded_;
    ExpertScratch scratch_;
  };

  static void encode_row(Wire wire, const float* x, int hidden, std::byte* row, float* scales) {
    switch (wire) {
      case Wire::FP8:
        row_codec().encode_fp8(x, hidden, reinterpret_cast<uint8_t*>(row), scales);
        break;
      case Wire::BF16:
        row_codec().encode_bf16(x, hidden, reinterpret_cast<uint16_t*>(row));
        break;
      case Wire::FP32:
        __builtin_memcpy(row, x, static_cast<size_t>(hidden) * sizeof(float));
        break;
    }
  }

  static void decode_row(Wire wire, const std::byte* row, const float* scales, int hidden,
                         float* out) {
    switch (wire) {
      case Wire::FP8:
        row_codec().decode_fp8(reinterpret_cast<const uint8_t*>(row), scales, hidden, out);
        break;
      case Wire::BF16:
        row_codec().decode_bf16(reinterpret_cast<const uint16_t*>(row), hidden, out);
        break;
      case Wire::FP32:
        __builtin_memcpy(out, row, static_cast<size_t>(hidden) * sizeof(float));
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
