/* The SIMT target's C interface: what a shared object built by nvcc, or by a host compiler over the
 * CPU runner, offers.
 *
 * Pointers named device_* are memory that kernels can read and write; under the runner that is any
 * memory. Every call returns a MegamoeSimtStatus; unless it is OK, `error` says why in a sentence.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEGAMOE_SIMT_API __attribute__((visibility("default")))

typedef enum {
  MEGAMOE_SIMT_OK = 0,
  MEGAMOE_SIMT_ABORTED = 1,
  MEGAMOE_SIMT_DEADLINE = 2,
  MEGAMOE_SIMT_HANDSHAKE = 3,
  MEGAMOE_SIMT_BAD_EXPERT = 4,
  MEGAMOE_SIMT_NO_DEVICE = 5,
  MEGAMOE_SIMT_ERROR = 6
} MegamoeSimtStatus;

typedef struct {
  int32_t culprit; /* of ABORTED: a global rank, or -1 */
  char text[500];
} MegamoeSimtError;

/* The symmetric memory, whose creator has written the handshake. */
typedef struct {
  void* device_memory;
  int32_t attention_ranks, ffn_ranks, lanes, max_tokens, hidden, top_k, experts, moe_layers, wire;
  int32_t scale_format, return_mode;
  uint64_t generation;
} MegamoeSimtDomain;

typedef struct MegamoeSimtAttention MegamoeSimtAttention;
typedef struct MegamoeSimtFfn MegamoeSimtFfn;

/* NO_DEVICE where there is no GPU or no driver. */
MEGAMOE_SIMT_API int megamoe_simt_probe(MegamoeSimtError* error);

MEGAMOE_SIMT_API int megamoe_simt_raise_abort(const MegamoeSimtDomain* domain, int culprit,
                                              MegamoeSimtError* error);

/* owner [attention_ranks][experts]: the FFN rank that serves each; all sides must say the same. */
MEGAMOE_SIMT_API int megamoe_simt_open_attention(const MegamoeSimtDomain* domain, int rank,
                                                 const int32_t* owner, uint64_t deadline_ns,
                                                 unsigned threads, MegamoeSimtAttention** side,
                                                 MegamoeSimtError* error);
/* device_x [tokens][hidden], rows x_stride elements apart; device_ids, device_weights
 * [tokens][top_k]; at most max_tokens. The lane must not be away. */
MEGAMOE_SIMT_API int megamoe_simt_dispatch(MegamoeSimtAttention* side, uint64_t step, int layer,
                                           int lane, const float* device_x, int64_t x_stride,
                                           const int32_t* device_ids, const float* device_weights,
                                           int tokens, MegamoeSimtError* error);
/* The lane must be away. */
MEGAMOE_SIMT_API int megamoe_simt_combine(MegamoeSimtAttention* side, int lane, float* device_out,
                                          int64_t out_stride, MegamoeSimtError* error);
MEGAMOE_SIMT_API void megamoe_simt_close_attention(MegamoeSimtAttention* side);

/* Experts start as zeros. */
MEGAMOE_SIMT_API int megamoe_simt_open_ffn(const MegamoeSimtDomain* domain, int rank,
                                           const int32_t* owner, int width, uint64_t deadline_ns,
                                           unsigned threads, MegamoeSimtFfn** side,
                                           MegamoeSimtError* error);
/* gate, up [width][hidden]; down [hidden][width]; of an expert that this rank owns. */
MEGAMOE_SIMT_API int megamoe_simt_load(MegamoeSimtFfn* side, int layer, int expert,
                                       const float* gate, const float* up, const float* down,
                                       MegamoeSimtError* error);
/* One decode step. attention_ranks ascending, each once. */
MEGAMOE_SIMT_API int megamoe_simt_serve(MegamoeSimtFfn* side, uint64_t step, int lanes,
                                        const int32_t* attention_ranks, int count,
                                        MegamoeSimtError* error);
MEGAMOE_SIMT_API void megamoe_simt_close_ffn(MegamoeSimtFfn* side);

#ifdef __cplusplus
}
#endif
