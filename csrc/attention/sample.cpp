#include "attention/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
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
constexpr int kSumBlock = 512;  // elements whose weights are summed before the search descends
constexpr int kStretch = 64;
constexpr size_t kSortedAtOnce = 4096;

// Working memory of a call, reused by its rows.
struct Workspace {
  explicit Workspace(int vocabulary) : weights(vocabulary), candidates(vocabulary) {}
  std::vector<float> weights;  // exp((logit - max) / temperature)
  std::vector<int32_t> candidates;
  std::vector<float> maxima;
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

// Fills candidates with the ids whose value is at least the threshold, ascending.
void collect(const Kernels& table, const float* values, float threshold, Workspace& ws) {
  const int vocabulary = static_cast<int>(ws.weights.size());
  ws.candidates.resize(vocabulary);
  ws.candidates.resize(table.at_least(values, threshold, vocabulary, ws.candidates.data()));
}

// A value that at least k logits reach: the k-th largest of the maxima of short stretches.
float reached_by(const Kernels& table, const float* logits, int vocabulary, int k, Workspace& ws) {
  ws.maxima.clear();
  for (int first = 0; first < vocabulary; first += kStretch) {
    ws.maxima.push_back(table.max(logits + first, std::min(kStretch, vocabulary - first)));
  }
  if (k > static_cast<int>(ws.maxima.size())) return -std::numeric_limits<float>::infinity();
  std::nth_element(ws.maxima.begin(), ws.maxima.begin() + (k - 1), ws.maxima.end(),
                   std::greater<float>());
  return ws.maxima[k - 1];
}

void keep_top_k(const Kernels& table, const float* logits, int k, Workspace& ws) {
  const int vocabulary = static_cast<int>(ws.weights.size());
  collect(table, logits, reached_by(table, logits, vocabulary, k, ws), ws);
  std::nth_element(ws.candidates.begin(), ws.candidates.begin() + (k - 1), ws.candidates.end(),
                   Before{logits});
  ws.candidates.resize(k);
}

// Cuts the candidates, of which [sure, end) are sorted and follow the rest in the order, after the
// first whose cumulative weight reaches `mass`.
void cut_at(double mass, size_t sure, Workspace& ws) {
  double seen = 0.0;
  for (size_t i = 0; i < sure; ++i) seen += ws.weights[ws.candidates[i]];
  size_t kept = sure;
  while (kept < ws.candidates.size() && (kept == 0 || seen < mass)) {
    seen += ws.weights[ws.candidates[kept++]];
  }
  ws.candidates.resize(kept);
}

// Splits the candidates' logits into ranges of equal width, finds the one in which the cumulative
// weight reaches `mass`, drops later ones and sorts that one, at the end of the candidates. Returns
// how many come before it. A sort of a flat distribution's candidates would not be linear.
size_t sort_edge(const float* logits, double mass, Workspace& ws) {
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  for (const int32_t id : ws.candidates) {
    least = std::min(least, logits[id]);
    most = std::max(most, logits[id]);
  }
  float per_unit = static_cast<float>(kBuckets) / (most - least);
  if (!std::isfinite(per_unit)) per_unit = 0.0f;
  const auto bucket_of = [&](int32_t id) {
    const float bucket = (most - logits[id]) * per_unit;
    return bucket < static_cast<float>(kBuckets - 1) ? static_cast<int>(bucket) : kBuckets - 1;
  };
  ws.masses.assign(kBuckets, 0.0);
  for (const int32_t id : ws.candidates) ws.masses[bucket_of(id)] += ws.weights[id];
  int edge = 0;
  for (double seen = ws.masses[0]; seen < mass && edge < kBuckets - 1;) seen += ws.masses[++edge];
  const auto begin = ws.candidates.begin();
  const auto kept =
      std::partition(begin, ws.candidates.end(), [&](int32_t id) { return bucket_of(id) <= edge; });
  ws.candidates.erase(kept, ws.candidates.end());
  const auto sorted =
      std::partition(begin, ws.candidates.end(), [&](int32_t id) { return bucket_of(id) < edge; });
  std::sort(sorted, ws.candidates.end(), Before{logits});
  return static_cast<size_t>(sorted - begin);
}

void keep_top_p(const Kernels& table, const float* logits, double top_p, double total,
                Workspace& ws) {
  // Weights below an equal share of what may be dropped sum to less than it, so no cut keeps one.
  constexpr double kRoundingMargin = 0.999;
  const double share = (1.0 - top_p) * total / static_cast<double>(ws.weights.size());
  collect(table, ws.weights.data(), static_cast<float>(share * kRoundingMargin), ws);
  size_t sure = 0;
  if (ws.candidates.size() > kSortedAtOnce) {
    sure = sort_edge(logits, top_p * total, ws);
  } else {
    std::sort(ws.candidates.begin(), ws.candidates.end(), Before{logits});
  }
  cut_at(top_p * total, sure, ws);
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
  const double total = table.exp_sum(logits, most, inverse, ws.weights.data(), vocabulary);
  const double uniform = uniform_of(rows.seed[i], rows.position[i]);
  const bool by_rank = rows.top_k[i] > 0 && rows.top_k[i] < vocabulary;
  const bool by_mass = rows.top_p[i] < 1.0f;
  if (!by_rank && !by_mass) return draw_any(uniform, ws);
  if (!by_rank) {
    keep_top_p(table, logits, rows.top_p[i], total, ws);
    return draw_candidate(uniform, ws);
  }
  keep_top_k(table, logits, rows.top_k[i], ws);
  if (by_mass) {
    std::sort(ws.candidates.begin(), ws.candidates.end(), Before{logits});
    double kept = 0.0;
    for (const int32_t id : ws.candidates) kept += ws.weights[id];
    cut_at(rows.top_p[i] * kept, 0, ws);
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
