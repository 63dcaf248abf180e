// How a role tells the host why it stopped: a kernel cannot throw.
#pragma once

#include <cstdint>

#include "megamoe/failures.h"
#include "megamoe/host_device.h"
#include "megamoe/memory.h"

namespace megamoe::simt {

struct Report {
  enum class Kind : int32_t { None, Wait, BadExpert, BadCount };
  Kind kind;
  // Of a wait.
  WaitResult result;
  WaitSite site;
  uint64_t expected;
  uint64_t deadline_ns;
  // Of a route.
  int rank;
  int layer;
  int token;
  int value;
  int limit;

  // What the CPU target throws for the same.
  void raise() const {
    switch (kind) {
      case Kind::None:
        break;
      case Kind::Wait:
        throw_wait_failed(result, site, expected, deadline_ns);
      case Kind::BadExpert:
        throw_bad_expert(rank, layer, token, value, limit);
      case Kind::BadCount:
        throw_bad_count(rank, layer, value);
    }
  }
};

// Of the leader.
struct Failures {
  Report* report;

  MEGAMOE_ROLE void wait_failed(const WaitResult& result, const WaitSite& site, uint64_t expected,
                                uint64_t deadline_ns) const {
    *report = {Report::Kind::Wait, result, site, expected, deadline_ns, 0, 0, 0, 0, 0};
  }
  MEGAMOE_ROLE void bad_expert(int rank, int layer, int token, int id, int experts) const {
    *report = {Report::Kind::BadExpert, {}, {}, 0, 0, rank, layer, token, id, experts};
  }
  MEGAMOE_ROLE void bad_count(int rank, int layer, int tokens) const {
    *report = {Report::Kind::BadCount, {}, {}, 0, 0, rank, layer, 0, tokens, 0};
  }
};

}  // namespace megamoe::simt
