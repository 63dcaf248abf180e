// What a role says when it cannot go on, as exceptions.
#pragma once

#include <cstdint>
#include <string>

#include "megamoe/errors.h"
#include "megamoe/memory.h"

namespace megamoe {

[[noreturn]] inline void throw_wait_failed(const WaitResult& result, const WaitSite& site,
                                           uint64_t expected, uint64_t deadline_ns) {
  const std::string who = "rank " + std::to_string(site.rank) + " waiting for " +
                          name_of(site.word) + " of rank " + std::to_string(site.other) +
                          " (step " + std::to_string(site.step) + ", MoE layer " +
                          std::to_string(site.layer) + ", lane " + std::to_string(site.lane) + ")";
  if (result.end == WaitEnd::Aborted) {
    const int culprit = abort_culprit(result.seen);
    throw Aborted(
        who + " was told to abort" +
            (culprit >= 0 ? " because of rank " + std::to_string(culprit) : std::string()),
        culprit);
  }
  throw Deadline(who + " gave up after " + std::to_string(deadline_ns / 1'000'000) +
                 " ms: expected " + std::to_string(expected) + ", seen " +
                 std::to_string(result.seen));
}

[[noreturn]] inline void throw_bad_expert(int rank, int layer, int token, int id, int experts) {
  throw BadExpertId("rank " + std::to_string(rank) + ", MoE layer " + std::to_string(layer) +
                    ", token " + std::to_string(token) + ": expert id " + std::to_string(id) +
                    " is outside [-1, " + std::to_string(experts) + ")");
}

[[noreturn]] inline void throw_bad_count(int rank, int layer, int tokens) {
  throw Error("rank " + std::to_string(rank) + ", MoE layer " + std::to_string(layer) +
              ": a count of " + std::to_string(tokens) + " tokens exceeds the buffer");
}

}  // namespace megamoe
