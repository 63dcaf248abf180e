// The target that the model checker instantiates the roles with: every operation on a word, every
// call of the kernel and every use of a buffer is a step that others may come before.
//
// Waiting and waking are cpu/wait.h's own code over the checker's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "megamoe/cpu/wait.h"
#include "megamoe/ffn_side.h"
#include "megamoe/layout.h"
#include "megamoe/memory.h"
#include "megamoe/simt/lists.h"
#include "tests/megamoe/model_explorer.h"

namespace model {

using megamoe::Memory;
using megamoe::Shape;
using megamoe::Wire;
using megamoe::Word;
using megamoe::WordName;

// What is wrong on purpose.
enum class Bug { None, NoSecondLook, OneFlag, NoWake, EarlyPub, EarlyDone, LateRead };

struct Checker {
  Explorer* explorer;
  Memory memory;
  Bug bug;
  bool aborts;  // some process raises the abort word
  // A wait is one step, which is possible once its word is reached: what wait.h is shown to be.
  bool atomic_waits;
  const Word* focus = nullptr;  // the one word whose waits are not
};

// The one search of this program: the roles' target has static functions alone.
inline Checker* checker = nullptr;

inline constexpr const char* kLoads = "loads";
inline constexpr const char* kSleeps = "sleeps on";

inline Place& place() { return checker->explorer->current().state.place; }
inline uint64_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// A word's value by its address: which word of whom.
struct Named {
  WordName word;
  int rank;
  int lane;
  int ffn_rank;
  bool found;
  bool is_value;  // not the count of wake-ups
};

inline Named named(const void* address) {
  const Shape& shape = checker->memory.layout.shape;
  for (int a = 0; a < shape.attention_ranks; ++a) {
    for (int lane = 0; lane < shape.lanes; ++lane) {
      const auto is = [&](const Word& word) {
        return address == &word.value || address == &word.sleepers;
      };
      const Word& pub = checker->memory.pub(a, lane);
      if (is(pub)) return {WordName::Pub, a, lane, 0, true, address == &pub.value};
      for (int f = 0; f < shape.ffn_ranks; ++f) {
        const Word& done = checker->memory.done(a, lane, f);
        if (is(done)) return {WordName::Done, a, lane, f, true, address == &done.value};
      }
    }
  }
  return {WordName::Pub, 0, 0, 0, false, false};
}

// How much later a word is taken to be than it is.
inline uint64_t early(const void* address) {
  if (checker->bug != Bug::EarlyPub && checker->bug != Bug::EarlyDone) return 0;
  const WordName word = checker->bug == Bug::EarlyPub ? WordName::Pub : WordName::Done;
  const Named name = named(address);
  return name.found && name.word == word ? 1 : 0;
}

inline bool is_reached(const Process& process) {
  const uint64_t seen =
      *static_cast<const uint64_t*>(process.state.address) + early(process.state.address);
  return megamoe::reached(seen, process.state.expected);
}

inline bool has_atomic_waits(const void* address) {
  const Word* focus = checker->focus;
  const bool in_focus =
      focus != nullptr && (address == &focus->value || address == &focus->sleepers);
  return checker->atomic_waits && !in_focus;
}

inline bool enabled(const Process& process) {
  const bool waits = process.state.operation == kLoads && has_atomic_waits(process.state.address);
  return !waits || is_reached(process);
}

// Numbers only grow. So a word that is reached stays so, and a stale ticket stays stale: it does
// not matter whether others go first.
inline bool commutes(const Process& process) {
  // Few enough states without.
  if (checker->atomic_waits && checker->focus == nullptr) return false;
  const Process::State& state = process.state;
  if (state.operation == kLoads && named(state.address).is_value) {
    if (checker->bug == Bug::NoSecondLook && state.place.announced != 0) return false;
    return is_reached(process);
  }
  if (state.operation == kSleeps) {
    return checker->bug != Bug::OneFlag && *state.ticket_of != state.ticket;
  }
  return false;
}

struct ModelMemory {
  template <class T>
  static T load(const T& value) {
    // A word that nobody writes is no step.
    const bool is_abort = bits(&value) == bits(&checker->memory.abort().value);
    if (!is_abort || checker->aborts) checker->explorer->point(kLoads, &value);
    place().saw(bits(&value));
    // Of the number of wake-ups a waker uses the parity.
    place().saw(sizeof(T) == sizeof(Word::sleepers) ? value % 2 : value);
    return value;
  }
  template <class T>
  static void store(T& value, T next) {
    checker->explorer->point("stores", &value);
    value = next;
    place().saw(bits(&value));
    place().saw(next);
  }
  static uint32_t add(uint32_t& value, uint32_t more) {
    checker->explorer->point("adds to", &value);
    value += more;
    place().saw(bits(&value));
    return value - more;
  }
  static uint32_t bit_or(uint32_t& value, uint32_t more) {
    checker->explorer->point("announces itself at", &value);
    const uint32_t before = value;
    value |= more;
    return before;
  }
  static void store_if_zero(uint64_t& value, uint64_t next) {
    checker->explorer->point("stores if zero", &value);
    if (value == 0) value = next;
    place().mark();
  }
  static void futex_wake(uint32_t& value) {
    checker->explorer->point("wakes the sleepers of", &value);
    checker->explorer->wake(&value);
    place().saw(bits(&value));
  }
  static void futex_wait(uint32_t& value, uint32_t expected, uint64_t) {
    checker->explorer->point(kSleeps, &value);
    if (checker->bug == Bug::OneFlag) expected = value | 1;
    if (value == expected) checker->explorer->block(&value);
  }
  static uint64_t now_ns() { return 0; }
};

// What the expert makes of a row.
inline float computed(float x, int expert) { return x * static_cast<float>(expert + 1); }

struct Target : megamoe::cpu::WaitingOver<ModelMemory> {
  using Waits = megamoe::cpu::WaitingOver<ModelMemory>;
  using Lists = megamoe::simt::Lists;

  // Waits go to sleep at once.
  struct Backoff {
    bool spin(uint64_t) { return false; }
  };

  static uint64_t load_acquire(const uint64_t& value) {
    const uint64_t seen = Waits::load_acquire(value);
    if (checker->bug == Bug::NoSecondLook && place().announced != 0) return 0;
    return seen + early(&value);
  }
  static void wake_if_sleeping(Word& word) {
    if (checker->bug != Bug::NoWake && !has_atomic_waits(&word.value)) {
      Waits::wake_if_sleeping(word);
    }
    place().mark();
  }
  // What a wait saw before it announces itself, or before it slept, it looks at again.
  static uint32_t announce_sleep(Word& word) {
    place().seen = 0;
    place().saw(bits(&word));
    const uint32_t ticket = Waits::announce_sleep(word);
    place().announced = 1;
    checker->explorer->current().state.ticket_of = &word.sleepers;
    checker->explorer->current().state.ticket = ticket;
    return ticket;
  }
  static void sleep(Word& word, uint32_t ticket, uint64_t limit_ns) {
    place().seen = 0;
    place().saw(bits(&word));
    Waits::sleep(word, ticket, limit_ns);
    place().announced = 0;
    checker->explorer->current().state.ticket_of = nullptr;
  }

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

  // A row is one float.
  static void encode_row(const Shape&, const float* x, std::byte* row, std::byte*) {
    checker->explorer->writes(reinterpret_cast<float*>(row), *x);
  }
  static void write_back(Wire, const float* values, float weight, int, int, std::byte* row) {
    checker->explorer->writes(reinterpret_cast<float*>(row), *values * weight);
  }
  // The token's slot s went to expert s; *out says what was published.
  static void sum_rows(Wire, const std::byte* const* rows, int count, int, float* out) {
    for (int slot = 0; slot < count; ++slot) {
      checker->explorer->reads(reinterpret_cast<const float*>(rows[slot]), computed(*out, slot),
                               "OUT was read before it was written, or written before it was read");
    }
  }

  struct Failures {
    void wait_failed(const megamoe::WaitResult& result, const megamoe::WaitSite&, uint64_t,
                     uint64_t) const {
      if (result.end != megamoe::WaitEnd::Aborted || !checker->aborts) {
        checker->explorer->fail("a wait ended without its word and without an abort");
      }
    }
    void bad_expert(int, int, int, int, int) const {
      checker->explorer->fail("ids that nobody published were read");
    }
    void bad_count(int, int, int) const {
      checker->explorer->fail("a count that nobody published was read");
    }
  };

  class Experts;
};

// What attention rank a publishes for a number q on a lane.
inline float published(uint64_t q, int lane, int rank) {
  return static_cast<float>(q * 16 + static_cast<uint64_t>(lane) * 4 + static_cast<uint64_t>(rank));
}

// One expert. Rows stay in IN until they are computed, the latest moment at which any target reads
// them; each is checked.
class Target::Experts {
 public:
  Experts(int expert, int lanes) : expert_(expert), lanes_(lanes) {}

  int owned() const { return 1; }
  size_t id(int) const { return static_cast<size_t>(expert_); }

  template <class Where>
  void pull(const Shape&, size_t count, Where&& where) {
    // Units follow each other as (step, layer, lane).
    const uint64_t q = unit_ / static_cast<uint64_t>(lanes_) + 1;
    const int lane = static_cast<int>(unit_ % static_cast<uint64_t>(lanes_));
    if (checker->bug == Bug::LateRead && unit_ > 0) read(rows_[0]);  // still the last unit's
    for (size_t i = 0; i < count; ++i) {
      rows_[i] = {reinterpret_cast<const float*>(where(i).row),
                  published(q, lane, static_cast<int>(i))};
    }
    ++unit_;
    checker->explorer->current().state.expected = unit_ / static_cast<uint64_t>(lanes_) + 1;
  }

  template <class Sink>
  void compute(int, int, const megamoe::TileSchedule<Lists>& schedule, Sink&& sink) {
    for (size_t i = 0; i < schedule.copies().size(); ++i) {
      const Row& row = rows_[schedule.copies()[i].row];
      read(row);
      const float value = computed(row.published, expert_);
      sink(static_cast<int>(i), &value, 0, 1);
    }
  }

  // The mode that sums on the FFN rank uses the same words and is not modelled.
  void clear_sums(const Shape&, size_t) {}
  void add_to_sum(const Shape&, int, const float*, float, int, int) {}
  template <class Where>
  void return_sums(const Shape&, size_t, Where&&) {}

 private:
  struct Row {
    const float* data;
    float published;
  };
  static void read(const Row& row) {
    checker->explorer->reads(row.data, row.published,
                             "IN was read before it was written, or written before it was read");
  }
  static constexpr int kMostRows = 4;
  int expert_;
  int lanes_;
  uint64_t unit_ = 0;
  Row rows_[kMostRows] = {};
};

}  // namespace model
