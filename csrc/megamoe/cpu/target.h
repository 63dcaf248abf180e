// The CPU target: what the protocol's templates ask of a machine.
#pragma once

#include <cstdint>

#include "megamoe/cpu/experts.h"
#include "megamoe/cpu/lists.h"
#include "megamoe/cpu/wait.h"
#include "megamoe/cpu/wire_rows.h"
#include "megamoe/failures.h"

namespace megamoe::cpu {

struct Target : Waiting, WireRows {
  using Lists = cpu::Lists;
  using Experts = ExpertsOver<WireRows>;

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
