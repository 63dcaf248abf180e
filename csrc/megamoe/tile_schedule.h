// The order of expert tiles: routed copies grouped by owned expert, in (source, token, slot) order.
//
// The order depends on the routes alone, never on who arrived first, so every run and every target
// computes the same tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace megamoe {

// One source's top-k ids [tokens][top_k]; -1 is an unused slot.
struct Routes {
  const int32_t* ids;
  int32_t tokens;
};

struct PulledRow {
  int32_t source;
  int32_t token;
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

struct BadRoute {
  int32_t source;
  int32_t token;
  int32_t id;
};

class TileSchedule {
 public:
  static constexpr int kTileRows = 96;

  // `owned_index` [experts]: the expert's index among the owned, or -1. Returns the first id
  // outside [-1, experts), in which case the schedule is empty.
  std::optional<BadRoute> build(const std::vector<Routes>& sources, int top_k,
                                const std::vector<int32_t>& owned_index, int owned) {
    rows_.clear();
    slots_.clear();
    tiles_.clear();
    ends_.assign(static_cast<size_t>(owned) + 1, 0);
    if (const auto bad = scan(sources, top_k, owned_index)) {
      rows_.clear();
      copies_.clear();
      return bad;
    }
    for (int e = 0; e < owned; ++e) ends_[e + 1] += ends_[e];
    add_tiles(owned);
    // ends_[e] is where expert e's next copy goes.
    copies_.resize(slots_.size());
    for (const Slot& slot : slots_) copies_[ends_[slot.expert]++] = slot.copy;
    return std::nullopt;
  }

  // Each row that some owned expert needs, once.
  const std::vector<PulledRow>& rows() const { return rows_; }
  const std::vector<RoutedCopy>& copies() const { return copies_; }
  const std::vector<Tile>& tiles() const { return tiles_; }

 private:
  struct Slot {
    int32_t expert;
    RoutedCopy copy;
  };

  std::optional<BadRoute> scan(const std::vector<Routes>& sources, int top_k,
                               const std::vector<int32_t>& owned_index) {
    const auto experts = static_cast<uint32_t>(owned_index.size());
    for (size_t s = 0; s < sources.size(); ++s) {
      const int32_t* ids = sources[s].ids;
      for (int32_t token = 0; token < sources[s].tokens; ++token, ids += top_k) {
        bool pulled = false;
        for (int32_t slot = 0; slot < top_k; ++slot) {
          const int32_t id = ids[slot];
          if (id == -1) continue;
          if (static_cast<uint32_t>(id) >= experts) {
            return BadRoute{static_cast<int32_t>(s), token, id};
          }
          const int32_t expert = owned_index[static_cast<size_t>(id)];
          if (expert < 0) continue;
          if (!pulled) rows_.push_back({static_cast<int32_t>(s), token});
          pulled = true;
          slots_.push_back({expert, {static_cast<int32_t>(rows_.size()) - 1, slot}});
          ++ends_[static_cast<size_t>(expert) + 1];
        }
      }
    }
    return std::nullopt;
  }

  void add_tiles(int owned) {
    for (int e = 0; e < owned; ++e) {
      for (int32_t first = ends_[e]; first < ends_[e + 1]; first += kTileRows) {
        tiles_.push_back({e, first, std::min(kTileRows, ends_[e + 1] - first)});
      }
    }
  }

  std::vector<PulledRow> rows_;
  std::vector<Slot> slots_;
  std::vector<RoutedCopy> copies_;
  std::vector<Tile> tiles_;
  std::vector<int32_t> ends_;
};

}  // namespace megamoe
