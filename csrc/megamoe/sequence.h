// The words: publish with release, await with acquire, a deadline and the abort word.
//
// A word only grows. Comparison is by signed difference, so it may wrap.
#pragma once

#include <cstdint>

#include "megamoe/host_device.h"

namespace megamoe {

// In the mapping, on a line of its own. `sleepers` is odd while somebody may sleep on it, and
// another number after every wake-up.
struct Word {
  uint64_t value;
  uint32_t sleepers;
};

constexpr int kGenerationShift = 40;

MEGAMOE_HOST_DEVICE constexpr uint64_t sequence_number(uint64_t generation, uint64_t step,
                                                       uint64_t moe_layers, uint64_t layer) {
  return (generation << kGenerationShift) + step * moe_layers + layer + 1;
}

MEGAMOE_HOST_DEVICE constexpr bool reached(uint64_t seen, uint64_t expected) {
  return static_cast<int64_t>(seen - expected) >= 0;
}

// The abort word's value for a culprit (a global rank, or -1), and back. 0 is "not raised".
MEGAMOE_HOST_DEVICE constexpr uint64_t abort_value(int culprit) {
  return static_cast<uint64_t>(culprit + 2);
}
MEGAMOE_HOST_DEVICE constexpr int abort_culprit(uint64_t value) {
  return static_cast<int>(value) - 2;
}

// What the group's threads wrote before is visible to whoever sees the word.
template <class Target>
MEGAMOE_ROLE void publish(Word& word, uint64_t value) {
  Target::sync();
  if (!Target::leader()) return;
  Target::store_release(word.value, value);
  Target::wake_if_sleeping(word);
}

enum class WaitEnd { Reached, Aborted, Deadline };

struct WaitResult {
  WaitEnd end;
  uint64_t seen;  // the word; the abort word if that ended the wait
  uint64_t waited_ns;
};

// For the leader. Returns once word >= expected, the abort word is raised or `deadline_ns` have
// passed. What was written before the publication of `expected` is visible to the caller
// afterwards.
template <class Target>
MEGAMOE_ROLE WaitResult await(Word& word, uint64_t expected, const Word& abort,
                              uint64_t deadline_ns) {
  uint64_t seen = Target::load_acquire(word.value);
  uint64_t aborted = Target::load_acquire(abort.value);
  if (reached(seen, expected) && aborted == 0) return {WaitEnd::Reached, seen, 0};
  const uint64_t start_ns = Target::now_ns();
  uint64_t waited_ns = 0;
  typename Target::Backoff backoff;
  for (;;) {
    if (aborted != 0) return {WaitEnd::Aborted, aborted, waited_ns};
    if (reached(seen, expected)) return {WaitEnd::Reached, seen, waited_ns};
    if (waited_ns >= deadline_ns) return {WaitEnd::Deadline, seen, waited_ns};
    if (!backoff.spin(waited_ns)) {
      // Announce, look again, sleep: the publisher stores, then looks for sleepers. Both are
      // sequentially consistent, so one of the two sees the other. A wake-up after the second look
      // makes the ticket stale, also if another waiter announces itself in between.
      const uint32_t ticket = Target::announce_sleep(word);
      if (!reached(Target::load_acquire(word.value), expected) &&
          Target::load_acquire(abort.value) == 0) {
        Target::sleep(word, ticket, deadline_ns - waited_ns);
      }
    }
    seen = Target::load_acquire(word.value);
    aborted = Target::load_acquire(abort.value);
    waited_ns = Target::now_ns() - start_ns;
  }
}

// Raises the abort word unless it is up already; the caller then wakes every word's sleepers.
template <class Target>
MEGAMOE_ROLE void raise_abort(Word& abort, int culprit) {
  Target::store_if_zero(abort.value, abort_value(culprit));
}

}  // namespace megamoe
