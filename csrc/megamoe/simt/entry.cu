#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "megamoe/errors.h"
#include "megamoe/simt/entry.h"
#include "megamoe/simt/opened.h"

namespace megamoe::simt {
namespace {

Memory memory_of(const MegamoeSimtDomain& domain) {
  const Shape shape{domain.attention_ranks,
                    domain.ffn_ranks,
                    domain.lanes,
                    domain.max_tokens,
                    domain.hidden,
                    domain.top_k,
                    domain.experts,
                    domain.moe_layers,
                    static_cast<Wire>(domain.wire),
                    static_cast<ScaleFormat>(domain.scale_format),
                    static_cast<ReturnMode>(domain.return_mode)};
  return agreed_memory(domain.device_memory, shape, domain.generation);
}

int say(MegamoeSimtError* error, int status, const char* text, int culprit = -1) {
  error->culprit = culprit;
  std::strncpy(error->text, text, sizeof(error->text) - 1);
  error->text[sizeof(error->text) - 1] = '\0';
  return status;
}

// Nothing is thrown across the C interface.
template <class F>
int guarded(MegamoeSimtError* error, F&& fn) {
  try {
    fn();
    return say(error, MEGAMOE_SIMT_OK, "");
  } catch (const Aborted& e) {
    return say(error, MEGAMOE_SIMT_ABORTED, e.what(), e.culprit);
  } catch (const Deadline& e) {
    return say(error, MEGAMOE_SIMT_DEADLINE, e.what());
  } catch (const HandshakeError& e) {
    return say(error, MEGAMOE_SIMT_HANDSHAKE, e.what());
  } catch (const BadExpertId& e) {
    return say(error, MEGAMOE_SIMT_BAD_EXPERT, e.what());
  } catch (const DeviceError& e) {
    return say(error, MEGAMOE_SIMT_NO_DEVICE, e.what());
  } catch (const std::exception& e) {
    return say(error, MEGAMOE_SIMT_ERROR, e.what());
  }
}

void check_range(const char* name, int64_t value, int64_t first, int64_t last) {
  if (value >= first && value <= last) return;
  throw std::invalid_argument(std::string(name) + " must be in [" + std::to_string(first) + ", " +
                              std::to_string(last) + "], is " + std::to_string(value));
}

size_t weight_floats(const Shape& shape, int owned, int width) {
  return 3 * static_cast<size_t>(shape.moe_layers) * static_cast<size_t>(owned) *
         static_cast<size_t>(shape.hidden) * static_cast<size_t>(width);
}

}  // namespace
}  // namespace megamoe::simt

struct MegamoeSimtAttention {
  megamoe::Shape shape;
  megamoe::simt::Opened<megamoe::simt::Attention> opened;
};

// An FFN rank's constant tables: [owners | owned index | owned ids | ranks of the step] on the
// device.
struct OwnedExperts {
  std::vector<int32_t> owners;  // [attention_ranks][experts]
  std::vector<int32_t> index;   // the same: where the expert lies among the owned, or -1
  std::vector<int32_t> ids;     // [owned]
  std::vector<int32_t> local;   // [experts]: as index, for any attention rank
  megamoe::simt::DeviceMemory memory;

  OwnedExperts(const megamoe::Shape& shape, int rank, const int32_t* owner)
      : owners(owner, owner + shape.attention_ranks * shape.experts),
        index(owners.size(), -1),
        local(static_cast<size_t>(shape.experts), -1),
        memory((2 * owners.size() + local.size() + static_cast<size_t>(shape.attention_ranks)) *
               sizeof(int32_t)) {
    for (size_t i = 0; i < owners.size(); ++i) {
      megamoe::simt::check_range("owner", owners[i], 0, shape.ffn_ranks - 1);
      if (owners[i] == rank) local[i % local.size()] = 0;
    }
    for (size_t e = 0; e < local.size(); ++e) {
      if (local[e] < 0) continue;
      local[e] = owned();
      ids.push_back(static_cast<int32_t>(e));
    }
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] == rank) index[i] = local[i % local.size()];
    }
    megamoe::simt::copy(device_owners(), owners.data(), owners.size() * sizeof(int32_t));
    megamoe::simt::copy(device_index(), index.data(), index.size() * sizeof(int32_t));
    megamoe::simt::copy(device_ids(), ids.data(), ids.size() * sizeof(int32_t));
  }
  int owned() const { return static_cast<int>(ids.size()); }
  int32_t* device_owners() const { return reinterpret_cast<int32_t*>(memory.data()); }
  int32_t* device_index() const { return device_owners() + owners.size(); }
  int32_t* device_ids() const { return device_index() + owners.size(); }
  int32_t* device_ranks() const { return device_ids() + local.size(); }
};

struct MegamoeSimtFfn {
  MegamoeSimtFfn(const megamoe::Memory& memory, int rank, const int32_t* owner, int width,
                 uint64_t deadline_ns, unsigned threads)
      : shape(memory.layout.shape),
        experts(shape, rank, owner),
        device_weights(sizeof(float) * megamoe::simt::weight_floats(shape, experts.owned(), width)),
        weights{reinterpret_cast<float*>(device_weights.data()),
                experts.device_ids(),
                shape.moe_layers,
                experts.owned(),
                shape.hidden,
                width},
        opened(threads, [&](megamoe::simt::Arena& arena, megamoe::simt::Failures failures) {
          const auto rows =
              static_cast<size_t>(shape.attention_ranks) * static_cast<size_t>(shape.max_tokens);
          return megamoe::simt::Ffn(memory, rank, {experts.device_index(), experts.index.size()},
                                    megamoe::simt::Target::Experts(weights, rows, arena),
                                    deadline_ns, failures, megamoe::simt::Lists{&arena});
        }) {
    megamoe::simt::agree_on_owners(memory, experts.device_owners(), experts.owners);
  }

  megamoe::Shape shape;
  OwnedExperts experts;
  megamoe::simt::DeviceMemory device_weights;
  megamoe::simt::Weights weights;
  megamoe::simt::Opened<megamoe::simt::Ffn> opened;
};

using namespace megamoe::simt;

int megamoe_simt_probe(MegamoeSimtError* error) { return guarded(error, require_device); }

int megamoe_simt_raise_abort(const MegamoeSimtDomain* domain, int culprit,
                             MegamoeSimtError* error) {
  return guarded(error, [&] {
    const megamoe::Memory memory = memory_of(*domain);
    check_range("culprit", culprit, -1, domain->attention_ranks + domain->ffn_ranks - 1);
    const Stream stream = open_stream();
    run_kernel(stream, 1, abort_role, memory, culprit);
    close_stream(stream);
  });
}

int megamoe_simt_open_attention(const MegamoeSimtDomain* domain, int rank, const int32_t* owner,
                                uint64_t deadline_ns, unsigned threads, MegamoeSimtAttention** side,
                                MegamoeSimtError* error) {
  return guarded(error, [&] {
    const megamoe::Memory memory = memory_of(*domain);
    check_range("rank", rank, 0, domain->attention_ranks - 1);
    const size_t entries =
        static_cast<size_t>(domain->attention_ranks) * static_cast<size_t>(domain->experts);
    const std::vector<int32_t> owners(owner, owner + entries);
    const DeviceMemory device_owners(entries * sizeof(int32_t));
    copy(device_owners.data(), owners.data(), entries * sizeof(int32_t));
    agree_on_owners(memory, reinterpret_cast<const int32_t*>(device_owners.data()), owners);
    *side = new MegamoeSimtAttention{memory.layout.shape,
                                     {threads, [&](Arena&, Failures failures) {
                                        return Attention(memory, rank, deadline_ns, failures);
                                      }}};
  });
}

int megamoe_simt_dispatch(MegamoeSimtAttention* side, uint64_t step, int layer, int lane,
                          const float* device_x, int64_t x_stride, const int32_t* device_ids,
                          const float* device_weights, int tokens, MegamoeSimtError* error) {
  return guarded(error, [&] {
    check_range("layer", layer, 0, side->shape.moe_layers - 1);
    check_range("lane", lane, 0, side->shape.lanes - 1);
    check_range("tokens", tokens, 0, side->shape.max_tokens);
    const AttentionCall call{Turn::Dispatch, step,           layer,  lane,    device_x, x_stride,
                             device_ids,     device_weights, tokens, nullptr, 0};
    side->opened.run(attention_role, call);
  });
}

int megamoe_simt_combine(MegamoeSimtAttention* side, int lane, float* device_out,
                         int64_t out_stride, MegamoeSimtError* error) {
  return guarded(error, [&] {
    check_range("lane", lane, 0, side->shape.lanes - 1);
    AttentionCall call{};
    call.turn = Turn::Combine;
    call.lane = lane;
    call.out = device_out;
    call.out_stride = out_stride;
    side->opened.run(attention_role, call);
  });
}

void megamoe_simt_close_attention(MegamoeSimtAttention* side) { delete side; }

int megamoe_simt_open_ffn(const MegamoeSimtDomain* domain, int rank, const int32_t* owner,
                          int width, uint64_t deadline_ns, unsigned threads, MegamoeSimtFfn** side,
                          MegamoeSimtError* error) {
  return guarded(error, [&] {
    const megamoe::Memory memory = memory_of(*domain);
    check_range("rank", rank, 0, domain->ffn_ranks - 1);
    check_range("width", width, 1, 1 << 24);
    *side = new MegamoeSimtFfn(memory, rank, owner, width, deadline_ns, threads);
  });
}

int megamoe_simt_load(MegamoeSimtFfn* side, int layer, int expert, const float* gate,
                      const float* up, const float* down, MegamoeSimtError* error) {
  return guarded(error, [&] {
    check_range("layer", layer, 0, side->shape.moe_layers - 1);
    check_range("expert", expert, 0, side->shape.experts - 1);
    const int index = side->experts.local[static_cast<size_t>(expert)];
    if (index < 0)
      throw std::invalid_argument("expert " + std::to_string(expert) + " is not owned");
    float* to = side->weights.of(layer, index);
    for (const float* matrix : {gate, up, down}) {
      copy(to, matrix, side->weights.matrix() * sizeof(float));
      to += side->weights.matrix();
    }
  });
}

int megamoe_simt_serve(MegamoeSimtFfn* side, uint64_t step, int lanes,
                       const int32_t* attention_ranks, int count, MegamoeSimtError* error) {
  return guarded(error, [&] {
    check_range("lanes", lanes, 1, side->shape.lanes);
    check_range("the count of attention_ranks", count, 0, side->shape.attention_ranks);
    for (int i = 0; i < count; ++i) {
      check_range("attention_ranks", attention_ranks[i], i == 0 ? 0 : attention_ranks[i - 1] + 1,
                  side->shape.attention_ranks - 1);
    }
    const auto ranks = static_cast<size_t>(count);
    copy(side->experts.device_ranks(), attention_ranks, ranks * sizeof(int32_t));
    side->opened.run(ffn_role, FfnCall{step, lanes, {side->experts.device_ranks(), ranks}});
  });
}

void megamoe_simt_close_ffn(MegamoeSimtFfn* side) { delete side; }
