// A CUDA block on the CPU: each CUDA thread a fiber, the block one OS thread.
#pragma once

#include <functional>

namespace megamoe::simt::runner {

struct Dim {
  unsigned x;
};

// Runs body once for each of `threads` CUDA threads, on the calling OS thread. Throws
// std::logic_error if some end while others wait at a barrier, which is undefined on a GPU.
void run_block(unsigned threads, const std::function<void()>& body);

// Of the CUDA thread that runs.
Dim thread_index();
Dim block_size();
void sync_threads();

}  // namespace megamoe::simt::runner
