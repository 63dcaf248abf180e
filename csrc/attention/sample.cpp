#include "attention/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/kernels.h"

namespace attention {
namespace {

// SplitMix64's finaliser (Steele, Lea and Flood, 2014): a bijection of 64 bits that avalanches.
uint64_t mix_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
constexpr int kBuckets = 1024;
constexpr int kSumBlock = 512;      // elements whose weights are summed before the search descends
constexpr float kDeepest = 104.0f;  // exp(-104) is 0 in float32

// Working memory of a call, reused by its rows.
struct Workspace {
  explicit Workspace(int vocabulary) : weights(vocabulary), candidates(vocabulary) {}
  std::vector<float> weights;  // exp((logit - max) / temperature)
  std::vector<int32_t> candidates;
  std::vector<int64_t> counts;
  std::vector<double> masses;
};

[[noreturn]] void bad(int row, const std::string& what) {
  throw std::invalid_argument("row " + std::to_string(row) + ": " + what);
}

void check_parameters(const SampleRows& rows, int i) {
  if (!(rows.temperature[i] >= 0.0f) || !std::isfinite(rows.temperature[i])) {
    bad(i, "temperature must be finite and at least 0, got " + std::to_string(rows.temperature[i]));
  }
  if (!(rows.top_p[i] > 0.0f && rows.top_p[i] <= 1.0f)) {
    bad(i, "top_p must be in (0, 1], got " + std::to_string(rows.top_p[i]));
  }
}

float checked_max(const Kernels& table, const SampleRows& rows, int i) {
  const float most = table.max(rows.logits.row(i), rows.logits.width);
  if (std::isnan(most)) bad(i, "a logit is NaN; the model's output is broken");
  if (most > std::numeric_limits<float>::max()) bad(i, "a logit is +infinity");
  if (most < std::numeric_limits<float>::lowest()) bad(i, "every logit is -infinity");
  return most;
}

// Orders by logit, descending, then by id: a strict total order.
struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  }
};

// Splits the logits into ranges of equal width below the largest, so that a cut by rank or by mass
// needs a sort within one range only.
struct Buckets {
  float most;
  float per_unit;

  Buckets(const float* logits, int vocabulary, float most_logit, float temperature)
      : most(most_logit), per_unit(0.0f) {
    const float deepest = std::min(kDeepest * temperature, std::numeric_limits<float>::max());
    float span = 0.0f;
    for (int i = 0; i < vocabulary; ++i) {
      const float depth = most - logits[i];
      span = depth > span && depth <= deepest ? depth : span;
    }
    per_unit = static_cast<float>(kBuckets - 1) / (span > 0.0f ? span : deepest);
    if (!std::isfinite(per_unit)) per_unit = 0.0f;
  }

  int of(float logit) const {
    const float bucket = (most - logit) * per_unit;
    return bucket < static_cast<float>(kBuckets - 1) ? static_cast<int>(bucket) : kBuckets - 1;
  }
};

// Fills candidates with the tokens of the buckets up to `last`, those of `last` sorted at the end;
// returns how many come before them.
int collect(const float* logits, int vocabulary, const Buckets& buckets, int last,
            std::vector<int32_t>& candidates) {
  candidates.clear();
  std::vector<int32_t> edge;
  for (int i = 0; i < vocabulary; ++i) {
    const int bucket = buckets.of(logits[i]);
    if (bucket < last) candidates.push_back(i);
    if (bucket == last) edge.push_back(i);
  }
  std::sort(edge.begin(), edge.end(), Before{logits});
  const int sure = static_cast<int>(candidates.size());
  candidates.insert(candidates.end(), edge.begin(), edge.end());
  return sure;
}

void keep_top_k(const float* logits, int vocabulary, const Buckets& buckets, int k, Workspace& ws) {
  ws.counts.assign(kBuckets, 0);
  for (int i = 0; i < vocabulary; ++i) ++ws.counts[buckets.of(logits[i])];
  int last = 0;
  for (int64_t seen = ws.counts[0]; seen < k; seen += ws.counts[last]) ++last;
  collect(logits, vocabulary, buckets, last, ws.candidates);
  ws.candidates.resize(k);
}

// Cuts `candidates`, of which [sure, end) are sorted and follow the rest in the order, after the
// first whose cumulative weight reaches top_p of the total.
void cut_at(double top_p, double total, int sure, Workspace& ws) {
  double mass = 0.0;
  for (int i = 0; i < sure; ++i) mass += ws.weights[ws.candidates[i]];
  size_t kept = sure;
  while (kept < ws.candidates.size() && (kept == 0 || mass < top_p * total)) {
    mass += ws.weights[ws.candidates[kept++]];
  }
  ws.candidates.resize(kept);
}

void keep_top_p(const float* logits, int vocabulary, const Buckets& buckets, double top_p,
                Workspace& ws) {
  ws.masses.assign(kBuckets, 0.0);
  for (int i = 0; i < vocabulary; ++i) ws.masses[buckets.of(logits[i])] += ws.weights[i];
  double total = 0.0;
  for (const double mass : ws.masses) total += mass;
  int last = 0;
  for (double seen = ws.masses[0]; seen < top_p * total && last < kBuckets - 1;) {
    seen += ws.masses[++last];
  }
  const int sure = collect(logits, vocabulary, buckets, last, ws.candidates);
  cut_at(top_p, total, sure, ws);
}

int32_t draw_candidate(double uniform, const Workspace& ws) {
  double total = 0.0;
  for (const int32_t id : ws.candidates) total += ws.weights[id];
  double left = uniform * total;
  for (const int32_t id : ws.candidates) {
    left -= ws.weights[id];
    if (left < 0.0) return id;
  }
  // Rounding can use the last token up; the largest weight is then the safe answer.
  return *std::max_element(ws.candidates.begin(), ws.candidates.end(),
                           [&](int32_t a, int32_t b) { return ws.weights[a] < ws.weights[b]; });
}

// In eight chains, which hides the latency of the addition.
double sum_of(const float* values, int count) {
  double chains[8] = {};
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int c = 0; c < 8; ++c) chains[c] += values[i + c];
  }
  for (; i < count; ++i) chains[0] += values[i];
  double total = 0.0;
  for (const double chain : chains) total += chain;
  return total;
}

// The same over the whole vocabulary: first by blocks, then within one.
int32_t draw_any(double uniform, Workspace& ws) {
  const int vocabulary = static_cast<int>(ws.weights.size());
  ws.masses.clear();
  double total = 0.0;
  for (int first = 0; first < vocabulary; first += kSumBlock) {
    const int end = std::min(first + kSumBlock, vocabulary);
    ws.masses.push_back(sum_of(ws.weights.data() + first, end - first));
    total += ws.masses.back();
  }
  double left = uniform * total;
  int32_t last_possible = 0;
  for (size_t block = 0; block < ws.masses.size(); ++block) {
    const int first = static_cast<int>(block) * kSumBlock;
    const int end = std::min(first + kSumBlock, vocabulary);
    if (left >= ws.masses[block] && end < vocabulary) {
      left -= ws.masses[block];
      continue;
    }
    for (int i = first; i < end; ++i) {
      if (ws.weights[i] > 0.0f) last_possible = i;
      left -= ws.weights[i];
      if (left < 0.0) return i;
    }
  }
  return last_possible;
}

int32_t sample_row(const Kernels& table, const SampleRows& rows, int i, Workspace& ws) {
  check_parameters(rows, i);
  const float* logits = rows.logits.row(i);
  const int vocabulary = rows.logits.width;
  const float most = checked_max(table, rows, i);
  const float inverse = 1.0f / rows.temperature[i];
  if (rows.top_k[i] == 1 || !std::isfinite(inverse)) {
    return table.find(logits, most, vocabulary);
  }
  table.exp_sum(logits, most, inverse, ws.weights.data(), vocabulary);
  const double uniform = uniform_of(rows.seed[i], rows.position[i]);
  const bool by_rank = rows.top_k[i] > 0 && rows.top_k[i] < vocabulary;
  const bool by_mass = rows.top_p[i] < 1.0f;
  if (!by_rank && !by_mass) return draw_any(uniform, ws);
  const Buckets buckets(logits, vocabulary, most, rows.temperature[i]);
  if (by_rank) {
    keep_top_k(logits, vocabulary, buckets, rows.top_k[i], ws);
    if (by_mass) {
      std::sort(ws.candidates.begin(), ws.candidates.end(), Before{logits});
      double total = 0.0;
      for (const int32_t id : ws.candidates) total += ws.weights[id];
      cut_at(rows.top_p[i], total, 0, ws);
    }
  } else {
    keep_top_p(logits, vocabulary, buckets, rows.top_p[i], ws);
  }
  return draw_candidate(uniform, ws);
}

}  // namespace

double uniform_of(uint64_t seed, int64_t position) {
  const uint64_t stream = mix_bits(seed + kGolden);
  const uint64_t bits = mix_bits(stream + (static_cast<uint64_t>(position) + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void sample(const SampleRows& rows) {
  const Kernels& table = kernels();
  Workspace ws(rows.logits.width);
  for (int i = 0; i < rows.logits.n; ++i) rows.out[i] = sample_row(table, rows, i, ws);
}

}  // namespace attention
