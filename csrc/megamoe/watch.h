// Where an FFN rank is within a step, for a timeline. A side that nobody watches holds no trace of
// it.
#pragma once

#include "megamoe/host_device.h"

namespace megamoe {

// One lane of one layer is, in this order, awaited, computed and published.
struct NoWatch {
  MEGAMOE_ROLE void waiting(int /*layer*/, int /*lane*/) {}
  MEGAMOE_ROLE void computing() {}
  // `sources`: each attention rank's Routes; `schedule`: what was computed.
  template <class Sources, class Schedule>
  MEGAMOE_ROLE void published(const Sources& /*sources*/, const Schedule& /*schedule*/) {}
};

}  // namespace megamoe
