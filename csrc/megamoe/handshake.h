// What both sides of the boundary must agree on, as it lies in the handshake region.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "megamoe/errors.h"
#include "megamoe/layout.h"

namespace megamoe {

constexpr int32_t kProtocolVersion = 2;
constexpr size_t kHandshakeFields = 16;

struct HandshakeField {
  const char* name;
  int64_t value;
};

inline std::array<HandshakeField, kHandshakeFields> handshake_fields(const Layout& layout,
                                                                     uint64_t generation) {
  const Shape& shape = layout.shape;
  return {{{"protocol_version", kProtocolVersion},
           {"attention_ranks", shape.attention_ranks},
           {"ffn_ranks", shape.ffn_ranks},
           {"lanes", shape.lanes},
           {"max_tokens", shape.max_tokens},
           {"hidden", shape.hidden},
           {"top_k", shape.top_k},
           {"experts", shape.experts},
           {"moe_layers", shape.moe_layers},
           {"wire", static_cast<int64_t>(shape.wire)},
           {"scale_format", static_cast<int64_t>(shape.scale_format)},
           {"scale_block", scale_block(shape.scale_format)},
           {"return_mode", static_cast<int64_t>(shape.return_mode)},
           {"segment_bytes", static_cast<int64_t>(layout.segment_bytes)},
           {"total_bytes", static_cast<int64_t>(layout.total_bytes)},
           {"generation", static_cast<int64_t>(generation)}}};
}

// The creator's half.
inline void offer_handshake(const Layout& layout, uint64_t generation, int64_t* region) {
  for (const HandshakeField& field : handshake_fields(layout, generation)) *region++ = field.value;
}

// Throws HandshakeError with the first field that differs, and both values.
inline void compare_handshake(const Layout& layout, uint64_t generation, const int64_t* region) {
  if (*region == 0) {
    throw HandshakeError("handshake: the memory's creator has not written it yet");
  }
  for (const HandshakeField& field : handshake_fields(layout, generation)) {
    if (*region != field.value) {
      throw HandshakeError("handshake: field " + std::string(field.name) +
                           " differs: this side has " + std::to_string(field.value) +
                           ", the memory's creator has " + std::to_string(*region));
    }
    ++region;
  }
}

// Of entry i of the ownership table [attention_ranks][experts].
[[noreturn]] inline void throw_owner_differs(size_t i, int experts, int mine, int theirs) {
  const size_t row = static_cast<size_t>(experts);
  throw HandshakeError("handshake: field owner of expert " + std::to_string(i % row) +
                       " for attention rank " + std::to_string(i / row) +
                       " differs: this side has FFN rank " + std::to_string(mine) +
                       ", another has " + std::to_string(theirs));
}

}  // namespace megamoe
