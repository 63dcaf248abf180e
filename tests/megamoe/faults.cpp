// Fault injection: in a small launch whose ranks are threads, one rank stops for good at one
// protocol point (as if killed); every other rank must come back.
//
//   megamoe-faults abort|deadline slot|reduced EVERY OFFSET
//
// A row comes back for each slot, or a reduced one for each FFN rank. Runs a launch for each rank
// and each of its points whose index is OFFSET modulo EVERY. With abort somebody raises the abort
// word for the dead rank, and the others must say so; with deadline nobody does, and each must say
// whom it waited for, for what, and what it saw.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/cpu/target.h"
#include "megamoe/errors.h"
#include "megamoe/ffn_side.h"
#include "tests/megamoe/stress_world.h"

namespace {

using namespace stress;
using megamoe::cpu::Pool;

constexpr int kSteps = 2;
constexpr int kNever = 1 << 30;

struct Killed {};

enum class Point { Wait, Store, WakeUp, WriteIn, ReadIn, WriteOut, ReadOut };

// A rank's points are passed in the same order in every run: the start of a wait, and each use of a
// row, store and wake-up. How often a wait looks is a matter of time and does not count.
struct Life {
  int passed = 0;
  int dies_at = kNever;
  Point last = Point::Wait;
  const void* last_word = nullptr;

  void point(Point kind, const void* word = nullptr) {
    if (word != nullptr && word == last_word) return;
    last = kind;
    last_word = word;
    if (passed++ == dies_at) throw Killed{};
  }
};

thread_local Life life;

struct MortalRows : megamoe::cpu::WireRows {
  static void encode_row(const Shape& shape, const float* x, std::byte* row, std::byte* scales) {
    life.point(Point::WriteIn);
    WireRows::encode_row(shape, x, row, scales);
  }
  static const float* decode_row(const Shape& shape, const megamoe::WireRow& row, float* room) {
    life.point(Point::ReadIn);
    return WireRows::decode_row(shape, row, room);
  }
  static void write_back(megamoe::Wire wire, const float* values, float weight, int columns,
                         int first, std::byte* row) {
    life.point(Point::WriteOut);
    WireRows::write_back(wire, values, weight, columns, first, row);
  }
  static void sum_rows(megamoe::Wire wire, const std::byte* const* rows, int count, int hidden,
                       float* out) {
    life.point(Point::ReadOut);
    WireRows::sum_rows(wire, rows, count, hidden, out);
  }
};

struct MortalTarget : megamoe::cpu::Target, MortalRows {
  using Base = megamoe::cpu::Target;
  using Experts = megamoe::cpu::ExpertsOver<MortalRows>;
  using MortalRows::encode_row;
  using MortalRows::sum_rows;
  using MortalRows::write_back;

  static uint64_t load_acquire(const uint64_t& value) {
    if (&value != abort_word) life.point(Point::Wait, &value);
    return Base::load_acquire(value);
  }
  static void store_release(uint64_t& value, uint64_t next) {
    life.point(Point::Store);
    Base::store_release(value, next);
  }
  static void wake_if_sleeping(megamoe::Word& word) {
    life.point(Point::WakeUp);
    Base::wake_if_sleeping(word);
  }

  static inline const uint64_t* abort_word = nullptr;
};

enum class Ended { Finished, Killed, Aborted, Deadline, Otherwise };

struct End {
  Ended how = Ended::Finished;
  int culprit = -1;
  std::string text;
  int points = 0;
  Point last = Point::Wait;
};

class Launch {
 public:
  Launch(const Shape& shape, const Banks& banks, const Lane& lane, uint64_t deadline_ns)
      : shape_(shape),
        banks_(banks),
        lane_(lane),
        deadline_ns_(deadline_ns),
        domain_(make_domain(shape)) {
    MortalTarget::abort_word = &domain_->memory().abort().value;
  }

  // One end for each rank.
  std::vector<End> run(int victim, int dies_at, bool raise_abort) {
    std::vector<End> ends(static_cast<size_t>(shape_.attention_ranks + shape_.ffn_ranks));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const int index = static_cast<int>(rank);
        life = Life{0, index == victim ? dies_at : kNever};
        ends[rank] = ended(index);
        ends[rank].points = life.passed;
        ends[rank].last = life.last;
        if (ends[rank].how == Ended::Killed && raise_abort) domain_->raise_abort(victim);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

 private:
  End ended(int rank) {
    try {
      if (rank < shape_.attention_ranks) {
        attend(rank);
      } else {
        serve(rank - shape_.attention_ranks);
      }
      return {};
    } catch (const Killed&) {
      return {Ended::Killed};
    } catch (const megamoe::Aborted& error) {
      return {Ended::Aborted, error.culprit, error.what()};
    } catch (const megamoe::Deadline& error) {
      return {Ended::Deadline, -1, error.what()};
    } catch (const std::exception& error) {
      return {Ended::Otherwise, -1, error.what()};
    }
  }

  void attend(int rank) {
    megamoe::AttentionSide<MortalTarget> side(domain_->memory(), rank, deadline_ns_);
    std::vector<float> out(lane_.x.size());
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (int layer = 0; layer <= shape_.moe_layers; ++layer) {
        for (int lane = 0; lane < shape_.lanes; ++lane) {
          if (layer > 0) side.combine(lane, out.data(), shape_.hidden);
          if (layer == shape_.moe_layers) continue;
          side.dispatch(step, layer, lane, lane_.x.data(), shape_.hidden, lane_.ids.data(),
                        lane_.weights.data(), lane_.tokens);
        }
      }
    }
  }

  void serve(int rank) {
    Pool pool(1);
    const auto& bank = banks_.ranks[static_cast<size_t>(rank)]->bank();
    domain_->agree_on_owners(owner_table(shape_));
    std::vector<int32_t> ranks;
    for (int a = 0; a < shape_.attention_ranks; ++a) ranks.push_back(a);
    megamoe::FfnSide<MortalTarget> side(domain_->memory(), rank, owned_index(shape_, rank, bank),
                                        MortalTarget::Experts(bank, pool), deadline_ns_);
    for (uint64_t step = 0; step < kSteps; ++step) side.serve(step, shape_.lanes, ranks);
  }

  Shape shape_;
  const Banks& banks_;
  const Lane& lane_;
  uint64_t deadline_ns_;
  std::unique_ptr<Domain> domain_;
};

// "expected E, seen S", E later than S.
bool tells_numbers(const std::string& text) {
  const size_t at = text.find("expected ");
  unsigned long long expected = 0;
  unsigned long long seen = 0;
  return at != std::string::npos &&
         std::sscanf(text.c_str() + at, "expected %llu, seen %llu", &expected, &seen) == 2 &&
         expected > seen;
}

bool all_well(const std::vector<End>& ends, int victim, bool abort) {
  const std::string named = " of rank " + std::to_string(victim) + " (step ";
  bool any_waited = false;
  bool any_named = false;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const End& end = ends[rank];
    if (static_cast<int>(rank) == victim) {
      if (end.how != Ended::Killed) return false;
      continue;
    }
    const std::string who = "rank " + std::to_string(rank) + " waiting for ";
    if (end.how == Ended::Finished) continue;
    if (end.text.rfind(who, 0) != 0) return false;
    if (abort && (end.how != Ended::Aborted || end.culprit != victim)) return false;
    if (!abort && (end.how != Ended::Deadline || !tells_numbers(end.text))) return false;
    any_waited = true;
    any_named = any_named || end.text.find(named) != std::string::npos;
  }
  // Who waits for the dead rank itself names it; the others may wait for those in turn.
  return abort || !any_waited || any_named;
}

// A rank that had no core for as long as a short deadline was as good as dead to those who waited
// for it: then a longer deadline decides, and `again` counts it.
std::vector<End> stopped(const Shape& shape, const Banks& banks, const Lane& lane, int victim,
                         int point, bool abort, int& again) {
  if (abort) return Launch(shape, banks, lane, kDeadline_ns).run(victim, point, true);
  constexpr uint64_t kShort_ns = 300'000'000;
  constexpr uint64_t kLong_ns = 20'000'000'000;
  for (uint64_t deadline_ns = kShort_ns;; deadline_ns *= 4, ++again) {
    std::vector<End> ends = Launch(shape, banks, lane, deadline_ns).run(victim, point, false);
    if (all_well(ends, victim, false) || deadline_ns * 4 > kLong_ns) return ends;
  }
}

int usage() {
  std::fprintf(stderr, "usage: megamoe-faults abort|deadline slot|reduced EVERY OFFSET\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return usage();
  const bool abort = std::strcmp(argv[1], "abort") == 0;
  if (!abort && std::strcmp(argv[1], "deadline") != 0) return usage();
  const bool reduced = std::strcmp(argv[2], "reduced") == 0;
  if (!reduced && std::strcmp(argv[2], "slot") != 0) return usage();
  const int every = std::atoi(argv[3]);
  const int offset = std::atoi(argv[4]);
  Shape shape{2, 2, 2, 2, 20, 2, 4, 2, megamoe::Wire::FP8};
  if (reduced) shape.return_mode = megamoe::ReturnMode::Reduced;
  Random random(1);
  const Banks banks(random, shape);
  Lane lane{2, std::vector<float>(2 * 20, 0.5f), {1, 3, 2, 0}, {1, 1, 1, 1}};
  const std::vector<End> whole = Launch(shape, banks, lane, kDeadline_ns).run(-1, kNever, false);
  int faults = 0;
  int readers = 0;
  int waited = 0;
  int again = 0;
  for (int victim = 0; victim < static_cast<int>(whole.size()); ++victim) {
    const End& end = whole[static_cast<size_t>(victim)];
    if (end.how != Ended::Finished) return std::printf("%s\n", end.text.c_str()), 1;
    for (int point = offset; point < end.points; point += every, ++faults) {
      const auto ends = stopped(shape, banks, lane, victim, point, abort, again);
      readers += ends[static_cast<size_t>(victim)].last == Point::ReadIn;
      for (const End& other : ends)
        waited += other.how == Ended::Aborted || other.how == Ended::Deadline;
      if (all_well(ends, victim, abort)) continue;
      std::printf("rank %d stops at point %d:\n", victim, point);
      for (const End& other : ends)
        std::printf("  %d %s\n", static_cast<int>(other.how), other.text.c_str());
      return 1;
    }
  }
  std::printf("%d faults, %d where IN is read, %d waits ended by them, %d tried again\n", faults,
              readers, waited, again);
  // A machine is late now and then; what fails more often than that is no accident.
  return again > 3 + faults / 20;
}
