// The CPU target: what the protocol's templates ask of a machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megamoe/cpu/expert_bank.h"
#include "megamoe/cpu/row_codec.h"
#include "megamoe/cpu/wait.h"
#include "megamoe/errors.h"
#include "megamoe/layout.h"
#include "megamoe/memory.h"

namespace megamoe::cpu {

struct Target : Waiting {
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
          rows_[i] = reinterpret_cast<const float*>(where(i).first);
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

  [[noreturn]] static void wait_failed(const WaitResult& result, const WaitSite& site,
                                       uint64_t expected, uint64_t deadline_ns) {
    const std::string who =
        "rank " + std::to_string(site.rank) + " waiting for " + site.word + " of rank " +
        std::to_string(site.other) + " (step " + std::to_string(site.step) + ", MoE layer " +
        std::to_string(site.layer) + ", lane " + std::to_string(site.lane) + ")";
    if (result.end == WaitEnd::Aborted) {
      const int culprit = abort_culprit(result.seen);
      throw Aborted(who + " was told to abort" +
                        (culprit >= 0 ? " because of rank " + std::to_string(culprit) : ""),
                    culprit);
    }
    throw Deadline(who + " gave up after " + std::to_string(deadline_ns / 1'000'000) +
                   " ms: expected " + std::to_string(expected) + ", seen " +
                   std::to_string(result.seen));
  }

  [[noreturn]] static void bad_expert(int rank, int layer, int token, int id, int experts) {
    throw BadExpertId("rank " + std::to_string(rank) + ", MoE layer " + std::to_string(layer) +
                      ", token " + std::to_string(token) + ": expert id " + std::to_string(id) +
                      " is outside [-1, " + std::to_string(experts) + ")");
  }

  [[noreturn]] static void bad_count(int rank, int layer, int tokens) {
    throw Error("rank " + std::to_string(rank) + ", MoE layer " + std::to_string(layer) +
                ": a count of " + std::to_string(tokens) + " tokens exceeds the buffer");
  }
};

}  // namespace megamoe::cpu
