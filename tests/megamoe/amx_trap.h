// AMX instructions on a processor without them: executing one raises SIGILL, whose handler decodes
// the very bytes that the compiler emitted and does the work with EmulatedTiles. So the product's
// own code is run, encodings, operand orders and strides included.
// Included once, after amx_emulated.h.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace amx_trap {
namespace {

using megamoe::cpu::EmulatedTiles;
using megamoe::cpu::TileConfig;

struct Trapped {
  EmulatedTiles tiles;
  int64_t instructions = 0;
};

// Of the running thread, as the registers would be.
Trapped& trapped() {
  static thread_local Trapped state;
  return state;
}

// A VEX-encoded instruction of opcode map 0F38 (Intel SDM, volume 2, section 2.3).
struct Decoded {
  int prefix;  // 0 none, 1 66, 2 F3, 3 F2
  int opcode;
  int reg;
  int rm;  // a register, if the operand is not memory
  int vvvv;
  bool memory = false;
  uint64_t address = 0;  // without the index register
  int64_t index = 0;     // scaled
  int length = 5;
};

uint64_t value_of(const greg_t* registers, int number) {
  static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                     REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                     REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(registers[kOrder[number]]);
}

int64_t displacement(const uint8_t* code, int bytes) {
  if (bytes == 0) return 0;
  if (bytes == 1) return static_cast<int8_t>(code[0]);
  int32_t value;
  std::memcpy(&value, code, sizeof(value));
  return value;
}

// False if these are not the bytes of such an instruction.
bool decode(const uint8_t* code, const greg_t* registers, Decoded& out) {
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) return false;
  const int r = (~code[1] >> 4) & 8, x = (~code[1] >> 3) & 8, b = (~code[1] >> 2) & 8;
  out.vvvv = (~code[2] >> 3) & 15;
  out.prefix = code[2] & 3;
  out.opcode = code[3];
  const int mod = code[4] >> 6;
  const int low = code[4] & 7;
  out.reg = ((code[4] >> 3) & 7) | r;
  out.rm = low | b;
  if (mod == 3) return true;
  out.memory = true;
  const uint64_t next = reinterpret_cast<uint64_t>(code);
  int base = out.rm;
  if (low == 4) {
    const int sib = code[out.length++];
    base = (sib & 7) | b;
    const int index = ((sib >> 3) & 7) | x;
    if (index != 4) {
      out.index = static_cast<int64_t>(value_of(registers, index)) * (int64_t{1} << (sib >> 6));
    }
  }
  const bool no_base = mod == 0 && (base & 7) == 5;
  const int bytes = mod == 1 ? 1 : mod == 2 || no_base ? 4 : 0;
  out.address = static_cast<uint64_t>(displacement(code + out.length, bytes));
  out.length += bytes;
  if (!no_base) {
    out.address += value_of(registers, base);
  } else if (low == 5) {
    out.address += next + static_cast<uint64_t>(out.length);
  }
  return true;
}

// False if this is no AMX instruction that the kernels use.
bool execute(const Decoded& in, EmulatedTiles& tiles) {
  enum { kNone, k66, kF3, kF2 };
  void* memory = reinterpret_cast<void*>(in.address);
  if (in.opcode == 0x49 && in.prefix == kNone && in.memory) {  // ldtilecfg
    TileConfig config;
    std::memcpy(&config, reinterpret_cast<const char*>(memory) + in.index, sizeof(config));
    tiles.configure(config);
  } else if (in.opcode == 0x49 && in.prefix == kNone) {  // tilerelease
    tiles.release();
  } else if (in.opcode == 0x49 && in.prefix == kF2 && !in.memory) {  // tilezero
    tiles.zero(in.reg);
  } else if (in.opcode == 0x4b && in.prefix == kF2 && in.memory) {  // tileloadd
    tiles.load(in.reg, memory, in.index);
  } else if (in.opcode == 0x4b && in.prefix == kF3 && in.memory) {  // tilestored
    tiles.store(in.reg, memory, in.index);
  } else if (in.opcode == 0x5c && in.prefix == kF3 && !in.memory) {  // tdpbf16ps
    tiles.dot(in.reg, in.rm, in.vvvv);
  } else {
    return false;
  }
  return true;
}

void on_illegal(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  Decoded decoded;
  if (!decode(code, registers, decoded) || !execute(decoded, trapped().tiles)) std::abort();
  ++trapped().instructions;
  registers[REG_RIP] += decoded.length;
}

void install() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGILL, &action, nullptr) != 0) std::abort();
}

}  // namespace
}  // namespace amx_trap
