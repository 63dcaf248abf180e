// The expert network's shape of work, shared by every target: two phases over (tile, columns).
//
//   phase 1   act[copy] = silu(gate) * up      from the pulled rows
//   phase 2   out[copy] = weight * down(act)   handed to a sink, column range by column range
#pragma once

#include <cstdint>

namespace megamoe {

// A tile's columns, split so that every thread of a pool has work even for one token.
struct ColumnSplit {
  int tiles;
  int parts;

  // `panels`: the fewest columns a part can have; `workers`: threads to keep busy.
  static ColumnSplit make(int tiles, int panels, int workers) {
    constexpr int kTasksPerWorker = 4;
    if (tiles == 0) return {0, 1};
    const int wanted = workers == 1 ? 1 : (kTasksPerWorker * workers + tiles - 1) / tiles;
    return {tiles, wanted < panels ? (wanted > 1 ? wanted : 1) : panels};
  }

  int tasks() const { return tiles * parts; }
  int tile(int task) const { return task / parts; }
  int begin(int task, int panels) const { return panels * (task % parts) / parts; }
  int end(int task, int panels) const { return panels * (task % parts + 1) / parts; }
};

}  // namespace megamoe
