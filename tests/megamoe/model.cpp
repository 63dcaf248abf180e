// A model check of the word protocol: all interleavings of attention_side.h, ffn_side.h, sequence.h
// and cpu/wait.h themselves, for a few ranks, lanes, layers and steps.
//
//   megamoe-model ATTENTION_RANKS FFN_RANKS LANES LAYERS STEPS [VARIANT ...]
//   megamoe-model word WAITERS NUMBERS [VARIANT ...]
//
// Checked in every state: a buffer that is read holds what was published for this number from the
// beginning to the end of the reading (no reuse before it was read, no read before it was written),
// and somebody can go on or all are at their end (no lost wake-up, no deadlock). Sleeps have no
// time-out here, so that a lost wake-up shows.
//
// The second form checks one word under the least helpful company: a publisher that waits for
// nobody, and waiters for any selection of its numbers. It shows that a wait is as good as a single
// step that becomes possible when its word is reached. With atomic-waits the first form takes waits
// as such steps, which leaves few enough states for more ranks, lanes and steps; with each-word it
// does so once for every word, on which alone the waits are taken apart.
//
// VARIANT abort adds a process that raises the abort word at any moment. Others plant a bug, which
// the check must find: no-second-look one-flag no-wake early-pub early-done late-read.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/ffn_side.h"
#include "tests/megamoe/model_target.h"

namespace {

using megamoe::Word;
using model::Bug;
using model::Checker;
using model::Explorer;
using model::Memory;
using model::Shape;
using model::Span;
using model::Target;

constexpr int kMostRanks = 4;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

struct Arguments {
  Shape shape{};
  int steps = 0;
  Bug bug = Bug::None;
  bool aborts = false;
  bool atomic_waits = false;
  bool each_word = false;
};

// All that several ranks touch: the words and one row each of IN and OUT.
std::vector<Span> shared_spans(const Memory& memory) {
  std::vector<Span> spans;
  const auto add = [&](void* data, size_t bytes) {
    spans.push_back({static_cast<std::byte*>(data), bytes, false});
  };
  const auto add_word = [&](Word& word) {
    spans.push_back({reinterpret_cast<std::byte*>(&word), sizeof(Word), true});
  };
  const Shape& shape = memory.layout.shape;
  add_word(memory.abort());
  for (int a = 0; a < shape.attention_ranks; ++a) {
    for (int lane = 0; lane < shape.lanes; ++lane) {
      add_word(memory.pub(a, lane));
      for (int f = 0; f < shape.ffn_ranks; ++f) add_word(memory.done(a, lane, f));
      add(&memory.count(a, lane), sizeof(int32_t));
      add(memory.row(a, lane, 0), sizeof(float));
      add(memory.ids(a, lane), sizeof(int32_t) * static_cast<size_t>(shape.top_k));
      add(memory.weights(a, lane), sizeof(float) * static_cast<size_t>(shape.top_k));
      add(memory.out(a, lane, 0, 0), sizeof(float) * static_cast<size_t>(shape.top_k));
    }
  }
  return spans;
}

// Of a word's count of wake-ups the parity; all else as it is.
void add_meaning(const std::vector<Span>& spans, model::Hash& hash) {
  for (const Span& span : spans) {
    if (span.is_word) {
      const auto* word = reinterpret_cast<const Word*>(span.data);
      hash.add(word->value);
      hash.add(word->sleepers % 2);
      continue;
    }
    for (size_t i = 0; i < span.bytes; i += sizeof(uint32_t)) {
      uint32_t part;
      std::memcpy(&part, span.data + i, sizeof(part));
      hash.add(part);
    }
  }
}

std::string name_of_address(const void* address) {
  const model::Named name = model::named(address);
  if (!name.found) return address == &model::checker->memory.abort().value ? "abort" : "a row";
  std::string text = megamoe::name_of(name.word);
  if (name.word == model::WordName::Done) {
    text.append("[").append(std::to_string(name.ffn_rank)).append("]");
  }
  return text + " of rank " + std::to_string(name.rank) + ", lane " + std::to_string(name.lane);
}

// Every token goes to every FFN rank, one expert each.
void attend(const Memory& memory, int rank, int steps) {
  const Shape& shape = memory.layout.shape;
  megamoe::AttentionSide<Target> side(memory, rank, kNever);
  int32_t ids[kMostRanks];
  float weights[kMostRanks];
  for (int e = 0; e < shape.top_k; ++e) {
    ids[e] = e;
    weights[e] = 1;
  }
  for (uint64_t step = 0; step < static_cast<uint64_t>(steps); ++step) {
    for (int layer = 0; layer <= shape.moe_layers; ++layer) {
      for (int lane = 0; lane < shape.lanes; ++lane) {
        if (layer > 0) {
          const uint64_t q = memory.sequence(step, layer - 1);
          model::checker->explorer->current().state.expected = q;
          float x = model::published(q, lane, rank);  // for sum_rows to compare with
          if (!side.combine(lane, &x, 1)) return;
        }
        if (layer == shape.moe_layers) continue;
        const float x = model::published(memory.sequence(step, layer), lane, rank);
        if (!side.dispatch(step, layer, lane, &x, 1, ids, weights, 1)) return;
      }
    }
  }
}

void serve(const Memory& memory, int rank, int steps) {
  const Shape& shape = memory.layout.shape;
  alignas(16) std::byte room[1024] = {};
  megamoe::simt::Arena arena{room};
  Target::Lists lists{&arena};
  auto index = lists.zeros<int32_t>(static_cast<size_t>(shape.attention_ranks * shape.experts));
  auto ranks = lists.zeros<int32_t>(static_cast<size_t>(shape.attention_ranks));
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<int>(i) % shape.experts == rank ? 0 : -1;
  }
  for (size_t a = 0; a < ranks.size(); ++a) ranks[a] = static_cast<int32_t>(a);
  model::checker->explorer->current().state.expected = memory.sequence(0, 0);
  megamoe::FfnSide<Target> side(memory, rank, index, Target::Experts(rank, shape.lanes), kNever, {},
                                lists);
  if (arena.used > sizeof(room)) model::checker->explorer->fail("the arena is too small");
  for (uint64_t step = 0; step < static_cast<uint64_t>(steps); ++step) {
    if (!side.serve(step, shape.lanes, ranks)) return;
  }
}

// As Domain::raise_abort.
void raise(const Memory& memory) {
  megamoe::raise_abort<Target>(memory.abort(), 0);
  memory.for_each_word([](Word& word) { Target::wake(word); });
}

bool take_variant(const std::string& variant, Arguments& arguments) {
  if (variant == "no-second-look") arguments.bug = Bug::NoSecondLook;
  if (variant == "one-flag") arguments.bug = Bug::OneFlag;
  if (variant == "no-wake") arguments.bug = Bug::NoWake;
  if (variant == "early-pub") arguments.bug = Bug::EarlyPub;
  if (variant == "early-done") arguments.bug = Bug::EarlyDone;
  if (variant == "late-read") arguments.bug = Bug::LateRead;
  if (variant == "abort") arguments.aborts = true;
  if (variant == "atomic-waits") arguments.atomic_waits = true;
  if (variant == "each-word") arguments.atomic_waits = arguments.each_word = true;
  return arguments.bug != Bug::None || arguments.aborts || arguments.atomic_waits;
}

// Memory of a shape, and a search over it.
struct Search {
  std::vector<std::byte> bytes;
  Memory memory;
  std::vector<Span> spans;
  Explorer explorer;
  Checker checker;

  explicit Search(const Arguments& arguments)
      : bytes(megamoe::make_layout(arguments.shape).total_bytes + megamoe::kPageBytes),
        memory{page(bytes.data()), megamoe::make_layout(arguments.shape), 0},
        spans(shared_spans(memory)),
        explorer(
            spans, [this](model::Hash& hash) { add_meaning(spans, hash); }, model::enabled,
            model::commutes),
        checker{&explorer, memory, arguments.bug, arguments.aborts, arguments.atomic_waits} {
    model::checker = &checker;
    if (arguments.aborts) explorer.add("the one who aborts", [this] { raise(memory); });
  }

  static std::byte* page(std::byte* data) {
    return data + megamoe::kPageBytes - reinterpret_cast<uintptr_t>(data) % megamoe::kPageBytes;
  }

  bool run() {
    if (explorer.run()) return true;
    std::printf("%s%s\n", explorer.trace(name_of_address).c_str(), explorer.failure().c_str());
    return false;
  }
};

int say(size_t states, uint64_t steps, bool good) {
  std::printf("%zu states, %llu steps: %s\n", states, static_cast<unsigned long long>(steps),
              good ? "every property holds" : "a property fails");
  return good ? 0 : 1;
}

// With the waits on the focus-th word taken apart, if there are so many.
bool check_roles(const Arguments& arguments, int focus, size_t& states, uint64_t& steps) {
  Search search(arguments);
  int words = 0;
  search.memory.for_each_word([&](Word& word) {
    if (words++ == focus) search.checker.focus = &word;
  });
  for (int a = 0; a < arguments.shape.attention_ranks; ++a) {
    search.explorer.add("rank " + std::to_string(a),
                        [&, a] { attend(search.memory, a, arguments.steps); });
  }
  for (int f = 0; f < arguments.shape.ffn_ranks; ++f) {
    search.explorer.add("rank " + std::to_string(arguments.shape.attention_ranks + f),
                        [&, f] { serve(search.memory, f, arguments.steps); });
  }
  const bool good = search.run();
  states += search.explorer.states();
  steps += search.explorer.transitions();
  return good;
}

int check_roles(const Arguments& arguments) {
  const Shape& shape = arguments.shape;
  const int words = shape.attention_ranks * shape.lanes * (1 + shape.ffn_ranks);
  size_t states = 0;
  uint64_t steps = 0;
  bool good = true;
  for (int focus = 0; focus < (arguments.each_word ? words : 1) && good; ++focus) {
    good = check_roles(arguments, arguments.each_word ? focus : words, states, steps);
  }
  return say(states, steps, good);
}

// Awaits the numbers in `chosen`, a bit each.
void await_some(const Memory& memory, unsigned chosen) {
  for (uint64_t q = 1; chosen >> q != 0; ++q) {
    if ((chosen >> q & 1) == 0) continue;
    model::checker->explorer->current().state.expected = q;
    const auto result = megamoe::await<Target>(memory.pub(0, 0), q, memory.abort(), kNever);
    if (result.end == megamoe::WaitEnd::Aborted && model::checker->aborts) return;
    if (result.end != megamoe::WaitEnd::Reached || memory.pub(0, 0).value < q) {
      model::checker->explorer->fail("a wait ended before its word was reached");
    }
    model::place().mark();
  }
}

// Every way in which each waiter chooses among the numbers.
int check_word(Arguments arguments, int waiters, int numbers) {
  arguments.shape = {1, 1, 1, 1, 1, 1, 1, 1, megamoe::Wire::FP32};
  const unsigned choices = 1u << numbers;
  size_t states = 0;
  uint64_t steps = 0;
  unsigned all = 1;
  for (int w = 0; w < waiters; ++w) all *= choices;
  for (unsigned choice = 0; choice < all; ++choice) {
    Search search(arguments);
    search.explorer.add("the publisher", [&] {
      for (int q = 1; q <= numbers; ++q) {
        megamoe::publish<Target>(search.memory.pub(0, 0), static_cast<uint64_t>(q));
      }
    });
    unsigned rest = choice;
    for (int w = 0; w < waiters; ++w, rest /= choices) {
      const unsigned chosen = rest % choices * 2;  // bit q for number q
      search.explorer.add("waiter " + std::to_string(w),
                          [&, chosen] { await_some(search.memory, chosen); });
    }
    const bool good = search.run();
    states += search.explorer.states();
    steps += search.explorer.transitions();
    if (!good) return say(states, steps, false);
  }
  return say(states, steps, true);
}

int usage() {
  std::fprintf(stderr,
               "usage: megamoe-model ATTENTION_RANKS FFN_RANKS LANES LAYERS STEPS [VARIANT ...]\n"
               "       megamoe-model word WAITERS NUMBERS [VARIANT ...]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const bool word = argc >= 4 && std::strcmp(argv[1], "word") == 0;
  const int first_variant = word ? 4 : 6;
  if (argc < first_variant) return usage();
  const auto number = [&](int i) { return static_cast<int32_t>(std::atoi(argv[i])); };
  Arguments arguments{};
  for (int i = first_variant; i < argc; ++i) {
    if (!take_variant(argv[i], arguments)) return usage();
  }
  if (word) return check_word(arguments, number(2), number(3));
  arguments.shape = {number(1), number(2), number(3),          1, 1, number(2),
                     number(2), number(4), megamoe::Wire::FP32};
  arguments.steps = number(5);
  return check_roles(arguments);
}
