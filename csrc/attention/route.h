// The router's choice of experts.
#pragma once

#include <cstdint>

#include "attention/rows.h"

namespace attention {

// Softmax over all of a row's logits, then the ids.width largest, descending, ties to the lower id;
// `renormalize` makes their weights sum to 1. Throws std::invalid_argument naming a row whose
// logits have no softmax (NaN or +infinity).
void route_softmax(const Rows<const float>& logits, bool renormalize, const Rows<int32_t>& ids,
                   const Rows<float>& weights);

// Chooses by sigmoid(logit) + bias, descending, ties to the lower id; weighs by sigmoid(logit) over
// the chosen, sum 1. Throws std::invalid_argument naming a row with NaN.
void route_sigmoid(const Rows<const float>& logits, const float* bias, const Rows<int32_t>& ids,
                   const Rows<float>& weights);

}  // namespace attention
