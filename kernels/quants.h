/* quants.h - block formats of weights, how they are packed for streaming, and the packed activations.
 *
 * A weight matrix [rows, k] in a file is rows of blocks. At load it is packed into panels of panel_rows rows
 * (gm_kernels.panel_rows for block formats, GM_DENSE_PANEL for f32/f16/bf16), each panel one forward stream over k,
 * the same bytes as in the file in another order, padded with zero rows to whole panels. `unpack` gives the file's
 * bytes back bit for bit. The order inside a panel belongs to the instruction set; only kernels look into it. MLX's
 * files hold the groups of a matrix apart, in arrays of fields, scales and biases: a block of such a format is what
 * they hold of one group (of nvfp4 of two), scale first, then bias, then fields. `pack` reads the arrays. */
#ifndef GOMLX_KERNELS_QUANTS_H
#define GOMLX_KERNELS_QUANTS_H
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

typedef enum {
#define QUANT(name, text, values, bytes, gguf, doc) GM_QUANT_##name,
#include "quants.def"
#undef QUANT
    GM_QUANT_COUNT
} gm_quant;

typedef struct {
    const char *name;  /* as users and files spell it: "Q4_K" */
    int values, bytes; /* per block */
    int gguf_type;     /* -1: GGUF has no such blocks */
    const char *doc;
    int bits, scale; /* of MLX's mode affine, scale: GM_QUANT_f16, _bf16 or _f32; of others 0 */
} gm_quant_info;

extern const gm_quant_info gm_quants[GM_QUANT_COUNT];
/* The format with this GGUF type id, or -1. */
int quant_from_gguf(int64_t gguf_type);
/* The format of mode affine with scales of a dense format, or -1. */
int quant_affine(int64_t bits, int64_t group, int scale);
/* GGUF's own name of a type id, known to the engine or not ("IQ4_XS"); NULL when nobody knows it. */
const char *quant_gguf_name(int64_t gguf_type);

/* Whether weights of the format multiply int8 activations: those of 8-bit floats are not small integers. */
static inline bool quant_takes_int8(int format) { return format > GM_QUANT_bf16 && format != GM_QUANT_mxfp8; }

#define GM_DENSE_PANEL 32  /* rows of a packed dense panel */
#define GM_DENSE_TOKENS 96 /* that are multiplied in one pass over dense weights: a good size of a piece of work */

/* Activations quantised to int8, one scale per 32 values: q = rint(x * 127/amax), scale = amax/127.
 * Tokens go in tiles of GM_ACT_TILE (the last one narrower): tile t, then k block b, then for the W tokens of the tile
 *   int8  q[W][32] | float scale[W] | float scaled_sum[W] | int32 neg_sum[W] | int32 neg_low[W]
 * (where a table has act_pairs q[W / 2][4][2][8] for tokens by twos, then q[32] for a last one)
 * with scaled_sum = scale * sum(q), neg_sum = -sum(q), neg_low = -sum(q[0..15]).  GM_ACT_BYTES per token and block. */
#define GM_ACT_TILE 16
#define GM_ACT_BYTES 48
static inline size_t act_bytes(int64_t tokens, int64_t k) { return (size_t)tokens * (size_t)(k / 32) * GM_ACT_BYTES; }

/* The KV cache of one sequence and layer is blocks of GM_KV_BLOCK positions, each anywhere in memory.
 *   K: [kv_head][GM_KV_BLOCK / 16][head_dim][16]   sixteen keys side by side: one lane per key
 *   V: [kv_head][GM_KV_BLOCK][head_dim]
 * As int8 both are [kv_head][GM_KV_BLOCK / 16][head_dim / 32] units of 16 * 34 bytes: float16 scale[16], one for the 32
 * values of each position, then int8 q: q[32][16] of keys, q[16][32] of values. */
#define GM_KV_BLOCK 256
#define GM_KV_LANES 16
#endif
