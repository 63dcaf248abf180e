// Lists on the heap, for the roles and the tile schedule.
#pragma once

#include <cstddef>
#include <vector>

#include "megamoe/tile_schedule.h"

namespace megamoe::cpu {

struct Lists {
  template <class T>
  using List = std::vector<T>;
  // Room for `capacity`; a vector grows as it needs.
  template <class T>
  List<T> empty(size_t /*capacity*/) {
    return {};
  }
  template <class T>
  List<T> zeros(size_t count) {
    return List<T>(count);
  }
};

using TileSchedule = megamoe::TileSchedule<Lists>;

}  // namespace megamoe::cpu
