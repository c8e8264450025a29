/* quants.c - the table of weight formats, and GGUF's names of all types, those the engine cannot read included. */
#include "quants.h"
#include "blocks.h"

#include <assert.h>

#define QUANT(name, text, values, bytes, gguf, doc)                                                                    \
    static_assert(sizeof(block_##name) == (bytes), text ": the size of a block is fixed by its file format");
#define AFFINE(name, text, bits, group, scale, scale_bytes, doc)
#include "quants.def"
#undef QUANT

const gm_quant_info gm_quants[GM_QUANT_COUNT] = {
#define QUANT(name, text, values, bytes, gguf, doc) [GM_QUANT_##name] = {text, values, bytes, gguf, doc, 0, 0},
#define AFFINE(name, text, bits, group, scale, scale_bytes, doc)                                                       \
    [GM_QUANT_##name] = {text, group, (group) * (bits) / 8 + 2 * (scale_bytes), -1, doc, bits, GM_QUANT_##scale},
#include "quants.def"
#undef QUANT
};

/* Type ids 4, 5, 31-33 and 36-38 were withdrawn; old files may still carry them. */
static const char *const gguf_names[] = {
    [0] = "F32",         [1] = "F16",         [2] = "Q4_0",        [3] = "Q4_1",      [4] = "Q4_2",     [5] = "Q4_3",
    [6] = "Q5_0",        [7] = "Q5_1",        [8] = "Q8_0",        [9] = "Q8_1",      [10] = "Q2_K",    [11] = "Q3_K",
    [12] = "Q4_K",       [13] = "Q5_K",       [14] = "Q6_K",       [15] = "Q8_K",     [16] = "IQ2_XXS", [17] = "IQ2_XS",
    [18] = "IQ3_XXS",    [19] = "IQ1_S",      [20] = "IQ4_NL",     [21] = "IQ3_S",    [22] = "IQ2_S",   [23] = "IQ4_XS",
    [24] = "I8",         [25] = "I16",        [26] = "I32",        [27] = "I64",      [28] = "F64",     [29] = "IQ1_M",
    [30] = "BF16",       [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",   [33] = "Q4_0_8_8", [34] = "TQ1_0",   [35] = "TQ2_0",
    [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [39] = "MXFP4",    [40] = "NVFP4",   [41] = "Q1_0",
};

int quant_from_gguf(int64_t gguf_type) {
    for (int i = 0; i < GM_QUANT_COUNT && gguf_type >= 0; i++)
        if (gm_quants[i].gguf_type == gguf_type) return i;
    return -1;
}

int quant_affine(int64_t bits, int64_t group, int scale) {
    for (int i = 0; i < GM_QUANT_COUNT; i++) {
        const gm_quant_info *f = &gm_quants[i];
        if (f->bits && f->bits == bits && f->values == group && f->scale == scale) return i;
    }
    return -1;
}

const char *quant_gguf_name(int64_t gguf_type) {
    const int64_t n = (int64_t)(sizeof gguf_names / sizeof *gguf_names);
    return gguf_type >= 0 && gguf_type < n ? gguf_names[gguf_type] : NULL;
}
