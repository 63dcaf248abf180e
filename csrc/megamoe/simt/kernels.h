// The two role kernels of the SIMT target. One block each; the side is device memory.
#pragma once

#include <cstdint>

#include "megamoe/attention_side.h"
#include "megamoe/ffn_side.h"
#include "megamoe/simt/target.h"

namespace megamoe::simt {

using Attention = AttentionSide<Target>;
using Ffn = FfnSide<Target>;

enum class Turn : int32_t { Dispatch, Combine };

// A combine needs lane and out alone.
struct AttentionCall {
  Turn turn;
  uint64_t step;
  int layer;
  int lane;
  const float* x;  // [tokens][hidden], rows x_stride elements apart
  int64_t x_stride;
  const int32_t* ids;    // [tokens][top_k]
  const float* weights;  // [tokens][top_k]
  int tokens;
  float* out;  // [tokens][hidden], rows out_stride elements apart
  int64_t out_stride;
};

struct FfnCall {
  uint64_t step;
  int lanes;
  List<int32_t> attention_ranks;
};

MEGAMOE_KERNEL void attention_role(Attention* side, AttentionCall call) {
  if (call.turn == Turn::Combine) {
    side->combine(call.lane, call.out, call.out_stride);
  } else {
    side->dispatch(call.step, call.layer, call.lane, call.x, call.x_stride, call.ids, call.weights,
                   call.tokens);
  }
}

// A whole decode step: every layer and lane.
MEGAMOE_KERNEL void ffn_role(Ffn* side, FfnCall call) {
  side->serve(call.step, call.lanes, call.attention_ranks);
}

// Enters a side's ownership table [attention_ranks][experts], or compares it with the one there.
struct OwnersAnswer {
  int different;  // the first entry that differs, or -1
  int seen;
};

MEGAMOE_KERNEL void owners_role(Memory memory, const int32_t* owners, OwnersAnswer* answer) {
  if (!Target::leader()) return;
  const Shape& shape = memory.layout.shape;
  *answer = {-1, 0};
  for (int i = 0; i < shape.attention_ranks * shape.experts; ++i) {
    const int32_t seen = Target::enter(memory.owner(0)[i], owners[i] + 1);
    if (seen == 0 || seen == owners[i] + 1) continue;
    *answer = {i, seen - 1};
    return;
  }
}

// The leader raises the abort word; ranks on the host may sleep on any word.
MEGAMOE_KERNEL void abort_role(Memory memory, int culprit) {
  if (!Target::leader()) return;
  raise_abort<Target>(memory.abort(), culprit);
  memory.for_each_word([](Word& word) { Target::wake_if_sleeping(word); });
}

}  // namespace megamoe::simt
