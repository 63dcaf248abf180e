// What the boundary must return, to the bit, from the colocated path and the wire's row operations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "megamoe/cpu/wire_rows.h"
#include "tests/megamoe/stress_world.h"

namespace stress {

class Reference {
 public:
  Reference(const Shape& shape, ColocatedExperts& experts) : shape_(shape), experts_(experts) {}

  // The combined rows of one layer of an attention rank's lane.
  std::vector<float> expected(int rank, int layer, const Lane& lane) {
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(lane.tokens);
    const int32_t* ids = lane.ids.data() + first * top_k();
    const std::vector<float> slots = slot_rows(layer, lane, first);
    std::vector<float> out(static_cast<size_t>(lane.tokens) * hidden());
    for (size_t token = 0; token < static_cast<size_t>(lane.tokens); ++token) {
      const int32_t* chosen = ids + token * top_k();
      const float* rows = slots.data() + token * top_k() * hidden();
      float* sum = out.data() + token * hidden();
      if (shape_.return_mode == megamoe::ReturnMode::Slot) {
        for (size_t slot = 0; slot < top_k(); ++slot) add_returned(rows + slot * hidden(), sum);
      } else {
        add_reduced(rank, chosen, rows, sum);
      }
    }
    return out;
  }

 private:
  size_t hidden() const { return static_cast<size_t>(shape_.hidden); }
  size_t top_k() const { return static_cast<size_t>(shape_.top_k); }

  // [tokens][top_k][hidden]: each slot's row, weighted, in float32; zero for an unused slot.
  std::vector<float> slot_rows(int layer, const Lane& lane, size_t first) {
    const auto tokens = static_cast<size_t>(lane.tokens);
    const std::vector<float> x = as_published(lane.x.data() + first * hidden(), tokens);
    std::vector<float> rows(tokens * top_k() * hidden());
    std::vector<int32_t> ids(tokens);
    std::vector<float> weights(tokens);
    const std::lock_guard<std::mutex> lock(busy_);
    for (size_t slot = 0; slot < top_k(); ++slot) {
      for (size_t token = 0; token < tokens; ++token) {
        ids[token] = lane.ids[(first + token) * top_k() + slot];
        weights[token] = lane.weights[(first + token) * top_k() + slot];
      }
      experts_.forward(
          pool_, layer,
          {x.data(), shape_.hidden, ids.data(), weights.data(), rows.data() + slot * hidden(),
           static_cast<int64_t>(top_k() * hidden()), lane.tokens, 1});
    }
    return rows;
  }

  // What an FFN rank reads.
  std::vector<float> as_published(const float* x, size_t tokens) const {
    using megamoe::cpu::WireRows;
    std::vector<std::byte> row(hidden() * sizeof(float));
    std::vector<std::byte> scales(hidden() * sizeof(float));
    std::vector<float> read(tokens * hidden());
    for (size_t token = 0; token < tokens; ++token) {
      float* room = read.data() + token * hidden();
      WireRows::encode_row(shape_, x + token * hidden(), row.data(), scales.data());
      const float* values = WireRows::decode_row(shape_, {row.data(), scales.data()}, room);
      if (values != room) std::copy_n(values, hidden(), room);
    }
    return read;
  }

  // sum += a row that crosses the wire back.
  void add_returned(const float* row, float* sum) const {
    const bool whole = shape_.wire == megamoe::Wire::FP32;
    for (size_t i = 0; i < hidden(); ++i) {
      sum[i] += whole ? row[i] : megamoe::bf16_decode(megamoe::bf16_encode(row[i]));
    }
  }

  // sum = one row from each FFN rank, by the first slot that it serves; in it the rank has added up
  // its slots in the order of their experts.
  void add_reduced(int rank, const int32_t* ids, const float* rows, float* sum) const {
    std::vector<bool> done(static_cast<size_t>(shape_.ffn_ranks));
    for (size_t first = 0; first < top_k(); ++first) {
      if (ids[first] < 0) continue;
      const int owner = owner_of(shape_, rank, ids[first]);
      if (done[static_cast<size_t>(owner)]) continue;
      done[static_cast<size_t>(owner)] = true;
      std::vector<float> reduced(hidden());
      for (int32_t e = 0; e < shape_.experts; ++e) {
        if (owner_of(shape_, rank, e) != owner) continue;
        for (size_t slot = first; slot < top_k(); ++slot) {
          if (ids[slot] != e) continue;
          for (size_t i = 0; i < hidden(); ++i) reduced[i] += rows[slot * hidden() + i];
        }
      }
      add_returned(reduced.data(), sum);
    }
  }

  Shape shape_;
  ColocatedExperts& experts_;
  megamoe::cpu::Pool pool_{1};
  std::mutex busy_;
};

}  // namespace stress
