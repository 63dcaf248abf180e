// What can go wrong with AMX, and the check of the machine's tiles before the level is used.
#pragma once

#include <stdexcept>

#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/errors.h"

namespace megamoe::cpu {

// The machine's tiles do not compute what the instructions' definition says.
struct AmxMismatch : Error {
  using Error::Error;
};

// The processor would have raised an exception at this tile instruction.
struct TileFault : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] void tile_fault(const char* why);

// Multiplies one small block with these kernels and with gemm_amx_emulated(); throws AmxMismatch if
// they differ by more than the order of a sum can. A fraction of a millisecond.
void check_amx(const GemmKernels& kernels);

}  // namespace megamoe::cpu
