// An explicit-state search over the interleavings of fibers that share memory.
//
// A process runs until its next visible operation (a point), yields, and performs it when it is
// chosen. A state is the shared bytes and, for each process, where it is. Every state is expanded
// once, depth first; a step back restores the bytes of the processes and of the memory.
//
// Where some process's next operation commutes with all that others can still do, it alone is
// expanded (an ample set of one: Clarke, Grumberg and Peled, Model Checking, chapter 10; no cycle
// consists of such steps alone).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megamoe/simt/runner/fiber.h"

namespace model {

using megamoe::simt::runner::Fiber;

struct Span {
  std::byte* data;
  size_t bytes;
  bool is_word;
};

struct Hash {
  uint64_t low = 0x9e3779b97f4a7c15u;
  uint64_t high = 0xd1b54a32d192ed03u;

  void add(uint64_t value) {
    const auto mixed = static_cast<unsigned __int128>(low ^ value) * 0xda942042e4dd58b5u;
    low = static_cast<uint64_t>(mixed) ^ static_cast<uint64_t>(mixed >> 64) ^ high;
    high = (high ^ value) * 0xff51afd7ed558ccdu + (low >> 29);
  }
};

// The states seen, as 64-bit fingerprints: that any two of 10^8 states share one, and the second is
// missed, has a probability of 0.0003.
class Fingerprints {
 public:
  // False if it was there.
  bool insert(const Hash& hash) {
    if (count_ * 2 >= slots_.size()) grow();
    return put(hash.low == 0 ? 1 : hash.low);
  }
  size_t size() const { return count_; }

 private:
  bool put(uint64_t fingerprint) {
    const size_t mask = slots_.size() - 1;
    size_t at = fingerprint & mask;
    for (; slots_[at] != 0; at = (at + 1) & mask) {
      if (slots_[at] == fingerprint) return false;
    }
    slots_[at] = fingerprint;
    ++count_;
    return true;
  }
  void grow() {
    std::vector<uint64_t> old(std::max<size_t>(1 << 16, slots_.size() * 2));
    old.swap(slots_);
    count_ = 0;
    for (const uint64_t fingerprint : old) {
      if (fingerprint != 0) put(fingerprint);
    }
  }

  std::vector<uint64_t> slots_;
  size_t count_ = 0;
};

// All that a process's stack can mean. A mark forgets what was seen before it, because the process
// will not use it any more; marks are counted, so that no two places of a program are alike.
struct Place {
  uint64_t marks = 0;
  uint64_t seen = 0;
  uint64_t announced = 0;  // that it may sleep

  void mark() {
    ++marks;
    seen = 0;
  }
  void saw(uint64_t what) {
    Hash hash{seen, 0};
    hash.add(what);
    seen = hash.low;
  }
};

// The end of a use of a buffer, just before the process's next operation. Its beginning lies just
// after the operation before; so a use is as long as the code allows.
struct UseEnd {
  float* row;
  float value;
  bool writes;  // else it must still be there
};

// One rank.
struct Process {
  // What its own steps change, besides its stack.
  struct State {
    Place place;  // kept by the target's operations
    const void* blocked_on = nullptr;
    // A ticket that it may sleep with. Only whether it is still good counts: numbers never return.
    const uint32_t* ticket_of = nullptr;
    uint32_t ticket = 0;
    const char* operation = "starts";  // the one it will perform next
    const void* address = nullptr;
    static constexpr size_t kMostUses = 8;
    UseEnd uses[kMostUses] = {};
    size_t use_count = 0;
    uint64_t expected = 0;     // the number that its waits are for
    std::byte* low = nullptr;  // nothing of the stack below this is in use
  };

  std::string name;
  std::unique_ptr<std::byte[]> stack;
  std::unique_ptr<Fiber> fiber;
  State state;
};

class Explorer {
 public:
  // `shared` is all memory that more than one process touches; `meaning` adds to a hash what of it
  // decides the future.
  // `enabled` says whether a process can perform its next operation; `commutes`, whether that
  // commutes with all that others can still do.
  Explorer(std::vector<Span> shared, std::function<void(Hash&)> meaning,
           std::function<bool(const Process&)> enabled,
           std::function<bool(const Process&)> commutes)
      : shared_(std::move(shared)),
        meaning_(std::move(meaning)),
        enabled_(std::move(enabled)),
        commutes_(std::move(commutes)) {}

  void add(std::string name, std::function<void()> body) {
    Process& process = processes_.emplace_back();
    process.name = std::move(name);
    process.stack.reset(new std::byte[kStackBytes]);
    std::memset(process.stack.get(), kCanary, kStackBytes);
    process.state.low = process.stack.get() + kStackBytes - kMargin;
    process.fiber =
        std::make_unique<Fiber>(process.stack.get(), kStackBytes, [this, body = std::move(body)] {
          current().state.place.mark();
          body();
        });
  }

  // Expands every reachable state. False at the first that breaks a property; see failure().
  bool run() {
    push();
    while (!frames_.empty() && failure_.empty()) {
      Frame& top = frames_.back();
      if (top.next == processes_.size()) {
        frames_.pop_back();
        if (!frames_.empty()) restore(frames_.back());
        continue;
      }
      const size_t chosen = top.next++;
      if (!runnable(chosen) || (top.alone != kNobody && top.alone != chosen)) continue;
      step(chosen);
      if (failure_.empty() && !push()) restore(frames_.back());
    }
    return failure_.empty();
  }

  // Of the process that runs: ends its step before a visible operation.
  void point(const char* operation, const void* address) {
    current().state.operation = operation;
    current().state.address = address;
    leave();
    end_uses();
  }
  // From here to the next operation a buffer is read, and must hold `value` all the while.
  void reads(const float* row, float value, const char* otherwise) {
    if (*row != value) fail(otherwise);
    use({const_cast<float*>(row), value, false});
  }
  // From here to the next operation a buffer is written; until then it holds nothing of use.
  void writes(float* row, float value) {
    *row = kHalfWritten;
    use({row, value, true});
  }
  // Leaves the process asleep on `address`.
  void block(const void* address) {
    current().state.blocked_on = address;
    leave();
  }
  void wake(const void* address) {
    for (Process& process : processes_) {
      if (process.state.blocked_on == address) process.state.blocked_on = nullptr;
    }
  }
  Process& current() { return processes_[running_]; }
  size_t running() const { return running_; }
  void fail(const std::string& why) {
    if (failure_.empty()) failure_ = why;
  }

  const std::string& failure() const { return failure_; }
  // The steps that lead to the failure, one per line.
  std::string trace(const std::function<std::string(const void*)>& name_of_address) const {
    std::string lines;
    for (const Taken& taken : path_) {
      lines += processes_[taken.process].name + " " + taken.operation + " " +
               name_of_address(taken.address) + "\n";
    }
    return lines;
  }
  size_t states() const { return seen_.size(); }
  uint64_t transitions() const { return transitions_; }
  size_t longest_path() const { return longest_; }

 private:
  static constexpr size_t kStackBytes = 16 * 1024;
  static constexpr int kCanary = 0x5c;

  static constexpr float kHalfWritten = -1;

  void use(const UseEnd& end) {
    Process::State& self = current().state;
    if (self.use_count == Process::State::kMostUses) return fail("too many uses at once");
    self.uses[self.use_count++] = end;
  }

  void end_uses() {
    Process::State& self = current().state;
    for (size_t i = 0; i < self.use_count; ++i) {
      const UseEnd& use = self.uses[i];
      if (use.writes) *use.row = use.value;
      if (!use.writes && *use.row != use.value) fail("a buffer was used again while it was read");
    }
    self.use_count = 0;
  }

  struct Taken {
    size_t process;
    const char* operation;
    const void* address;
  };

  static constexpr size_t kNobody = ~size_t{0};

  struct Frame {
    size_t next = 0;
    size_t alone = kNobody;  // the only process to expand
    std::vector<std::byte> saved;
  };

  bool runnable(size_t p) const {
    const Process& process = processes_[p];
    return !process.fiber->done() && process.state.blocked_on == nullptr && enabled_(process);
  }

  void step(size_t p) {
    running_ = p;
    ++transitions_;
    path_.resize(frames_.size() - 1);
    path_.push_back({p, processes_[p].state.operation, processes_[p].state.address});
    processes_[p].fiber->resume();
    if (processes_[p].stack[0] != std::byte{kCanary}) fail("a process ran out of its stack");
  }

  Hash state() const {
    Hash hash;
    meaning_(hash);
    for (const Process& process : processes_) {
      hash.add(process.state.place.marks);
      hash.add(process.state.place.seen);
      hash.add(process.state.place.announced);
      hash.add(reinterpret_cast<uintptr_t>(process.state.operation));
      hash.add(reinterpret_cast<uintptr_t>(process.state.address));
      hash.add(reinterpret_cast<uintptr_t>(process.state.blocked_on));
      const uint32_t* ticket_of = process.state.ticket_of;
      hash.add(ticket_of == nullptr ? 2 : *ticket_of == process.state.ticket);
      hash.add(process.fiber->done());
    }
    return hash;
  }

  // False if the state was there before.
  bool push() {
    if (!seen_.insert(state())) return false;
    bool any = false;
    bool all_done = true;
    for (size_t p = 0; p < processes_.size(); ++p) {
      any = any || runnable(p);
      all_done = all_done && processes_[p].fiber->done();
    }
    if (!any && !all_done) {
      std::string who;
      for (const Process& process : processes_) {
        if (!process.fiber->done()) who += ", " + process.name;
      }
      fail("deadlock: nobody will wake" + who.substr(1));
    }
    save(frames_.emplace_back());
    for (size_t p = 0; p < processes_.size() && frames_.back().alone == kNobody; ++p) {
      if (runnable(p) && commutes_(processes_[p])) frames_.back().alone = p;
    }
    longest_ = std::max(longest_, frames_.size());
    return true;
  }

  // What a switch itself puts on the stack.
  static constexpr size_t kMargin = 768;

  __attribute__((noinline)) void leave() {
    current().state.low = static_cast<std::byte*>(__builtin_frame_address(0)) - kMargin;
    Fiber::yield();
  }

  // Every byte that a step can change.
  template <class F>
  void for_each_span(F&& fn) {
    for (const Span& span : shared_) fn(span.data, span.bytes);
    for (Process& process : processes_) {
      fn(reinterpret_cast<std::byte*>(&process.state), sizeof(Process::State));
      fn(reinterpret_cast<std::byte*>(process.fiber.get()), sizeof(Fiber));
      std::byte* low = process.state.low;
      fn(low, static_cast<size_t>(process.stack.get() + kStackBytes - low));
    }
  }

  void save(Frame& frame) {
    size_t bytes = 0;
    for_each_span([&](std::byte*, size_t n) { bytes += n; });
    frame.saved.resize(bytes);
    std::byte* to = frame.saved.data();
    for_each_span([&](std::byte* from, size_t n) {
      std::memcpy(to, from, n);
      to += n;
    });
  }

  void restore(const Frame& frame) {
    const std::byte* from = frame.saved.data();
    for_each_span([&](std::byte* to, size_t n) {
      std::memcpy(to, from, n);
      from += n;
    });
  }

  std::vector<Span> shared_;
  std::function<void(Hash&)> meaning_;
  std::function<bool(const Process&)> enabled_;
  std::function<bool(const Process&)> commutes_;
  std::deque<Process> processes_;
  size_t running_ = 0;
  std::vector<Frame> frames_;
  std::vector<Taken> path_;
  Fingerprints seen_;
  std::string failure_;
  uint64_t transitions_ = 0;
  size_t longest_ = 0;
};

}  // namespace model
