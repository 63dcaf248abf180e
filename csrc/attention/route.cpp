#include "attention/route.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/kernels.h"

namespace attention {
namespace {

// ids[0 .. count) = the largest scores, descending; among equals the lower id comes first. No
// score may be NaN.
void top_ids(const float* scores, int experts, int count, int32_t* ids) {
  int chosen = 0;
  for (int expert = 0; expert < experts; ++expert) {
    const float score = scores[expert];
    if (chosen == count && !(score > scores[ids[count - 1]])) continue;
    int at = chosen < count ? chosen++ : count - 1;
    for (; at > 0 && score > scores[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = expert;
  }
}

void divide(float* values, int count, float total) {
  for (int i = 0; i < count; ++i) values[i] /= total;
}

[[noreturn]] void bad_logits(int row) {
  throw std::invalid_argument("logits row " + std::to_string(row) +
                              " holds NaN or infinity, so no expert can be chosen");
}

}  // namespace

void route_softmax(const Rows<const float>& logits, bool renormalize, const Rows<int32_t>& ids,
                   const Rows<float>& weights) {
  const Kernels& table = kernels();
  std::vector<float> scores(logits.width);
  for (int i = 0; i < logits.n; ++i) {
    const float* row = logits.row(i);
    const float most = table.max(row, logits.width);
    if (!std::isfinite(most)) bad_logits(i);
    const float total = table.exp_sum(row, most, 1.0f, scores.data(), logits.width);
    divide(scores.data(), logits.width, total);
    top_ids(scores.data(), logits.width, ids.width, ids.row(i));
    float chosen = 0.0f;
    for (int j = 0; j < ids.width; ++j) {
      weights.row(i)[j] = scores[ids.row(i)[j]];
      chosen += weights.row(i)[j];
    }
    if (renormalize) divide(weights.row(i), ids.width, chosen);
  }
}

void route_sigmoid(const Rows<const float>& logits, const float* bias, const Rows<int32_t>& ids,
                   const Rows<float>& weights) {
  const Kernels& table = kernels();
  std::vector<float> gates(logits.width);
  std::vector<float> scores(logits.width);
  for (int i = 0; i < logits.n; ++i) {
    table.sigmoid(logits.row(i), gates.data(), logits.width);
    bool valid = true;
    for (int e = 0; e < logits.width; ++e) {
      scores[e] = gates[e] + bias[e];
      valid &= scores[e] == scores[e];
    }
    if (!valid) bad_logits(i);
    top_ids(scores.data(), logits.width, ids.width, ids.row(i));
    float chosen = 0.0f;
    for (int j = 0; j < ids.width; ++j) {
      weights.row(i)[j] = gates[ids.row(i)[j]];
      chosen += weights.row(i)[j];
    }
    divide(weights.row(i), ids.width, chosen);
  }
}

}  // namespace attention
