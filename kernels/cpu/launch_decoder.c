/* launch_decoder.c - fused parts of decoders, attention over caches and over plain arrays. */
#include "cpu/launch.h"
#include "turned.h"

/* ---- attention over the caches of sequences ---- */

bool cpu_attention(gm_recorder *r, const gm_attention_args *a, int64_t n) {
    return LAUNCH(r, attention, a, n * a->n_kv_heads, 1, 0);
}

/* The keys are split into blocks, so that long contexts keep all threads busy. */
bool cpu_attention_rows(gm_recorder *r, const gm_attention_rows_args *a, int64_t n) {
    gm_attention_args rows = *a;
    const int64_t window_blocks = a->window / GM_KV_BLOCK + 2;
    const bool windowed = a->window > 0 && window_blocks < a->max_blocks;
    if (windowed) {
        rows.max_blocks = window_blocks;
        rows.n_blocks = NULL;
    }
    rows.partial = r->workspace(r, (size_t)(n * a->n_heads * rows.max_blocks * (a->head_dim + 2)) * sizeof(float));
    if (!rows.partial || !LAUNCH(r, attention_split, &rows, n * a->n_kv_heads * (windowed ? window_blocks : 1), 1, 0))
        return false;
    if (!windowed) r->scale(r, a->n_blocks);
    r->fence(r);
    return LAUNCH(r, attention_merge, &rows, n * a->n_heads, 1 + 4096 / a->head_dim, 0);
}

bool cpu_turned_attention(gm_recorder *r, const gm_turned_attention_args *a, int64_t n) {
    return record_turned_apart(r, a, n);
}

/* ---- layers with a state: rows of several sequences; grains count their mean number, rounded up ---- */
bool cpu_recurrent_conv(gm_recorder *r, const gm_recurrent_conv_args *a, int64_t n) {
    const gm_cached_conv_args *conv = &a->layer;
    const int64_t blocks = (conv->channels + GM_CONV_CHANNELS - 1) / GM_CONV_CHANNELS, rows = n / a->sequences + 1;
    return LAUNCH(r, cached_conv, conv, a->sequences * blocks, 1 + 32768 / (rows * conv->taps * GM_CONV_CHANNELS), 0);
}

bool cpu_recurrent_delta(gm_recorder *r, const gm_recurrent_delta_args *a, int64_t n) {
    const gm_cached_gated_delta_args *delta = &a->layer;
    const int64_t blocks = (delta->n_values + GM_DELTA_ROWS - 1) / GM_DELTA_ROWS, rows = n / a->sequences + 1;
    return LAUNCH(r, cached_gated_delta, delta, a->sequences * delta->n_heads * blocks,
                  1 + 65536 / (rows * delta->n_keys * GM_DELTA_ROWS + 1), 0);
}

/* ---- attention over plain arrays: kv heads have `rows` queries each ---- */
/* Few queries: the keys are split into blocks, for all threads. */
static bool sdpa_by_blocks(gm_recorder *r, gm_sdpa_args *a, int64_t heads, int64_t rows) {
    const int64_t blocks = gm_sdpa_blocks(a->keys);
    a->partial = r->workspace(r, (size_t)(heads * rows * blocks * (a->value_dim + 2)) * sizeof(float) + 1);
    if (!a->partial || !LAUNCH(r, sdpa_split, a, heads * blocks, 1 + 64 / (a->dim + 1), 0)) return false;
    r->fence(r);
    return LAUNCH(r, sdpa_merge, a, heads * rows, 1 + 4096 / (a->value_dim + 1), 0);
}

/* Keys and values are packed once for tiles of queries. */
static bool sdpa_by_tiles(gm_recorder *r, gm_sdpa_args *a, int64_t heads, int64_t rows) {
    const int64_t tiles = gm_sdpa_tiles(a->keys), tile = gm_sdpa_tile(a->value_dim);
    a->packed_k = r->workspace(r, (size_t)(heads * tiles * GM_SDPA_LANES * a->dim) * sizeof(float) + 1);
    if (!a->packed_k) return false;
    if (a->type != GM_T_F32) {
        a->packed_v = r->workspace(r, (size_t)(heads * a->keys * a->value_dim) * sizeof(float) + 1);
        if (!a->packed_v) return false;
    }
    if (!LAUNCH(r, sdpa_pack, a, heads * tiles, 1 + 512 / (a->dim + 1), 0)) return false;
    r->fence(r);
    return LAUNCH(r, sdpa, a, heads * ((rows + tile - 1) / tile), 1, 0);
}

bool cpu_sdpa(gm_recorder *r, const gm_sdpa_args *a, int64_t n) {
    gm_sdpa_args args = *a;
    const int64_t heads = a->batches * a->n_kv_heads, rows = heads ? n / heads : 0;
    return (rows <= GM_SDPA_FEW ? sdpa_by_blocks : sdpa_by_tiles)(r, &args, heads, rows);
}

/* ---- low-rank terms ---- */
/* Pieces of some microseconds: their matrices are read from memory. */
#define LOW_RANK_WORK 16384

static int64_t low_rank_grain(int64_t work, int64_t rows) {
    const int64_t block = rows < GM_LOW_RANK_ROWS ? rows : GM_LOW_RANK_ROWS, unit = work * block;
    return unit < LOW_RANK_WORK ? LOW_RANK_WORK / unit : 1;
}

bool cpu_low_rank_down(gm_recorder *r, const gm_low_rank_down_args *a, int64_t n) {
    int64_t units = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        units += low_rank_down_units(&a->terms[i]);
        most = a->terms[i].rows > most ? a->terms[i].rows : most;
    }
    return LAUNCH(r, low_rank_down, a, units, low_rank_grain(GM_LOW_RANK_RANKS * a->k, most), 0);
}

bool cpu_low_rank_up(gm_recorder *r, const gm_low_rank_up_args *a, int64_t n) {
    int64_t units = 0, most = 0, ranks = 0;
    for (int64_t i = 0; i < n; i++) {
        const gm_low_rank_part *p = &a->parts[i];
        int64_t all = 0;
        for (int64_t j = 0; j < p->n_terms; j++) all += a->terms[p->term + j].rank;
        units += low_rank_up_units(p);
        ranks = all > ranks ? all : ranks;
        most = p->rows > most ? p->rows : most;
    }
    return LAUNCH(r, low_rank_up, a, units, low_rank_grain(GM_LOW_RANK_COLUMNS * ranks, most), 0);
}
