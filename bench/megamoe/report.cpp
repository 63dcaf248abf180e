#include "report.h"

#include <cstdio>

#include "megamoe/cpu/isa.h"

namespace bench {
namespace {

double rate(double amount, double us) { return us > 0 ? amount / us * 1e-3 : 0; }
double share(double limit_us, double us) { return us > 0 ? limit_us / us : 0; }

std::string quoted_or_null(const std::string& name) {
  return name.empty() ? "null" : '"' + name + '"';
}

void print_json_figures(const Phase& phase, const Limits& limits) {
  const double limit_us = limits.us(phase);
  std::printf(
      "\"us\": %.3f, \"gbps\": %.3f, \"gflops\": %.3f, \"limit_us\": %.3f, "
      "\"share_of_limit\": %.4f",
      phase.us, rate(phase.bytes, phase.us), rate(phase.flops, phase.us), limit_us,
      share(limit_us, phase.us));
}

void print_json_phase(const Phase& phase, const Limits& limits) {
  std::printf("\"%s\": {", phase.name.c_str());
  if (phase.by_difference) {
    std::printf("\"us\": %.3f, \"by_difference\": true}", phase.us);
    return;
  }
  print_json_figures(phase, limits);
  std::printf(", \"by_difference\": false}");
}

void print_line(const Phase& phase, const Limits& limits) {
  if (phase.by_difference) {
    std::printf("  %-24s %12.2f us   by difference\n", phase.name.c_str(), phase.us);
    return;
  }
  const double limit_us = limits.us(phase);
  std::printf("  %-24s %12.2f us %9.2f GB/s %9.1f GFLOP/s   limit %12.2f us   %5.1f %%\n",
              phase.name.c_str(), phase.us, rate(phase.bytes, phase.us),
              rate(phase.flops, phase.us), limit_us, 100 * share(limit_us, phase.us));
}

}  // namespace

void report(const char* program, const Options& options, const Phase& whole, const Limits& limits,
            const std::vector<Phase>& phases,
            const std::vector<std::pair<std::string, double>>& extra) {
  const char* isa = megamoe::cpu::isa_name(megamoe::cpu::current_isa());
  const char* clock = name_of(options.clock.id, kClocks);
  const std::string wire = name_of(options.wire, kWires);
  const bool scaled = options.wire == megamoe::Wire::FP8;
  const std::string scales = scaled ? name_of(options.scale_format, kWireScales) : "";
  const std::string weights = options.runs_experts ? name_of(options.weights, kWeights) : "";
  const char* return_mode = name_of(options.return_mode, kReturnModes);
  if (!options.json) {
    std::printf(
        "%s: %s (hidden %d, width %d, %d experts, top-%d), %d tokens, %d x %d ranks, "
        "%swire %s, return mode %s, %s, %s time\n",
        program, options.preset.c_str(), options.hidden, options.width, options.experts,
        options.top_k, options.tokens, options.attention_ranks, options.ffn_ranks,
        options.runs_experts ? ("weights " + weights + ", ").c_str() : "",
        (scaled ? wire + " " + scales : wire).c_str(), return_mode, isa, clock);
    std::printf("  machine, %d thread%s: %s %.1f GB/s, multiply-add %.0f GFLOP/s\n", limits.threads,
                limits.threads == 1 ? "" : "s at once", limits.traffic, limits.gbps, limits.gflops);
    print_line(whole, limits);
    for (const Phase& phase : phases) print_line(phase, limits);
    for (const auto& [name, value] : extra) std::printf("  %-24s %12.3f\n", name.c_str(), value);
    return;
  }
  std::printf("{");
  print_json_figures(whole, limits);
  std::printf(
      ", \"bytes\": %.0f, \"flops\": %.0f, \"machine_gbps\": %.3f, \"machine_traffic\": \"%s\", "
      "\"machine_gflops\": %.1f, \"machine_threads\": %d, \"isa\": \"%s\", \"preset\": \"%s\", "
      "\"hidden\": %d, \"width\": %d, \"experts\": %d, \"top_k\": %d, \"tokens\": %d, "
      "\"attention_ranks\": %d, \"ffn_ranks\": %d, \"lanes\": %d, \"threads\": %d, \"rounds\": %d, "
      "\"clock\": \"%s\"",
      whole.bytes, whole.flops, limits.gbps, limits.traffic, limits.gflops, limits.threads, isa,
      options.preset.c_str(), options.hidden, options.width, options.experts, options.top_k,
      options.tokens, options.attention_ranks, options.ffn_ranks, options.lanes, options.threads,
      options.rounds, clock);
  std::printf(", \"weights\": %s, \"wire\": \"%s\", \"wire_scales\": %s, \"return_mode\": \"%s\"",
              quoted_or_null(weights).c_str(), wire.c_str(), quoted_or_null(scales).c_str(),
              return_mode);
  for (const auto& [name, value] : extra) std::printf(", \"%s\": %.4f", name.c_str(), value);
  std::printf(", \"phases\": {");
  for (size_t i = 0; i < phases.size(); ++i) {
    if (i > 0) std::printf(", ");
    print_json_phase(phases[i], limits);
  }
  std::printf("}}\n");
}

}  // namespace bench
