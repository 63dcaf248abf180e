// A function that runs on a stack of its own and can be left and resumed; one OS thread throughout.
//
// The thread and address sanitizers are told of every switch. A switch orders nothing: what a fiber
// wrote is unordered with what another does, until someone says otherwise (see block.cpp).
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

// The runner's own state is one OS thread's, which the thread sanitizer cannot know.
#define MEGAMOE_RUNNER __attribute__((no_sanitize("thread"), noinline))

namespace megamoe::simt::runner {

class Fiber {
 public:
  // `stack` must outlive the fiber. Nothing runs before resume.
  Fiber(std::byte* stack, size_t stack_bytes, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it yields or ends. Not from inside a fiber.
  MEGAMOE_RUNNER void resume();
  // Of the fiber that runs: back to whoever resumed it.
  MEGAMOE_RUNNER static void yield();
  MEGAMOE_RUNNER bool done() const { return done_; }

 private:
  MEGAMOE_RUNNER static void enter(unsigned low, unsigned high);
  MEGAMOE_RUNNER void leave(bool for_good);

  std::byte* stack_;
  size_t stack_bytes_;
  std::function<void()> body_;
  ucontext_t own_;
  ucontext_t resumer_;
  bool done_ = false;
  // What the sanitizers know this fiber and its resumer by.
  void* thread_state_ = nullptr;
  void* resumer_state_ = nullptr;
  void* fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace megamoe::simt::runner
