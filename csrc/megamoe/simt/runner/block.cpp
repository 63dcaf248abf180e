#include "megamoe/simt/runner/block.h"

#include <deque>
#include <memory>
#include <stdexcept>
#include <vector>

#include "megamoe/simt/runner/fiber.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace megamoe::simt::runner {
namespace {

constexpr size_t kStackBytes = 64 * 1024;

struct Block {
  unsigned threads;
  unsigned running = 0;
  // A barrier is a pass over all fibers. What a thread did before one is ordered before what any
  // does after it, and nothing else: one tag takes releases while the other gives acquires.
  unsigned passes = 0;
  char tags[2] = {};
};

thread_local Block* current = nullptr;

MEGAMOE_RUNNER void acquire_pass() {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&current->tags[current->passes % 2]);
#endif
}

MEGAMOE_RUNNER void release_pass() {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&current->tags[(current->passes + 1) % 2]);
#endif
}

MEGAMOE_RUNNER void run_to_end(Block& block, std::deque<Fiber>& fibers) {
  for (unsigned ended = 0; ended < block.threads; ++block.passes) {
    ended = 0;
    for (unsigned i = 0; i < block.threads; ++i) {
      // In turns from either end, so that nothing works only because of the order.
      block.running = block.passes % 2 == 0 ? i : block.threads - 1 - i;
      fibers[block.running].resume();
      ended += fibers[block.running].done();
    }
    if (ended != 0 && ended != block.threads) {
      throw std::logic_error("some threads of a block ended while others wait at a barrier");
    }
  }
}

}  // namespace

void run_block(unsigned threads, const std::function<void()>& body) {
  Block block{threads};
  current = &block;
  const std::unique_ptr<std::byte[]> stacks(new std::byte[threads * kStackBytes]);
  std::deque<Fiber> fibers;
  for (unsigned i = 0; i < threads; ++i) {
    fibers.emplace_back(stacks.get() + i * kStackBytes, kStackBytes, [&body] {
      acquire_pass();
      body();
      release_pass();
    });
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&block.tags[0]);
#endif
  run_to_end(block, fibers);
  acquire_pass();
  current = nullptr;
}

MEGAMOE_RUNNER Dim thread_index() { return {current->running}; }
MEGAMOE_RUNNER Dim block_size() { return {current->threads}; }

MEGAMOE_RUNNER void sync_threads() {
  release_pass();
  Fiber::yield();
  acquire_pass();
}

}  // namespace megamoe::simt::runner
