// The experts without a boundary: same schedule, same kernels, same order of sums.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "megamoe/cpu/expert_bank.h"

namespace megamoe::cpu {

// A bank and the working memory of its forward.
class ColocatedExperts {
 public:
  struct Batch {
    const float* x;  // [tokens][hidden], rows x_stride elements apart
    int64_t x_stride;
    const int32_t* ids;    // [tokens][top_k]
    const float* weights;  // [tokens][top_k]
    float* out;            // [tokens][hidden], rows out_stride elements apart
    int64_t out_stride;
    int tokens;
    int top_k;
  };

  ColocatedExperts(int moe_layers, const std::vector<int32_t>& expert_ids, int hidden, int width,
                   WeightType type);

  ExpertBank& bank() { return bank_; }
  const ExpertBank& bank() const { return bank_; }

  // out = the sum over slots, ascending; id -1 is skipped. Throws BadExpertId for an id that is
  // not held, std::logic_error if a forward of these experts is running already.
  void forward(Pool& pool, int layer, const Batch& batch);

 private:
  void forward_chunk(Pool& pool, int layer, int next_layer, const Batch& batch);
  void check_ids(int layer, const Batch& batch) const;

  ExpertBank bank_;
  std::vector<int32_t> owned_index_;
  TileSchedule schedule_;
  ExpertScratch scratch_;
  GrowBuffer<float> returned_;
  std::atomic<bool> busy_{false};
};

}  // namespace megamoe::cpu
