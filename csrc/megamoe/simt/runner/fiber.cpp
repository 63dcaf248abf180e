#include "megamoe/simt/runner/fiber.h"

#include <cstdint>
#include <utility>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace megamoe::simt::runner {
namespace {

thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(std::byte* stack, size_t stack_bytes, std::function<void()> body)
    : stack_(stack), stack_bytes_(stack_bytes), body_(std::move(body)) {
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack;
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  // makecontext passes ints.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(uint64_t{self} >> 32));
#if defined(__SANITIZE_THREAD__)
  thread_state_ = __tsan_create_fiber(0);
  __tsan_release(this);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(thread_state_);
#endif
}

void Fiber::resume() {
  running = this;
#if defined(__SANITIZE_THREAD__)
  resumer_state_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_state_, __tsan_switch_to_fiber_no_sync);
#elif defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_, stack_bytes_);
#endif
  swapcontext(&resumer_, &own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::yield() { running->leave(false); }

void Fiber::leave(bool for_good) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(resumer_state_, __tsan_switch_to_fiber_no_sync);
#elif defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, resumer_stack_,
                                 resumer_stack_bytes_);
#endif
  static_cast<void>(for_good);
  swapcontext(&own_, &resumer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

void Fiber::enter(unsigned low, unsigned high) {
  auto* self = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(uint64_t{high} << 32 | low));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->resumer_stack_, &self->resumer_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(self);  // what its maker wrote
#endif
  self->body_();
  self->done_ = true;
  self->leave(true);
}

}  // namespace megamoe::simt::runner
