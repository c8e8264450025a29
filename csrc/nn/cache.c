/* cache.c - see cache.h. A saved cache is the words of `head`, those of `saved_slot` for each slot, the memory of the
 * slots one after another (of a block the tiles of used positions, head by head, keys before values; of a state its two
 * arrays), the checkpoints (position and states of each), and the checksum of all that. */
#include "nn/cache.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "base/checksum.h"
#include "base/grow.h"
#include "base/memory.h"
#include "core/device.h"

#define CHECKPOINT_EVERY 256 /* positions, at least, between two of them */

/* The memory of a slot: a buffer for each block of keys and values (part of one that similar slots share), or a single
 * buffer for both arrays of a state. */
typedef struct {
    gm_buffer **buffers;    /* NULL: freed, or not allocated yet */
    void **first, **second; /* keys and values of each block; the arrays of a state */
    size_t capacity;        /* of these three, which grow alike */
    int64_t begin, end;     /* allocated blocks */
} slot_memory;

typedef struct {
    int64_t position;   /* states before this position */
    gm_buffer **states; /* of each slot; NULL for keys and values */
} checkpoint;

struct gm_cache {
    const cache_layout *layout;
    slot_memory *slots;
    int64_t length; /* after the last pass */
    bool many_rows; /* that pass had several */
    bool has_states;
    checkpoint checkpoints[CACHE_CHECKPOINTS]; /* by position */
    int n_checkpoints;
};

/* ---- sizes ---- */
static_assert((int)GM_KV_Q8_0 == (int)GM_T_KV_Q8_0, "kernels know the types by number");

const char *cache_type_name(int kv_type) { return kv_type == GM_KV_Q8_0 ? "q8_0" : gm_dtype_name((gm_dtype)kv_type); }

int64_t cache_entry_bytes(int kv_type, int64_t values) {
    return kv_type == GM_KV_Q8_0 ? values / 32 * 34 : values * (int64_t)gm_dtype_size((gm_dtype)kv_type);
}

/* Bytes of a slot's first array (of one block), in whole cache lines, and of both arrays. */
static int64_t first_bytes(const cache_layout *l, const cache_slot *s) {
    return s->kind == CACHE_KV ? s->n_kv_heads * GM_KV_BLOCK * cache_entry_bytes(l->kv_type, s->head_dim)
                               : (s->conv_floats * 4 + 63) / 64 * 64;
}
static int64_t unit_bytes(const cache_layout *l, const cache_slot *s) {
    return s->kind == CACHE_KV ? 2 * first_bytes(l, s) : first_bytes(l, s) + s->state_floats * 4;
}

int64_t cache_position_bytes(const cache_layout *l) {
    int64_t bytes = 0;
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].kind == CACHE_KV)
            bytes += 2 * l->slots[i].n_kv_heads * cache_entry_bytes(l->kv_type, l->slots[i].head_dim);
    return bytes;
}

/* ---- the memory of slots ---- */
/* Capacity for n blocks. */
static gm_status reserve(slot_memory *m, int64_t n) {
    const size_t before = m->capacity;
    if ((size_t)n <= before)
        return GM_OK;
    const size_t more = (size_t)n - before;
    size_t buffers = before, first = before;
    GM_TRY(grow_array(&m->buffers, before, &buffers, more, sizeof *m->buffers));
    GM_TRY(grow_array(&m->first, before, &first, more, sizeof *m->first));
    GM_TRY(grow_array(&m->second, before, &m->capacity, more, sizeof *m->second));
    for (size_t i = before; i < m->capacity; i++) {
        m->buffers[i] = NULL;
        m->first[i] = m->second[i] = NULL;
    }
    return GM_OK;
}

/* Takes the reference, or frees what is there (b NULL). */
static void put_buffer(slot_memory *m, int64_t i, gm_buffer *b, int64_t offset) {
    buffer_release(m->buffers[i]);
    m->buffers[i] = b;
    m->first[i] = b ? b->data : NULL;
    m->second[i] = b ? (char *)b->data + offset : NULL;
}

static bool is_own(const gm_buffer *b) { return b && atomic_load(&b->refs) == 1; }

/* Makes buffer i the slot's own before it is written: part of `whole`, or a new buffer where that is NULL. keep: with
 * the contents of the old one. */
static gm_status own(const cache_layout *l, const cache_slot *s, slot_memory *m, int64_t i, bool keep, gm_buffer *whole,
                     int64_t offset) {
    gm_buffer *old = m->buffers[i];
    if (is_own(old))
        return GM_OK;
    const int64_t bytes = unit_bytes(l, s);
    gm_buffer *b = whole ? buffer_part(whole, (size_t)offset, (size_t)bytes) : buffer_new_on(s->device, (size_t)bytes);
    if (!b)
        return error_code();
    if (old && keep && !s->device)
        memcpy(b->data, old->data, (size_t)bytes);
    else if (s->kind == CACHE_STATE && !s->device) /* kernels clear a state at position 0 as well */
        memset(b->data, 0, (size_t)bytes);
    const gm_status status = old && keep && s->device ? device_copy(s->device, b->data, old->data, (size_t)bytes)
                                                      : GM_OK;
    if (status == GM_OK)
        put_buffer(m, i, b, first_bytes(l, s));
    else
        buffer_release(b);
    return status;
}

/* Slots whose blocks of the same positions are allocated and freed together. */
static bool are_alike(const cache_slot *a, const cache_slot *b) {
    return a->kind == CACHE_KV && b->kind == CACHE_KV && a->window == b->window && a->device == b->device;
}
static int first_like(const cache_layout *l, int slot) {
    int first = 0;
    while (first < slot && !are_alike(&l->slots[first], &l->slots[slot]))
        first++;
    return first;
}

/* Makes block b of all slots like `first`, the first of them, their own: adjacent in one buffer, which can have huge
 * pages where many small blocks could not. */
static gm_status own_blocks(gm_cache *c, int first, int64_t b, bool keep) {
    const cache_layout *l = c->layout;
    int64_t bytes = 0, offset = 0;
    gm_status status = GM_OK;
    for (int i = first; i < l->n_slots; i++)
        if (are_alike(&l->slots[first], &l->slots[i]) && !is_own(c->slots[i].buffers[b]))
            bytes += unit_bytes(l, &l->slots[i]);
    if (bytes == 0)
        return GM_OK;
    gm_buffer *whole = buffer_new_on(l->slots[first].device, (size_t)bytes);
    if (!whole)
        return error_code();
    for (int i = first; i < l->n_slots && status == GM_OK; i++) {
        slot_memory *m = &c->slots[i];
        if (!are_alike(&l->slots[first], &l->slots[i]) || is_own(m->buffers[b]))
            continue;
        status = own(l, &l->slots[i], m, b, keep, whole, offset);
        offset += unit_bytes(l, &l->slots[i]);
        if (status == GM_OK && b >= m->end)
            m->end = b + 1;
    }
    buffer_release(whole);
    return status;
}

static gm_status reserve_blocks(gm_cache *c, int first, int64_t from, int64_t to) {
    const cache_layout *l = c->layout;
    const int64_t end = (to + GM_KV_BLOCK - 1) / GM_KV_BLOCK, window = l->slots[first].window;
    const int64_t unseen = window > 0 ? from + 1 - window - CACHE_WINDOW_MARGIN : 0;
    for (int i = first; i < l->n_slots; i++) {
        slot_memory *m = &c->slots[i];
        if (!are_alike(&l->slots[first], &l->slots[i]))
            continue;
        GM_TRY(reserve(m, end));
        for (; m->begin < m->end && (m->begin + 1) * GM_KV_BLOCK <= unseen; m->begin++)
            put_buffer(m, m->begin, NULL, 0);
    }
    for (int64_t b = from / GM_KV_BLOCK; b < end; b++)
        GM_TRY(own_blocks(c, first, b, b * GM_KV_BLOCK < from));
    return GM_OK;
}

static void clear_slot(slot_memory *m) {
    for (int64_t i = m->begin; i < m->end; i++)
        put_buffer(m, i, NULL, 0);
    m->begin = m->end = 0;
}

/* ---- checkpoints ---- */
static void drop_checkpoint(gm_cache *c, int i) {
    for (int k = 0; k < c->layout->n_slots; k++)
        buffer_release(c->checkpoints[i].states[k]);
    memory_free(c->checkpoints[i].states);
    c->n_checkpoints--;
    memmove(c->checkpoints + i, c->checkpoints + i + 1, (size_t)(c->n_checkpoints - i) * sizeof *c->checkpoints);
}

/* The states before `position`, shared: the next write copies them. */
static gm_status keep_checkpoint(gm_cache *c, int64_t position) {
    gm_buffer **states = memory_zeroed((size_t)c->layout->n_slots * sizeof *states);
    if (!states)
        return GM_ENOMEM;
    if (c->n_checkpoints == CACHE_CHECKPOINTS)
        drop_checkpoint(c, 0);
    for (int k = 0; k < c->layout->n_slots; k++)
        if (c->layout->slots[k].kind == CACHE_STATE)
            states[k] = buffer_retain(c->slots[k].buffers[0]);
    c->checkpoints[c->n_checkpoints++] = (checkpoint){position, states};
    return GM_OK;
}

static bool wants_checkpoint(const gm_cache *c, int64_t position) {
    int64_t last = c->n_checkpoints ? c->checkpoints[c->n_checkpoints - 1].position : 0;
    return c->has_states && position > last && (c->many_rows || position - last >= CHECKPOINT_EVERY);
}

/* ---- caches ---- */
gm_status cache_new(const cache_layout *layout, gm_cache **out) {
    gm_cache *c = memory_zeroed(sizeof *c);
    *out = NULL;
    if (!c || !(c->slots = memory_zeroed((size_t)layout->n_slots * sizeof *c->slots))) {
        memory_free(c);
        return GM_ENOMEM;
    }
    c->layout = layout;
    for (int i = 0; i < layout->n_slots; i++)
        c->has_states |= layout->slots[i].kind == CACHE_STATE;
    *out = c;
    return GM_OK;
}

void cache_free(gm_cache *c) {
    if (!c)
        return;
    while (c->n_checkpoints)
        drop_checkpoint(c, 0);
    for (int i = 0; i < c->layout->n_slots; i++) {
        clear_slot(&c->slots[i]);
        memory_free(c->slots[i].buffers);
        memory_free(c->slots[i].first);
        memory_free(c->slots[i].second);
    }
    memory_free(c->slots);
    memory_free(c);
}

gm_status cache_fork(const gm_cache *c, gm_cache **out) {
    gm_cache *f;
    GM_TRY(cache_new(c->layout, out));
    f = *out;
    for (int i = 0; i < c->layout->n_slots; i++) {
        const slot_memory *from = &c->slots[i];
        slot_memory *to = &f->slots[i];
        if (reserve(to, from->end) != GM_OK)
            goto failed;
        to->begin = from->begin;
        to->end = from->end;
        for (int64_t b = from->begin; b < from->end; b++) {
            to->buffers[b] = buffer_retain(from->buffers[b]);
            to->first[b] = from->first[b];
            to->second[b] = from->second[b];
        }
    }
    for (int i = 0; i < c->n_checkpoints; i++) {
        const checkpoint *from = &c->checkpoints[i];
        gm_buffer **states = memory_zeroed((size_t)c->layout->n_slots * sizeof *states);
        if (!states)
            goto failed;
        for (int k = 0; k < c->layout->n_slots; k++)
            states[k] = buffer_retain(from->states[k]);
        f->checkpoints[f->n_checkpoints++] = (checkpoint){from->position, states};
    }
    f->length = c->length;
    f->many_rows = c->many_rows;
    return GM_OK;
failed:
    cache_free(f);
    *out = NULL;
    return GM_ENOMEM;
}

bool cache_has_states(const gm_cache *c) { return c->has_states; }

gm_status cache_reserve(gm_cache *c, int64_t from, int64_t to) {
    const cache_layout *l = c->layout;
    const int64_t most = l->rotate ? INT32_MAX : l->context;
    if (to > most)
        return gm_fail_context(to, most, "KV cache: got %lld positions, expected at most the context of %lld",
                               (long long)to, (long long)most);
    if (from > c->length || (from < c->length && c->has_states))
        return gm_fail(GM_ESTATE, "KV cache: a pass from position %lld, expected the sequence's length, %lld",
                       (long long)from, (long long)c->length);
    if (wants_checkpoint(c, from))
        GM_TRY(keep_checkpoint(c, from));
    for (int i = 0; i < l->n_slots; i++) {
        const cache_slot *s = &l->slots[i];
        slot_memory *m = &c->slots[i];
        if (s->kind == CACHE_STATE) {
            GM_TRY(reserve(m, 1));
            GM_TRY(own(l, s, m, 0, true, NULL, 0));
            m->end = 1;
        } else if (first_like(l, i) == i) {
            GM_TRY(reserve_blocks(c, i, from, to));
        }
    }
    c->many_rows = to - from > 1;
    c->length = to;
    return GM_OK;
}

bool cache_is_ready(const gm_cache *c, int64_t from, int64_t to) {
    const cache_layout *l = c->layout;
    bool ready = !c->has_states && to <= l->context;
    for (int i = 0; i < l->n_slots && ready; i++) {
        const slot_memory *m = &c->slots[i];
        for (int64_t b = from / GM_KV_BLOCK; b * GM_KV_BLOCK < to && ready; b++)
            ready = b >= m->begin && b < m->end && is_own(m->buffers[b]);
    }
    return ready;
}

/* Where a sequence cut to `length` can go on. */
static int64_t fall_back(const gm_cache *c, int64_t length) {
    int at = c->n_checkpoints;
    if (c->has_states) {
        while (at > 0 && c->checkpoints[at - 1].position > length)
            at--;
        length = at > 0 ? c->checkpoints[at - 1].position : 0;
    }
    for (int i = 0; i < c->layout->n_slots; i++) {
        const cache_slot *s = &c->layout->slots[i];
        const int64_t seen = length + 1 > s->window ? length + 1 - s->window : 0;
        if (s->kind == CACHE_KV && c->slots[i].begin * GM_KV_BLOCK > seen)
            return 0;
    }
    return length;
}

int64_t cache_trim(gm_cache *c, int64_t length) {
    if (length >= c->length)
        return c->length;
    length = fall_back(c, length > 0 ? length : 0);
    while (c->n_checkpoints && c->checkpoints[c->n_checkpoints - 1].position > length)
        drop_checkpoint(c, c->n_checkpoints - 1);
    for (int i = 0; i < c->layout->n_slots; i++) {
        const cache_slot *s = &c->layout->slots[i];
        slot_memory *m = &c->slots[i];
        if (length == 0) {
            clear_slot(m);
        } else if (s->kind == CACHE_STATE) {
            put_buffer(m, 0, buffer_retain(c->checkpoints[c->n_checkpoints - 1].states[i]), first_bytes(c->layout, s));
        } else {
            for (; m->end * GM_KV_BLOCK >= length + GM_KV_BLOCK; m->end--)
                put_buffer(m, m->end - 1, NULL, 0);
        }
    }
    c->many_rows = false;
    return c->length = length;
}

int64_t cache_bytes(const gm_cache *c) {
    int64_t bytes = 0;
    for (int i = 0; i < c->layout->n_slots; i++) {
        const slot_memory *m = &c->slots[i];
        for (int64_t b = m->begin; b < m->end; b++)
            bytes += (int64_t)m->buffers[b]->bytes;
        for (int k = 0; k < c->n_checkpoints; k++) {
            const gm_buffer *kept = c->checkpoints[k].states[i];
            bytes += kept && kept != m->buffers[0] ? (int64_t)kept->bytes : 0;
        }
    }
    return bytes;
}

/* The buffers that a cache holds, of which some are NULL and some come more than once; returns how many. */
static size_t list_buffers(const gm_cache *c, const gm_buffer **out) {
    size_t n = 0;
    for (int i = 0; i < c->layout->n_slots; i++) {
        const slot_memory *m = &c->slots[i];
        for (int64_t b = m->begin; b < m->end; b++, n++)
            if (out)
                out[n] = m->buffers[b];
        for (int k = 0; k < c->n_checkpoints; k++, n++)
            if (out)
                out[n] = c->checkpoints[k].states[i];
    }
    return n;
}
static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)*(gm_buffer *const *)a, y = (uintptr_t)*(gm_buffer *const *)b;
    return (x > y) - (x < y);
}

gm_status caches_bytes(gm_cache *const *caches, size_t n, int64_t *bytes) {
    size_t count = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        count += list_buffers(caches[i], NULL);
    const gm_buffer **all = memory_array(count + 1, sizeof *all);
    *bytes = 0;
    if (!all)
        return GM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        at += list_buffers(caches[i], all + at);
    qsort(all, count, sizeof *all, by_address);
    for (size_t i = 0; i < count; i++)
        if (all[i] && (i == 0 || all[i] != all[i - 1]))
            *bytes += (int64_t)all[i]->bytes;
    memory_free(all);
    return GM_OK;
}

void cache_addresses(const gm_cache *c, int slot, gm_cache_address arrays[2]) {
    const slot_memory *m = &c->slots[slot];
    void *const *const memory[2] = {m->first, m->second};
    for (int i = 0; i < 2; i++)
        arrays[i] = c->layout->slots[slot].kind == CACHE_KV ? (gm_cache_address){.blocks = memory[i]}
                                                            : (gm_cache_address){.state = memory[i][0]};
}

int64_t cache_blocks(const gm_cache *c, int slot) {
    return c->layout->slots[slot].kind == CACHE_KV ? c->slots[slot].end : 0;
}

/* ---- memory that is the host's, or a device's ---- */
static gm_status read_memory(const cache_slot *s, void *out, const void *from, size_t bytes) {
    if (!s->device) {
        memcpy(out, from, bytes);
        return GM_OK;
    }
    GM_TRY(device_copy(s->device, out, from, bytes));
    return device_await(s->device);
}

gm_status cache_read_state(const gm_cache *c, int slot, float *out) {
    const cache_slot *s = &c->layout->slots[slot];
    return read_memory(s, out, c->slots[slot].second[0], (size_t)s->state_floats * sizeof *out);
}

/* The memory of a slot's unit where the host reads or writes it: itself, or a copy. */
static gm_status open_unit(const cache_layout *l, const cache_slot *s, gm_buffer *b, bool reads, char **out) {
    const size_t bytes = (size_t)unit_bytes(l, s);
    *out = s->device ? memory_zeroed(bytes) : b->data;
    if (!*out)
        return GM_ENOMEM;
    const gm_status status = s->device && reads ? read_memory(s, *out, b->data, bytes) : GM_OK;
    if (status != GM_OK)
        memory_free(*out);
    return status;
}
static gm_status close_unit(const cache_layout *l, const cache_slot *s, gm_buffer *b, bool writes, char *unit) {
    gm_status status = GM_OK;
    if (!s->device)
        return GM_OK;
    if (writes)
        status = device_copy(s->device, b->data, unit, (size_t)unit_bytes(l, s));
    if (writes && status == GM_OK)
        status = device_await(s->device);
    memory_free(unit);
    return status;
}

/* ---- as bytes ---- */
#define MAGIC 0x3230304548434143 /* CACHE002 */
typedef struct { uint64_t magic, block, kv_type, n_slots, length, many_rows, n_checkpoints; } head;
typedef struct { int64_t kind, n_kv_heads, head_dim, window, conv_floats, state_floats, begin; } saved_slot;

static saved_slot describe(const cache_slot *s, int64_t begin) {
    const bool kv = s->kind == CACHE_KV;
    return (saved_slot){s->kind,
                        kv ? s->n_kv_heads : 0,
                        kv ? s->head_dim : 0,
                        kv ? s->window : 0,
                        kv ? 0 : s->conv_floats,
                        kv ? 0 : s->state_floats,
                        begin};
}
static head head_of(const cache_layout *l, int64_t length, bool many_rows, int n_checkpoints) {
    return (head){MAGIC,
                  GM_KV_BLOCK,
                  (uint64_t)l->kv_type,
                  (uint64_t)l->n_slots,
                  (uint64_t)length,
                  many_rows,
                  (uint64_t)n_checkpoints};
}

static int64_t positions_in(int64_t block, int64_t length) {
    int64_t left = length - block * GM_KV_BLOCK;
    return left < GM_KV_BLOCK ? left : GM_KV_BLOCK;
}
/* Of one head's keys, or values, of a block. */
static int64_t tiles_bytes(const cache_layout *l, const cache_slot *s, int64_t positions) {
    return (positions + GM_KV_LANES - 1) / GM_KV_LANES * cache_entry_bytes(l->kv_type, GM_KV_LANES * s->head_dim);
}

static int64_t saved_state_bytes(const cache_slot *s) { return (s->conv_floats + s->state_floats) * 4; }

/* Of one checkpoint. */
static int64_t saved_checkpoint_bytes(const cache_layout *l) {
    int64_t bytes = 8;
    for (int i = 0; i < l->n_slots; i++)
        bytes += l->slots[i].kind == CACHE_STATE ? saved_state_bytes(&l->slots[i]) : 0;
    return bytes;
}

/* Bytes of a slot's memory: `length` positions, the first block that is there `begin`. */
static int64_t saved_bytes(const cache_layout *l, const cache_slot *s, int64_t begin, int64_t length) {
    if (s->kind == CACHE_STATE)
        return length > 0 ? saved_state_bytes(s) : 0;
    const int64_t whole = length / GM_KV_BLOCK - begin;
    return 2 * s->n_kv_heads * (whole * tiles_bytes(l, s, GM_KV_BLOCK) + tiles_bytes(l, s, length % GM_KV_BLOCK));
}

size_t cache_save_bytes(const gm_cache *c) {
    int64_t bytes = (int64_t)sizeof(head) + c->n_checkpoints * saved_checkpoint_bytes(c->layout) + 8;
    for (int i = 0; i < c->layout->n_slots; i++)
        bytes += (int64_t)sizeof(saved_slot) +
                 saved_bytes(c->layout, &c->layout->slots[i], c->slots[i].begin, c->length);
    return (size_t)bytes;
}

/* Zeros for the positions from `used` on in a tile of keys or of values of one head: they are not the sequence's. */
static void clear_lanes(const cache_layout *l, uint8_t *tile, int64_t head_dim, int64_t used, bool keys) {
    const size_t rest = (size_t)(GM_KV_LANES - used);
    if (l->kv_type == GM_KV_Q8_0) {
        for (int64_t d = 0; d < head_dim; d += 32, tile += GM_KV_LANES * 34) {
            uint8_t *q = tile + 2 * GM_KV_LANES;
            memset(tile + 2 * used, 0, 2 * rest);
            for (int i = 0; keys && i < 32; i++)
                memset(q + i * GM_KV_LANES + used, 0, rest);
            if (!keys)
                memset(q + 32 * used, 0, 32 * rest);
        }
        return;
    }
    const size_t item = gm_dtype_size((gm_dtype)l->kv_type);
    for (int64_t d = 0; keys && d < head_dim; d++)
        memset(tile + (size_t)(d * GM_KV_LANES + used) * item, 0, rest * item);
    if (!keys)
        memset(tile + (size_t)(used * head_dim) * item, 0, rest * (size_t)head_dim * item);
}

/* The tiles of one block, to or from bytes. */
static uint8_t *save_tiles(const cache_layout *l, const cache_slot *s, uint8_t *out, const void *from,
                           int64_t positions, bool keys) {
    const int64_t bytes = tiles_bytes(l, s, positions), stride = tiles_bytes(l, s, GM_KV_BLOCK);
    for (int64_t h = 0; h < s->n_kv_heads; h++, out += bytes) {
        memcpy(out, (const char *)from + h * stride, (size_t)bytes);
        if (positions % GM_KV_LANES)
            clear_lanes(l, out + tiles_bytes(l, s, positions / GM_KV_LANES * GM_KV_LANES), s->head_dim,
                        positions % GM_KV_LANES, keys);
    }
    return out;
}
static const uint8_t *restore_tiles(const cache_layout *l, const cache_slot *s, void *to, const uint8_t *in,
                                    int64_t positions) {
    const int64_t bytes = tiles_bytes(l, s, positions), stride = tiles_bytes(l, s, GM_KV_BLOCK);
    for (int64_t h = 0; h < s->n_kv_heads; h++, in += bytes)
        memcpy((char *)to + h * stride, in, (size_t)bytes);
    return in;
}

/* Keys and values of one block. */
static gm_status save_block(const cache_layout *l, const cache_slot *s, gm_buffer *b, int64_t positions,
                            uint8_t **out) {
    char *unit;
    GM_TRY(open_unit(l, s, b, true, &unit));
    *out = save_tiles(l, s, *out, unit, positions, true);
    *out = save_tiles(l, s, *out, unit + first_bytes(l, s), positions, false);
    return close_unit(l, s, b, false, unit);
}
static gm_status restore_block(const cache_layout *l, const cache_slot *s, gm_buffer *b, int64_t positions,
                               const uint8_t **in) {
    char *unit;
    GM_TRY(open_unit(l, s, b, false, &unit));
    *in = restore_tiles(l, s, unit, *in, positions);
    *in = restore_tiles(l, s, unit + first_bytes(l, s), *in, positions);
    return close_unit(l, s, b, true, unit);
}

/* The two arrays of a state, to or from bytes. */
static gm_status save_state(const cache_layout *l, const cache_slot *s, gm_buffer *b, uint8_t **out) {
    char *unit;
    GM_TRY(open_unit(l, s, b, true, &unit));
    memcpy(*out, unit, (size_t)s->conv_floats * 4);
    memcpy(*out + s->conv_floats * 4, unit + first_bytes(l, s), (size_t)s->state_floats * 4);
    *out += saved_state_bytes(s);
    return close_unit(l, s, b, false, unit);
}
static gm_status restore_state(const cache_layout *l, const cache_slot *s, gm_buffer *b, const uint8_t **in) {
    char *unit;
    GM_TRY(open_unit(l, s, b, false, &unit));
    memcpy(unit, *in, (size_t)s->conv_floats * 4);
    memcpy(unit + first_bytes(l, s), *in + s->conv_floats * 4, (size_t)s->state_floats * 4);
    *in += saved_state_bytes(s);
    return close_unit(l, s, b, true, unit);
}

static gm_status save_checkpoint(const cache_layout *l, const checkpoint *from, uint8_t **out) {
    memcpy(*out, &from->position, 8);
    *out += 8;
    for (int i = 0; i < l->n_slots; i++)
        if (from->states[i])
            GM_TRY(save_state(l, &l->slots[i], from->states[i], out));
    return GM_OK;
}
static gm_status restore_checkpoint(gm_cache *c, const uint8_t **in) {
    const cache_layout *l = c->layout;
    checkpoint *to = &c->checkpoints[c->n_checkpoints];
    if (!(to->states = memory_zeroed((size_t)l->n_slots * sizeof *to->states)))
        return GM_ENOMEM;
    c->n_checkpoints++; /* from here on cache_free frees it */
    memcpy(&to->position, *in, 8);
    *in += 8;
    for (int i = 0; i < l->n_slots; i++) {
        const cache_slot *s = &l->slots[i];
        if (s->kind != CACHE_STATE)
            continue;
        gm_buffer *b = to->states[i] = buffer_new_on(s->device, (size_t)unit_bytes(l, s));
        if (!b)
            return error_code();
        if (!s->device)
            memset(b->data, 0, (size_t)unit_bytes(l, s));
        GM_TRY(restore_state(l, s, b, in));
    }
    return GM_OK;
}

gm_status cache_save(const gm_cache *c, uint8_t *out) {
    const cache_layout *l = c->layout;
    const uint8_t *start = out;
    const head h = head_of(l, c->length, c->has_states && c->many_rows, c->n_checkpoints);
    memcpy(out, &h, sizeof h);
    out += sizeof h;
    for (int i = 0; i < l->n_slots; i++, out += sizeof(saved_slot)) {
        const saved_slot slot = describe(&l->slots[i], c->slots[i].begin);
        memcpy(out, &slot, sizeof slot);
    }
    for (int i = 0; i < l->n_slots; i++) {
        const cache_slot *s = &l->slots[i];
        const slot_memory *m = &c->slots[i];
        if (s->kind == CACHE_STATE && c->length > 0) {
            GM_TRY(save_state(l, s, m->buffers[0], &out));
            continue;
        }
        for (int64_t b = m->begin; s->kind == CACHE_KV && b * GM_KV_BLOCK < c->length; b++)
            GM_TRY(save_block(l, s, m->buffers[b], positions_in(b, c->length), &out));
    }
    for (int i = 0; i < c->n_checkpoints; i++)
        GM_TRY(save_checkpoint(l, &c->checkpoints[i], &out));
    const uint64_t sum = checksum_of(start, (size_t)(out - start));
    memcpy(out, &sum, sizeof sum);
    return GM_OK;
}

static gm_status check_saved(const gm_cache *c, int64_t length, const uint8_t *bytes, size_t size) {
    const cache_layout *l = c->layout;
    head want;
    int64_t rest = (int64_t)size - (int64_t)sizeof want - 8;
    if (size > INT64_MAX || rest < (int64_t)sizeof(saved_slot) * l->n_slots)
        return gm_fail(GM_EBADFILE, "KV cache: %zu bytes are too few for %d slots", size, l->n_slots);
    memcpy(&want, bytes, sizeof want);
    const int n_checkpoints = want.n_checkpoints <= CACHE_CHECKPOINTS && c->has_states ? (int)want.n_checkpoints : 0;
    want = head_of(l, length, c->has_states && want.many_rows == 1, n_checkpoints);
    if (memcmp(bytes, &want, sizeof want) != 0)
        return gm_fail(GM_EBADFILE,
                       "KV cache: saved by another version, or of another shape, type or length than %s "
                       "of %d slots and %lld positions",
                       cache_type_name(l->kv_type), l->n_slots, (long long)length);
    if (length > (l->rotate ? INT32_MAX : l->context))
        return gm_fail(GM_EBADFILE, "KV cache: saved with %lld positions, the context holds %lld", (long long)length,
                       (long long)l->context);
    for (int i = 0; i < l->n_slots; i++) {
        const cache_slot *s = &l->slots[i];
        saved_slot saved, here;
        memcpy(&saved, bytes + sizeof want + (size_t)i * sizeof saved, sizeof saved);
        here = describe(s, saved.begin);
        if (memcmp(&saved, &here, sizeof saved) != 0)
            return gm_fail(GM_EBADFILE, "KV cache: slot %d was saved with another shape than the model's", i);
        const int64_t seen = s->kind == CACHE_KV && s->window > 0 && length >= s->window ? length + 1 - s->window : 0;
        if (saved.begin < 0 || saved.begin > seen / GM_KV_BLOCK)
            return gm_fail(GM_EBADFILE, "KV cache: slot %d was saved without positions that its window sees", i);
        int64_t begin;
        memcpy(&begin, bytes + sizeof want + (size_t)first_like(l, i) * sizeof saved + offsetof(saved_slot, begin), 8);
        if (begin != saved.begin)
            return gm_fail(GM_EBADFILE, "KV cache: slot %d was saved from another position than slots like it", i);
        rest -= (int64_t)sizeof saved;
        const int64_t need = saved_bytes(l, s, saved.begin, length);
        if (need > rest)
            return gm_fail(GM_EBADFILE, "KV cache: %zu bytes end within slot %d", size, i);
        rest -= need;
    }
    if (rest != n_checkpoints * saved_checkpoint_bytes(l))
        return gm_fail(GM_EBADFILE, "KV cache: %lld of %zu bytes belong to nothing, or to missing checkpoints",
                       (long long)rest, size);
    uint64_t sum;
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (checksum_of(bytes, size - sizeof sum) != sum)
        return gm_fail(GM_EBADFILE, "KV cache: the checksum is wrong");
    const uint8_t *at = bytes + size - sizeof sum - (size_t)rest;
    for (int64_t i = 0, before = 0, position; i < n_checkpoints; i++, before = position) {
        memcpy(&position, at + i * saved_checkpoint_bytes(l), 8);
        if (position <= before || position > length)
            return gm_fail(GM_EBADFILE,
                           "KV cache: a checkpoint at position %lld, expected one after %lld and up to "
                           "%lld",
                           (long long)position, (long long)before, (long long)length);
    }
    return GM_OK;
}

gm_status cache_restore(gm_cache *c, int64_t length, const uint8_t *bytes, size_t size) {
    const cache_layout *l = c->layout;
    GM_TRY(check_saved(c, length, bytes, size));
    const uint8_t *slots = bytes + sizeof(head), *in = slots + (size_t)l->n_slots * sizeof(saved_slot);
    const int64_t end = (length + GM_KV_BLOCK - 1) / GM_KV_BLOCK;
    for (int i = 0; i < l->n_slots && length > 0; i++) {
        slot_memory *m = &c->slots[i];
        saved_slot saved;
        memcpy(&saved, slots + (size_t)i * sizeof saved, sizeof saved);
        GM_TRY(reserve(m, l->slots[i].kind == CACHE_KV ? end : 1));
        m->begin = m->end = saved.begin;
    }
    for (int i = 0; i < l->n_slots && length > 0; i++) {
        const cache_slot *s = &l->slots[i];
        slot_memory *m = &c->slots[i];
        if (s->kind == CACHE_STATE) {
            GM_TRY(own(l, s, m, 0, false, NULL, 0));
            m->end = 1;
            GM_TRY(restore_state(l, s, m->buffers[0], &in));
            continue;
        }
        for (int64_t b = m->begin; b < end; b++) {
            GM_TRY(own_blocks(c, first_like(l, i), b, false));
            GM_TRY(restore_block(l, s, m->buffers[b], positions_in(b, length), &in));
        }
    }
    head saved;
    memcpy(&saved, bytes, sizeof saved);
    for (uint64_t i = 0; i < saved.n_checkpoints; i++)
        GM_TRY(restore_checkpoint(c, &in));
    c->many_rows = saved.many_rows;
    c->length = length;
    return GM_OK;
}
