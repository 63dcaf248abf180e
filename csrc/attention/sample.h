// Token choice.
#pragma once

#include <cstdint>

#include "attention/rows.h"

namespace attention {

struct SampleRows {
  Rows<const float> logits;  // [n, vocabulary]
  const float* temperature;  // [n], >= 0; 0 is greedy
  const int32_t* top_k;      // [n], <= 0 is off
  const float* top_p;        // [n], in (0, 1]; 1 is off
  const uint64_t* seed;      // [n]
  const int64_t* position;   // [n]
  int32_t* out;              // [n]
};

// One token a row. Order: temperature, top-k, then top-p over what top-k left, renormalised: the
// shortest prefix of the descending probabilities whose sum reaches top_p. Ties go to the lower
// id. Throws std::invalid_argument naming the row for NaN or +infinity among the logits, for a row
// that is -infinity throughout, and for parameters out of range.
void sample(const SampleRows& rows);

// A uniform number in [0, 1) with 53 bits, a pure function of (seed, position).
double uniform_of(uint64_t seed, int64_t position);

}  // namespace attention
