// One process's view of a launch's symmetric memory.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "megamoe/cpu/mapping.h"
#include "megamoe/cpu/target.h"
#include "megamoe/handshake.h"
#include "megamoe/memory.h"

namespace megamoe::cpu {

class Domain {
 public:
  Domain(int fd, const Layout& layout, bool create, uint64_t generation)
      : mapping_(create ? fd : agreeing(fd, layout, generation), layout.total_bytes),
        memory_{mapping_.data(), layout, generation} {
    if (!create) return;
    reset();
    offer_handshake(layout, generation,
                    reinterpret_cast<int64_t*>(memory_.base + layout.handshake.offset));
  }

  const Memory& memory() const { return memory_; }

  // Wakes every waiting rank with Aborted. The first culprit stays.
  void raise_abort(int culprit) {
    megamoe::raise_abort<Target>(memory_.abort(), culprit);
    memory_.for_each_word([](Word& word) { Target::wake(word); });
  }

  // After this a side must not touch the memory; it stays mapped until the last side is gone.
  void close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }

  // Enters this side's ownership table [attention_ranks][experts], or compares it with the one
  // already there; throws HandshakeError naming the expert and both ranks.
  void agree_on_owners(const std::vector<int32_t>& owners) {
    int32_t* table = memory_.owner(0);
    for (size_t i = 0; i < owners.size(); ++i) {
      const std::atomic_ref word(table[i]);
      int32_t seen = word.load();
      // Others may read the table by then: what is entered is compared, not exchanged.
      if (seen == 0 && word.compare_exchange_strong(seen, owners[i] + 1)) continue;
      if (seen == owners[i] + 1) continue;
      throw_owner_differs(i, memory_.layout.shape.experts, owners[i], seen - 1);
    }
  }

 private:
  // Read before mapping: where shapes differ so do sizes, and the shape is the better explanation.
  static int agreeing(int fd, const Layout& layout, uint64_t generation) {
    std::array<int64_t, kHandshakeFields> region{};
    const ssize_t bytes = pread(fd, region.data(), sizeof(region), layout.handshake.offset);
    if (bytes < 0) {
      throw std::system_error(errno, std::generic_category(), "symmetric memory: pread");
    }
    compare_handshake(layout, generation, region.data());
    return fd;
  }

  // Words start just below the generation's first number, so that none looks reached.
  void reset() {
    memory_.abort() = Word{};
    const uint64_t start = memory_.generation << kGenerationShift;
    memory_.for_each_word([start](Word& word) { word = Word{start, 0}; });
    std::memset(memory_.owner(0), 0, memory_.layout.owner.bytes);
  }

  Mapping mapping_;
  Memory memory_;
  std::atomic<bool> closed_{false};
};

}  // namespace megamoe::cpu
