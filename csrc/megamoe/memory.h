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
  uint64_t generation;

  MEGAMOE_HOST_DEVICE Word& abort() const { return at<Word>(layout.abort.offset); }
  // [experts]: the FFN rank + 1 that serves this attention rank; 0 while nobody has said.
  MEGAMOE_HOST_DEVICE int32_t* owner(int rank) const {
    return &at<int32_t>(layout.owner.offset) + index(rank) * index(layout.shape.experts);
  }

  MEGAMOE_HOST_DEVICE uint64_t sequence(uint64_t step, int layer) const {
    return sequence_number(generation, step, index(layout.shape.moe_layers), index(layer));
  }
  MEGAMOE_HOST_DEVICE Word& pub(int rank, int lane) const {
    return in_lane<Word>(rank, lane, layout.pub.offset);
  }
  MEGAMOE_HOST_DEVICE Word& done(int rank, int lane, int ffn_rank) const {
    return in_lane<Word>(rank, lane, layout.done_of(ffn_rank));
  }
  MEGAMOE_HOST_DEVICE int32_t& count(int rank, int lane) const {
    return in_lane<int32_t>(rank, lane, layout.count.offset);
  }
  MEGAMOE_HOST_DEVICE std::byte* row(int rank, int lane, int token) const {
    return &in_lane<std::byte>(rank, lane, layout.rows.offset + layout.row_bytes() * index(token));
  }
  MEGAMOE_HOST_DEVICE std::byte* scales(int rank, int lane, int token) const {
    return &in_lane<std::byte>(rank, lane,
                               layout.scales.offset + layout.row_scale_bytes() * index(token));
  }
  MEGAMOE_HOST_DEVICE int32_t* ids(int rank, int lane) const {
    return &in_lane<int32_t>(rank, lane, layout.ids.offset);
  }
  MEGAMOE_HOST_DEVICE float* weights(int rank, int lane) const {
    return &in_lane<float>(rank, lane, layout.weights.offset);
  }
  MEGAMOE_HOST_DEVICE std::byte* out(int rank, int lane, int token, int slot) const {
    const uint64_t row = index(token) * index(layout.shape.top_k) + index(slot);
    return &in_lane<std::byte>(rank, lane, layout.out.offset + layout.out_row_bytes() * row);
  }

  // Calls fn(word) for every word somebody may wait for.
  template <class F>
  MEGAMOE_HOST_DEVICE void for_each_word(F&& fn) const {
    const Shape& shape = layout.shape;
    for (int rank = 0; rank < shape.attention_ranks; ++rank) {
      for (int lane = 0; lane < shape.lanes; ++lane) {
        fn(pub(rank, lane));
        for (int f = 0; f < shape.ffn_ranks; ++f) fn(done(rank, lane, f));
      }
    }
  }

 private:
  MEGAMOE_HOST_DEVICE static uint64_t index(int value) { return static_cast<uint64_t>(value); }
  template <class T>
  MEGAMOE_HOST_DEVICE T& at(uint64_t offset) const {
    return *reinterpret_cast<T*>(base + offset);
  }
  template <class T>
  MEGAMOE_HOST_DEVICE T& in_lane(int rank, int lane, uint64_t offset) const {
    return at<T>(layout.lane(rank, lane) + offset);
  }
};

enum class WordName : int32_t { Pub, Done };
constexpr const char* name_of(WordName word) { return word == WordName::Pub ? "PUB" : "DONE"; }

// Who waits for whose word, and when. Ranks are global: attention ranks first.
struct WaitSite {
  int rank;
  WordName word;
  int other;
  uint64_t step;
  int layer;
  int lane;
};

// Awaits `word`; the leader adds to waited_ns. Anything but success is Target::Failures' to report;
// false if that returns.
template <class Target>
MEGAMOE_ROLE bool expect(Word& word, const Memory& memory, uint64_t deadline_ns,
                         uint64_t& waited_ns, const WaitSite& site,
                         const typename Target::Failures& failures) {
  return Target::on_leader([&] {
    const uint64_t expected = memory.sequence(site.step, site.layer);
    const WaitResult result = await<Target>(word, expected, memory.abort(), deadline_ns);
    waited_ns += result.waited_ns;
    if (result.end == WaitEnd::Reached) return true;
    failures.wait_failed(result, site, expected, deadline_ns);
    return false;
  });
}

}  // namespace megamoe
