// The order of expert tiles: routed copies grouped by owned expert, in (source, token, slot) order.
//
// The order depends on the routes alone, never on who arrived first, so every run and every target
// computes the same tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/host_device.h"

namespace megamoe {

// One source's top-k ids [tokens][top_k]; -1 is an unused slot.
struct Routes {
  const int32_t* ids;
  int32_t tokens;
  // [experts]: the expert's index among the owned, or -1 if another rank serves this source.
  const int32_t* owned_index;
};

struct PulledRow {
  int32_t source;
  int32_t token;
  int32_t slot;  // the first that this rank serves
};

struct RoutedCopy {
  int32_t row;   // index of the pulled row it multiplies
  int32_t slot;  // among the token's top_k
};

struct Tile {
  int32_t expert;  // index among the owned experts
  int32_t first;   // copy
  int32_t rows;
};

// The first id outside [-1, experts); no source if there is none.
struct BadRoute {
  int32_t source;
  int32_t token;
  int32_t id;

  MEGAMOE_ROLE explicit operator bool() const { return source >= 0; }
};

// Of the leader: on a GPU one thread builds what all read.
template <class Lists>
class TileSchedule {
 public:
  static constexpr int kTileRows = 96;

  template <class T>
  using List = typename Lists::template List<T>;

  // For at most this many rows, copies and owned experts.
  MEGAMOE_HOST_DEVICE explicit TileSchedule(Lists& lists, size_t rows, size_t copies, size_t owned)
      : rows_(lists.template empty<PulledRow>(rows)),
        slots_(lists.template empty<Slot>(copies)),
        copies_(lists.template empty<RoutedCopy>(copies)),
        tiles_(lists.template empty<Tile>(owned + copies / kTileRows)),
        ends_(lists.template empty<int32_t>(owned + 1)) {}
  TileSchedule() = default;

  // After a bad route the schedule is empty.
  MEGAMOE_ROLE BadRoute build(const List<Routes>& sources, int top_k, int experts, int owned) {
    rows_.clear();
    slots_.clear();
    tiles_.clear();
    ends_.assign(static_cast<size_t>(owned) + 1, 0);
    if (const BadRoute bad = scan(sources, top_k, experts)) {
      rows_.clear();
      copies_.clear();
      return bad;
    }
    for (int e = 0; e < owned; ++e) ends_[e + 1] += ends_[e];
    add_tiles(owned);
    // ends_[e] is where expert e's next copy goes.
    copies_.resize(slots_.size());
    for (const Slot& slot : slots_) copies_[ends_[slot.expert]++] = slot.copy;
    return none();
  }

  // Each row that some owned expert needs, once.
  MEGAMOE_ROLE const List<PulledRow>& rows() const { return rows_; }
  MEGAMOE_ROLE const List<RoutedCopy>& copies() const { return copies_; }
  MEGAMOE_ROLE const List<Tile>& tiles() const { return tiles_; }

 private:
  MEGAMOE_ROLE static BadRoute none() { return {-1, 0, 0}; }

  struct Slot {
    int32_t expert;
    RoutedCopy copy;
  };

  MEGAMOE_ROLE BadRoute scan(const List<Routes>& sources, int top_k, int experts) {
    for (size_t s = 0; s < sources.size(); ++s) {
      const int32_t* ids = sources[s].ids;
      for (int32_t token = 0; token < sources[s].tokens; ++token, ids += top_k) {
        bool pulled = false;
        for (int32_t slot = 0; slot < top_k; ++slot) {
          const int32_t id = ids[slot];
          if (id == -1) continue;
          if (id < 0 || id >= experts) {
            return BadRoute{static_cast<int32_t>(s), token, id};
          }
          const int32_t expert = sources[s].owned_index[id];
          if (expert < 0) continue;
          if (!pulled) rows_.push_back({static_cast<int32_t>(s), token, slot});
          pulled = true;
          slots_.push_back({expert, {static_cast<int32_t>(rows_.size()) - 1, slot}});
          ++ends_[static_cast<size_t>(expert) + 1];
        }
      }
    }
    return none();
  }

  MEGAMOE_ROLE void add_tiles(int owned) {
    for (int e = 0; e < owned; ++e) {
      for (int32_t first = ends_[e]; first < ends_[e + 1]; first += kTileRows) {
        const int32_t left = ends_[e + 1] - first;
        tiles_.push_back({e, first, left < kTileRows ? left : kTileRows});
      }
    }
  }

  List<PulledRow> rows_;
  List<Slot> slots_;
  List<RoutedCopy> copies_;
  List<Tile> tiles_;
  List<int32_t> ends_;
};

}  // namespace megamoe
