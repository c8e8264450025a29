/* batch.h - the state of a forward pass: its tokens, positions and caches, which change from run to run, in one block
 * of memory. The host writes it between two runs, kernels read it as they run, and a plan knows only its address.
 *  (1) The rows of a pass belong to sequences, one sequence after another, each with one row or more: sequence s has
 *      the rows from first[s] to first[s + 1].
 *  (2) The shape says where in the block everything is. It is a constant of the plan: another shape is another block.
 *  (3) A device has a copy of the block, with addresses of its own memory. */
#ifndef GOMLX_KERNELS_BATCH_H
#define GOMLX_KERNELS_BATCH_H
#include <stddef.h>
#include <stdint.h>

/* slots: of the caches. tiles: 0 where each sequence has a single row. */
typedef struct { int32_t rows, sequences, slots, tiles; } gm_batch_shape;

/* Where one of the two arrays of a slot of a sequence's cache is. */
typedef union {
    void *const *blocks; /* of keys or values: block b has the positions from b * GM_KV_BLOCK on */
    float *state;        /* of a recurrent layer */
} gm_cache_address;

/* Consecutive rows of one sequence, at most GM_QUERY_TILE, which attention takes together. */
#define GM_QUERY_TILE 16
typedef struct { int32_t first, rows; } gm_query_tile;

typedef struct {
    gm_cache_address *caches;               /* [slots][2][sequences]: keys, then values; or a state's two arrays */
    int32_t *tokens, *positions, *sequence; /* of each row */
    int32_t *first;                         /* [sequences + 1] */
    int32_t *last;                          /* [sequences]: the last row of each */
    int32_t *n_blocks;                      /* one: blocks of keys that the longest sequence has */
    gm_query_tile *tiles;                   /* of a sequence the last rows first: they take longest */
} gm_batch_view;

/* The addresses of array 0 or 1 of a slot, one for each sequence. */
static inline gm_cache_address *batch_caches(const gm_batch_view *v, const gm_batch_shape *s, int slot, int array) {
    return v->caches + ((int64_t)slot * 2 + array) * s->sequences;
}

static inline gm_batch_view batch_view(void *block, const gm_batch_shape *s) {
    gm_batch_view v;
    v.caches = (gm_cache_address *)block;
    v.tokens = (int32_t *)(v.caches + (int64_t)2 * s->slots * s->sequences);
    v.positions = v.tokens + s->rows;
    v.sequence = v.positions + s->rows;
    v.first = v.sequence + s->rows;
    v.last = v.first + s->sequences + 1;
    v.n_blocks = v.last + s->sequences;
    v.tiles = (gm_query_tile *)(v.n_blocks + 1);
    return v;
}

/* The tiles of a sequence of `rows` rows, and where to put the next sequence's. */
static inline int64_t batch_count_tiles(int64_t rows) { return (rows + GM_QUERY_TILE - 1) / GM_QUERY_TILE; }
static inline gm_query_tile *batch_put_tiles(gm_query_tile *to, int32_t first, int32_t rows) {
    for (int64_t t = batch_count_tiles(rows); t-- > 0;) {
        const int32_t at = (int32_t)t * GM_QUERY_TILE, left = rows - at;
        *to++ = (gm_query_tile){first + at, left < GM_QUERY_TILE ? left : GM_QUERY_TILE};
    }
    return to;
}

static inline int64_t batch_bytes(const gm_batch_shape *s) {
    return (int64_t)2 * s->slots * s->sequences * (int64_t)sizeof(gm_cache_address) +
           ((int64_t)3 * s->rows + 2 * s->sequences + 2) * (int64_t)sizeof(int32_t) +
           s->tiles * (int64_t)sizeof(gm_query_tile);
}
#endif
