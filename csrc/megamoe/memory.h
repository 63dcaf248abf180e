// Typed access to the symmetric memory: where each word and row of a Layout lies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/layout.h"
#include "megamoe/sequence.h"

namespace megamoe {

struct Memory {
  std::byte* base;
  Layout layout;

  Word& abort() const { return at<Word>(layout.abort.offset); }
  int32_t* owner() const { return &at<int32_t>(layout.owner.offset); }

  Word& pub(int rank, int lane) const { return in_lane<Word>(rank, lane, layout.pub.offset); }
  Word& done(int rank, int lane, int ffn_rank) const {
    return in_lane<Word>(rank, lane, layout.done_of(ffn_rank));
  }
  int32_t& count(int rank, int lane) const {
    return in_lane<int32_t>(rank, lane, layout.count.offset);
  }
  std::byte* row(int rank, int lane, int token) const {
    return &in_lane<std::byte>(rank, lane, layout.rows.offset + layout.row_bytes() * index(token));
  }
  float* scales(int rank, int lane, int token) const {
    return &in_lane<float>(rank, lane, layout.scales.offset) +
           index(token) * index(layout.row_scales());
  }
  int32_t* ids(int rank, int lane) const {
    return &in_lane<int32_t>(rank, lane, layout.ids.offset);
  }
  float* weights(int rank, int lane) const {
    return &in_lane<float>(rank, lane, layout.weights.offset);
  }
  std::byte* out(int rank, int lane, int token, int slot) const {
    const uint64_t row = index(token) * index(layout.shape.top_k) + index(slot);
    return &in_lane<std::byte>(rank, lane, layout.out.offset + layout.out_row_bytes() * row);
  }

 private:
  static uint64_t index(int value) { return static_cast<uint64_t>(value); }
  template <class T>
  T& at(uint64_t offset) const {
    return *reinterpret_cast<T*>(base + offset);
  }
  template <class T>
  T& in_lane(int rank, int lane, uint64_t offset) const {
    return at<T>(layout.lane(rank, lane) + offset);
  }
};

// How a wait that did not end well is told; every rank is global: attention ranks first.
template <class Target>
void expect(Word& word, uint64_t expected, const Memory& memory, uint64_t deadline_ns,
            uint64_t& waited_ns, int rank, const char* name, int other) {
  const WaitResult result = await<Target>(word, expected, memory.abort(), deadline_ns);
  waited_ns += result.waited_ns;
  if (result.end == WaitEnd::Reached) return;
  Target::wait_failed(result, rank, name, other, expected, deadline_ns);
}

}  // namespace megamoe
