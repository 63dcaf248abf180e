// One process's view of a launch's symmetric memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megamoe/cpu/mapping.h"
#include "megamoe/cpu/target.h"
#include "megamoe/handshake.h"
#include "megamoe/memory.h"

namespace megamoe::cpu {

class Domain {
 public:
  Domain(int fd, const Layout& layout, bool create)
      : mapping_(fd, layout.total_bytes), memory_{mapping_.data(), layout} {
    auto* region = reinterpret_cast<int64_t*>(memory_.base + layout.handshake.offset);
    if (create) {
      offer_handshake(layout, region);
    } else {
      compare_handshake(layout, region);
    }
  }

  const Memory& memory() const { return memory_; }

  // Wakes every waiting rank with Aborted. The first culprit stays.
  void raise_abort(int culprit) {
    megamoe::raise_abort<Target>(memory_.abort(), culprit);
    const Shape& shape = memory_.layout.shape;
    for (int rank = 0; rank < shape.attention_ranks; ++rank) {
      for (int lane = 0; lane < shape.lanes; ++lane) {
        Target::wake(memory_.pub(rank, lane));
        for (int f = 0; f < shape.ffn_ranks; ++f) Target::wake(memory_.done(rank, lane, f));
      }
    }
  }

  // Enters this side's ownership table, or compares it with the one already there; throws
  // HandshakeError naming the expert and both ranks.
  void agree_on_owners(const std::vector<int32_t>& owners) {
    int32_t* table = memory_.owner();
    for (size_t expert = 0; expert < owners.size(); ++expert) {
      int32_t seen = 0;
      std::atomic_ref word(table[expert]);
      if (word.compare_exchange_strong(seen, owners[expert] + 1) || seen == owners[expert] + 1) {
        continue;
      }
      throw HandshakeError("handshake: field owner of expert " + std::to_string(expert) +
                           " differs: this side has FFN rank " + std::to_string(owners[expert]) +
                           ", another has " + std::to_string(seen - 1));
    }
  }

 private:
  Mapping mapping_;
  Memory memory_;
};

}  // namespace megamoe::cpu
