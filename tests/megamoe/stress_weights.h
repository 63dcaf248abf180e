// Random experts of every type that a bank stores.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "megamoe/cpu/expert_bank.h"
#include "megamoe/numerics.h"

namespace stress {

using Random = std::mt19937_64;

inline int below(Random& random, int end) {
  return static_cast<int>(random() % static_cast<uint64_t>(end));
}

inline std::vector<float> random_weight(Random& random, int rows, int cols) {
  std::normal_distribution<float> normal(0.0f, 0.2f);
  std::vector<float> weight(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  for (float& value : weight) value = normal(random);
  return weight;
}

class RandomExpert {
 public:
  RandomExpert(Random& random, int hidden, int width, megamoe::cpu::WeightType type)
      : gate_(random_weight(random, width, hidden)),
        up_(random_weight(random, width, hidden)),
        down_(random_weight(random, hidden, width)) {
    if (type != megamoe::cpu::WeightType::FP8) return;
    fp8_ = {Codes(random, gate_, width, hidden), Codes(random, up_, width, hidden),
            Codes(random, down_, hidden, width)};
  }

  void load(megamoe::cpu::ExpertBank& bank, int layer, int expert) const {
    if (fp8_.empty()) {
      bank.load(layer, expert, gate_.data(), up_.data(), down_.data());
    } else {
      bank.load_fp8(layer, expert, fp8_[0].weight(), fp8_[1].weight(), fp8_[2].weight());
    }
  }

 private:
  // The weight's e4m3 codes, each block of them made up to twice as large or half as large.
  class Codes {
   public:
    Codes(Random& random, const std::vector<float>& weight, int rows, int cols) {
      for (const float value : weight) codes_.push_back(megamoe::e4m3_encode(value));
      std::uniform_real_distribution<float> scale(0.5f, 2.0f);
      const int blocks = ((rows + kBlock - 1) / kBlock) * ((cols + kBlock - 1) / kBlock);
      for (int i = 0; i < blocks; ++i) scales_.push_back(scale(random));
    }
    megamoe::cpu::Fp8Weight weight() const {
      return {codes_.data(), scales_.data(), kBlock, kBlock};
    }

   private:
    static constexpr int kBlock = 128;
    std::vector<uint8_t> codes_;
    std::vector<float> scales_;
  };

  std::vector<float> gate_;
  std::vector<float> up_;
  std::vector<float> down_;
  std::vector<Codes> fp8_;
};

}  // namespace stress
