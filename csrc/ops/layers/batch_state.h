/* batch_state.h - the state of a forward pass (kernels/batch.h), as ops take it.
 *  (1) Ops record addresses of parts of the block and never read it: its contents are known only when a plan runs.
 *  (2) What a plan does depend on is beside the block: the shape, the type of the keys and values, and how many blocks
 *      of keys a sequence may have. Nodes copy these when they are made.
 *  (3) On a device the block has a twin there, which ops read, and so have the tables of the caches' blocks. The host
 *      fills its own, pinned memory, and batch_state_send copies them before a run. */
#ifndef GOMLX_OPS_BATCH_STATE_H
#define GOMLX_OPS_BATCH_STATE_H
#include "core/array.h"
#include "core/device.h"
#include "batch.h"
#include "best.h"

struct gm_batch_state {
    gm_batch_shape shape;
    int kv_type;                         /* GM_FLOAT32, GM_FLOAT16, GM_BFLOAT16 or GM_KV_Q8_0 */
    int64_t max_blocks;                  /* of keys; only of use where each sequence has a single row */
    gm_batch_view view;                  /* of the host's block */
    gm_array *block;                     /* uint8 [batch_bytes]; of a device the twin */
    gm_array *tokens, *positions, *last; /* int32: parts of the block, as inputs of other ops */
    const device *device;                /* NULL: it is the processor's, and the rest is none */
    void *host;                          /* the host's block, where the twin is on a device, and `best` */
    void **tables; /* of all caches, n_tables pointers: until they are sent, caches have places in them */
    size_t n_tables, tables_capacity;
    bool *paged;       /* of each slot: its arrays are tables */
    gm_buffer *sent;   /* the device's tables */
    gm_row_best *best; /* [2][rows], of the host: what rows with logits come to, by the position's last bit */
};

/* counts: rows of each sequence, 1 or more. prompt: attention goes by tiles even where each has one row, whose bits a
 * device then gives as among more. All else is zeros. */
gm_status batch_state_new(const int32_t *counts, int n_sequences, bool prompt, int n_slots, int kv_type,
                          gm_batch_state **out);
gm_status batch_state_place(gm_batch_state *b, int device); /* once, when it is new */
void batch_state_free(gm_batch_state *b);                   /* NULL is fine */
static inline int32_t batch_state_count(const gm_batch_state *b, int sequence) {
    return b->view.first[sequence + 1] - b->view.first[sequence];
}
static inline bool batch_state_has_single_rows(const gm_batch_state *b) { return b->shape.tiles == 0; }
/* The tokens of a sequence's rows, from a position on. All sequences in turn, from the first, before each run. */
void batch_state_set_rows(gm_batch_state *b, int sequence, const int32_t *tokens, int64_t position);
/* The two arrays of a slot of a sequence's cache, after its rows. */
void batch_state_set_cache(gm_batch_state *b, int sequence, int slot, const gm_cache_address arrays[2]);
/* The same of a batch on a device: arrays of the device, or, blocks not 0, the host's tables of so many blocks. Slots
 * that no op of the batch reads need not be set. */
gm_status batch_state_set_blocks(gm_batch_state *b, int sequence, int slot, const gm_cache_address arrays[2],
                                 int64_t blocks);
/* Once everything is set: begins the copies to the device. What was set stays as it is until they are done. */
gm_status batch_state_send(gm_batch_state *b);

/* For .infer of an op: whether `block` is one of this shape, with `rows` rows and this slot. */
gm_status batch_state_check(const char *op, const gm_array *block, const gm_batch_shape *shape, int64_t rows, int slot);
#endif
