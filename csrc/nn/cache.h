/* cache.h - what a model keeps of one sequence: keys and values of its positions, states of recurrent layers.
 *  (1) The layout has one slot for each layer that keeps something; layers that share keys and values share a slot. The
 *      model owns the layout, which outlives the caches.
 *  (2) Keys and values are stored in blocks of GM_KV_BLOCK positions, which tables of pointers list (kernels/quants.h);
 * block b of a sequence holds positions from b * GM_KV_BLOCK on. Blocks and states are reference-counted: a fork shares
 *      them, and a shared one is copied before it is written (copy-on-write).
 *  (3) Blocks that have slid out of the slot's window are freed. */
#ifndef GOMLX_NN_CACHE_H
#define GOMLX_NN_CACHE_H
#include "core/array.h"

#define CACHE_CHECKPOINTS 4             /* states kept to fall back to, besides the zeros at the start */
#define CACHE_WINDOW_MARGIN GM_KV_BLOCK /* keys kept before a window, so that a few positions can be trimmed */

/* CACHE_KV: keys and values [n_kv_heads, head_dim] of every position, or of those that `window` rows see (0: all).
 * CACHE_STATE: two arrays of floats, zeros before the first position. */
typedef enum { CACHE_KV, CACHE_STATE } cache_kind;
typedef struct {
    cache_kind kind;
    int64_t n_kv_heads, head_dim, window;
    int64_t conv_floats, state_floats;
    int device; /* where its memory is */
} cache_slot;

typedef struct {
    const cache_slot *slots;
    int n_slots;
    int kv_type;     /* GM_FLOAT32, GM_FLOAT16, GM_BFLOAT16, or GM_KV_Q8_0: then head_dim % 32 is 0 */
    int64_t context; /* positions that a sequence may have */
    bool rotate;     /* or any number of them: every window is at most the context then */
} cache_layout;
const char *cache_type_name(int kv_type); /* "float16", "q8_0" */
/* Bytes of `values` keys, or values, of one position; of q8_0 a multiple of 32. */
int64_t cache_entry_bytes(int kv_type, int64_t values);
/* Bytes of one position in all slots of keys and values. */
int64_t cache_position_bytes(const cache_layout *layout);

typedef struct gm_cache gm_cache;
gm_status cache_new(const cache_layout *layout, gm_cache **out);
void cache_free(gm_cache *c); /* NULL is fine */
/* A copy of the sequence, which shares all memory until either is extended (copy-on-write). */
gm_status cache_fork(const gm_cache *c, gm_cache **out);
/* Reserves memory for positions [from, to), which are about to be computed. from is the sequence's length, or less
 * where no slot is a state. After a pass that did not finish, call cache_trim(c, from). */
gm_status cache_reserve(gm_cache *c, int64_t from, int64_t to);
/* Whether cache_reserve would change nothing of what the blocks of positions [from, to) are and where: they are there,
 * and nobody shares them. */
bool cache_is_ready(const gm_cache *c, int64_t from, int64_t to);
/* Drops positions from `length` on, and more where it must: a state falls back to its last checkpoint, a window to a
 * position whose keys are all there. Returns the length that is left, at most `length`. */
int64_t cache_trim(gm_cache *c, int64_t length);
bool cache_has_states(const gm_cache *c);
/* The cache as bytes, the same whatever devices it is on: its positions, states and checkpoints. cache_restore fills an
 * empty cache; bytes that are not a saved cache of its layout with `length` positions are GM_EBADFILE. */
size_t cache_save_bytes(const gm_cache *c);
gm_status cache_save(const gm_cache *c, uint8_t *out);
gm_status cache_restore(gm_cache *c, int64_t length, const uint8_t *bytes, size_t size);
int64_t cache_bytes(const gm_cache *c); /* memory that it holds, shared memory included */
/* Memory that several hold, of which each piece counts once however many share it. */
gm_status caches_bytes(gm_cache *const *caches, size_t n, int64_t *bytes);
/* Where a slot is, for a forward pass: blocks of keys and of values, or the two arrays of a state. Valid until the next
 * call that changes the cache. Tables of blocks are the host's, what they and states point to is the slot's device's.
 */
void cache_addresses(const gm_cache *c, int slot, gm_cache_address arrays[2]);
int64_t cache_blocks(const gm_cache *c, int slot); /* that these list; 0: a state */
/* Floats of the second array of a state. */
gm_status cache_read_state(const gm_cache *c, int slot, float *out);
#endif
