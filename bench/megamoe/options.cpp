#include "options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>

#include "megamoe/cpu/isa.h"

namespace bench {
namespace {

struct Preset {
  const char* name;
  int hidden;
  int width;
  int experts;
  int top_k;
};
constexpr Preset kPresets[] = {{"qwen3-30b-a3b", 2048, 768, 128, 8},
                               {"qwen3-235b-a22b", 4096, 1536, 128, 8},
                               {"minimax-m2", 3072, 1536, 256, 8},
                               {"mixtral-8x7b", 4096, 14336, 8, 2}};

constexpr const char* kHelp =
    "  --preset NAME          qwen3-30b-a3b (default), qwen3-235b-a22b, minimax-m2, mixtral-8x7b\n"
    "  --hidden --width --experts --top-k N    another shape\n"
    "  --attention-ranks --ffn-ranks --lanes N (1)\n"
    "  --tokens N             per attention rank and lane (64; roundtrip: 0)\n"
    "  --wire fp8|bf16|fp32   what crosses the boundary (fp8)\n"
    "  --wire-scales fp32-128|ue8m0-128|ue8m0-32    of the FP8 wire (fp32-128)\n"
    "  --return-mode slot|reduced              rows that come back (slot)\n"
    "  --weights bf16|fp8|fp32                 of the experts (bf16)\n"
    "  --threads N            of the FFN (1)\n"
    "  --rounds N             figures are medians over them (9)\n"
    "  --clock wall|thread    thread: this thread's own time, for a busy machine and one thread "
    "(wall)\n"
    "  --isa NAME             portable, avx2, avx512, avx512bf16, amx (the machine's best)\n"
    "  --json                 one JSON object\n";

[[noreturn]] void refuse(const char* program, const std::string& what) {
  std::fprintf(stderr, "%s: %s (see --help)\n", program, what.c_str());
  std::exit(2);
}

template <class T, size_t kCount>
T one_of(const std::string& value, const Named<T> (&known)[kCount]) {
  std::string names;
  for (const auto& [name, named] : known) {
    if (value == name) return named;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw std::invalid_argument("'" + value + "' is not one of " + names);
}

int number(const std::string& text, int least) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != 0 || end == text.c_str() || value < least || value > (1 << 24)) {
    throw std::invalid_argument("'" + text + "' is not a whole number of at least " +
                                std::to_string(least));
  }
  return static_cast<int>(value);
}

void use_preset(Options& options, const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    options.preset = name;
    options.hidden = preset.hidden;
    options.width = preset.width;
    options.experts = preset.experts;
    options.top_k = preset.top_k;
    return;
  }
  throw std::invalid_argument("'" + name + "' is no preset");
}

using Setter = std::function<void(const std::string&)>;

std::map<std::string, Setter> setters(Options& options) {
  const auto count = [](int& target, int least) -> Setter {
    return [&target, least](const std::string& text) { target = number(text, least); };
  };
  const auto size = [&options](int& target) -> Setter {
    return [&options, &target](const std::string& text) {
      target = number(text, 1);
      options.preset = "custom";
    };
  };
  return {{"--preset", [&](const std::string& v) { use_preset(options, v); }},
          {"--hidden", size(options.hidden)},
          {"--width", size(options.width)},
          {"--experts", size(options.experts)},
          {"--top-k", size(options.top_k)},
          {"--attention-ranks", count(options.attention_ranks, 1)},
          {"--ffn-ranks", count(options.ffn_ranks, 1)},
          {"--lanes", count(options.lanes, 1)},
          {"--tokens", count(options.tokens, 0)},
          {"--threads", count(options.threads, 1)},
          {"--rounds", count(options.rounds, 1)},
          {"--isa", [](const std::string& v) { megamoe::cpu::set_isa(v); }},
          {"--wire", [&](const std::string& v) { options.wire = one_of(v, kWires); }},
          {"--wire-scales",
           [&](const std::string& v) { options.scale_format = one_of(v, kWireScales); }},
          {"--return-mode",
           [&](const std::string& v) { options.return_mode = one_of(v, kReturnModes); }},
          {"--clock", [&](const std::string& v) { options.clock.id = one_of(v, kClocks); }},
          {"--weights", [&](const std::string& v) { options.weights = one_of(v, kWeights); }}};
}

}  // namespace

Options parse(int argc, char** argv, const char* program, const char* about,
              const std::vector<std::string>& without, Options options) {
  const auto known = setters(options);
  options.runs_experts = std::find(without.begin(), without.end(), "--weights") == without.end();
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::printf("%s: %s\n%s", program, about, kHelp);
      std::exit(0);
    }
    if (flag == "--json") {
      options.json = true;
      continue;
    }
    const auto found = known.find(flag);
    if (found == known.end()) refuse(program, "unknown flag " + flag);
    if (std::find(without.begin(), without.end(), flag) != without.end()) {
      refuse(program, flag + " changes nothing that this program measures");
    }
    if (++i == argc) refuse(program, flag + " needs a value");
    try {
      found->second(argv[i]);
    } catch (const std::invalid_argument& error) {
      refuse(program, flag + ": " + error.what());
    }
  }
  try {
    megamoe::make_layout(options.shape());
  } catch (const std::invalid_argument& error) {
    refuse(program, error.what());
  }
  return options;
}

}  // namespace bench
