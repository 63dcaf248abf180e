// Command line of the data plane's microbenchmarks.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "clock.h"
#include "megamoe/cpu/gemm.h"
#include "megamoe/layout.h"

namespace bench {

// A value as the command line and the report call it.
template <class T>
struct Named {
  const char* name;
  T value;
};
inline constexpr Named<megamoe::Wire> kWires[] = {
    {"bf16", megamoe::Wire::BF16}, {"fp32", megamoe::Wire::FP32}, {"fp8", megamoe::Wire::FP8}};
inline constexpr Named<megamoe::ScaleFormat> kWireScales[] = {
    {"fp32-128", megamoe::ScaleFormat::Fp32Per128},
    {"ue8m0-128", megamoe::ScaleFormat::Ue8m0Per128},
    {"ue8m0-32", megamoe::ScaleFormat::Ue8m0Per32}};
inline constexpr Named<megamoe::ReturnMode> kReturnModes[] = {
    {"reduced", megamoe::ReturnMode::Reduced}, {"slot", megamoe::ReturnMode::Slot}};
inline constexpr Named<megamoe::cpu::WeightType> kWeights[] = {
    {"bf16", megamoe::cpu::WeightType::BF16},
    {"fp32", megamoe::cpu::WeightType::FP32},
    {"fp8", megamoe::cpu::WeightType::FP8}};
inline constexpr Named<clockid_t> kClocks[] = {{"thread", CLOCK_THREAD_CPUTIME_ID},
                                               {"wall", CLOCK_MONOTONIC}};

template <class T, size_t kCount>
const char* name_of(const T& value, const Named<T> (&known)[kCount]) {
  for (const auto& [name, named] : known) {
    if (named == value) return name;
  }
  return "";
}

struct Options {
  std::string preset = "qwen3-30b-a3b";
  int hidden = 2048;
  int width = 768;
  int experts = 128;
  int top_k = 8;
  int attention_ranks = 1;
  int ffn_ranks = 1;
  int lanes = 1;
  int tokens = 64;  // per attention rank and lane
  megamoe::Wire wire = megamoe::Wire::FP8;
  megamoe::ScaleFormat scale_format = megamoe::ScaleFormat::Fp32Per128;
  megamoe::ReturnMode return_mode = megamoe::ReturnMode::Slot;
  megamoe::cpu::WeightType weights = megamoe::cpu::WeightType::BF16;
  bool runs_experts = true;  // otherwise weights mean nothing
  int threads = 1;
  int rounds = 9;
  bool json = false;
  Clock clock;

  // With room for `tokens`; one MoE layer.
  megamoe::Shape shape() const {
    return {attention_ranks,
            ffn_ranks,
            lanes,
            tokens > 0 ? tokens : 1,
            hidden,
            top_k,
            experts,
            1,
            wire,
            scale_format,
            return_mode};
  }
};

// Prints what is wrong, or the help, and exits. `without`: flags that mean nothing to this program.
Options parse(int argc, char** argv, const char* program, const char* about,
              const std::vector<std::string>& without, Options options = {});

}  // namespace bench
