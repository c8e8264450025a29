/* cache.c - see cache.h. */
#include "nn/cache.h"
#include <string.h>
#include "base/memory.h"

#define CHECKPOINTS 4                /* states kept to fall back to, besides the zeros at the start */
#define CHECKPOINT_EVERY 256         /* positions, at least, between two of them */
#define BEHIND GM_KV_BLOCK           /* keys kept behind a window, so that a few positions can be trimmed */

/* The memory of a slot: one buffer for each block of keys and values, or a single one for both arrays of a state. */
typedef struct {
    gm_buffer **buffers;             /* NULL: given back, or not there yet */
    void **first, **second;          /* keys and values of each block; the arrays of a state */
    int64_t room;                    /* of these three */
    int64_t begin, end;              /* blocks that are there */
} slot_memory;

typedef struct {
    int64_t position;                /* states before this position */
    gm_buffer **states;              /* of each slot; NULL for keys and values */
} checkpoint;

struct gm_cache {
    const cache_layout *layout;
    slot_memory *slots;
    int64_t length;                  /* where the last pass went to */
    bool many_rows;                  /* that pass had several */
    bool has_states;
    checkpoint checkpoints[CHECKPOINTS];   /* by position */
    int n_checkpoints;
};

/* ---- sizes ---- */
static int64_t entry_bytes(int kv_type, int64_t values) { return values * (int64_t)gm_dtype_size((gm_dtype)kv_type); }

/* Bytes of a slot's first array (of a block), whole cache lines, and of both. */
static int64_t first_bytes(const cache_layout *l, const cache_slot *s) {
    return s->kind == CACHE_KV ? s->n_kv_heads * GM_KV_BLOCK * entry_bytes(l->kv_type, s->head_dim)
                               : (s->conv_floats * 4 + 63) / 64 * 64;
}
static int64_t unit_bytes(const cache_layout *l, const cache_slot *s) {
    return s->kind == CACHE_KV ? 2 * first_bytes(l, s) : first_bytes(l, s) + s->state_floats * 4;
}

int64_t cache_position_bytes(const cache_layout *l) {
    int64_t bytes = 0;
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].kind == CACHE_KV)
            bytes += 2 * l->slots[i].n_kv_heads * entry_bytes(l->kv_type, l->slots[i].head_dim);
    return bytes;
}

/* ---- the memory of slots ---- */
static gm_status grow(slot_memory *m, int64_t n) {
    if (n <= m->room)
        return GM_OK;
    int64_t room = n > 2 * m->room ? n : 2 * m->room;
    void **first, **second;
    gm_buffer **buffers = memory_resize(m->buffers, (size_t)room * sizeof *buffers);
    if (!buffers)
        return GM_ENOMEM;
    m->buffers = buffers;
    if (!(first = memory_resize(m->first, (size_t)room * sizeof *first)))
        return GM_ENOMEM;
    m->first = first;
    if (!(second = memory_resize(m->second, (size_t)room * sizeof *second)))
        return GM_ENOMEM;
    m->second = second;
    for (int64_t i = m->room; i < room; i++) {
        buffers[i] = NULL;
        first[i] = second[i] = NULL;
    }
    m->room = room;
    return GM_OK;
}

/* Takes the reference; NULL gives back what was there. */
static void place(slot_memory *m, int64_t i, gm_buffer *b, int64_t offset) {
    buffer_release(m->buffers[i]);
    m->buffers[i] = b;
    m->first[i] = b ? b->data : NULL;
    m->second[i] = b ? (char *)b->data + offset : NULL;
}

/* A buffer of the slot's own at place i, which it is about to write; keep: with the contents of what is there. */
static gm_status own(const cache_layout *l, const cache_slot *s, slot_memory *m, int64_t i, bool keep) {
    gm_buffer *old = m->buffers[i];
    if (old && atomic_load(&old->refs) == 1)
        return GM_OK;
    const int64_t bytes = unit_bytes(l, s);
    gm_buffer *b = buffer_new((size_t)bytes);
    if (!b)
        return error_code();
    if (old && keep)
        memcpy(b->data, old->data, (size_t)bytes);
    else if (s->kind == CACHE_STATE)
        memset(b->data, 0, (size_t)bytes);
    place(m, i, b, first_bytes(l, s));
    return GM_OK;
}

static gm_status reach_blocks(const cache_layout *l, const cache_slot *s, slot_memory *m, int64_t from, int64_t to) {
    const int64_t end = (to + GM_KV_BLOCK - 1) / GM_KV_BLOCK;
    const int64_t unseen = s->window > 0 ? from + 1 - s->window - BEHIND : 0;
    GM_TRY(grow(m, end));
    for (; m->begin < m->end && (m->begin + 1) * GM_KV_BLOCK <= unseen; m->begin++)
        place(m, m->begin, NULL, 0);
    for (int64_t b = from / GM_KV_BLOCK; b < end; b++) {
        GM_TRY(own(l, s, m, b, b * GM_KV_BLOCK < from));
        m->end = b >= m->end ? b + 1 : m->end;
    }
    return GM_OK;
}

static void clear_slot(slot_memory *m) {
    for (int64_t i = m->begin; i < m->end; i++)
        place(m, i, NULL, 0);
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

/* The states as they are, before position `position`: shared, so that whoever writes next copies. */
static gm_status keep_checkpoint(gm_cache *c, int64_t position) {
    gm_buffer **states = memory_zeroed((size_t)c->layout->n_slots * sizeof *states);
    if (!states)
        return GM_ENOMEM;
    if (c->n_checkpoints == CHECKPOINTS)
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
        if (grow(to, from->end) != GM_OK)
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

gm_status cache_reach(gm_cache *c, int64_t from, int64_t to) {
    const cache_layout *l = c->layout;
    const int64_t most = l->rotate ? INT32_MAX : l->context;
    if (to > most)
        return gm_fail(GM_EVALUE, "KV cache: %lld positions, the context holds %lld", (long long)to, (long long)most);
    if (from > c->length || (from < c->length && c->has_states))
        return gm_fail(GM_ESTATE, "KV cache: a pass from position %lld, the sequence has %lld", (long long)from,
                       (long long)c->length);
    if (wants_checkpoint(c, from))
        GM_TRY(keep_checkpoint(c, from));
    for (int i = 0; i < l->n_slots; i++) {
        const cache_slot *s = &l->slots[i];
        slot_memory *m = &c->slots[i];
        if (s->kind == CACHE_KV) {
            GM_TRY(reach_blocks(l, s, m, from, to));
        } else {
            GM_TRY(grow(m, 1));
            GM_TRY(own(l, s, m, 0, true));
            m->end = 1;
        }
    }
    c->many_rows = to - from > 1;
    c->length = to;
    return GM_OK;
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
        if (s->kind == CACHE_KV && c->slots[i].begin * GM_KV_BLOCK > (length + 1 > s->window ? length + 1 - s->window : 0))
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
            place(m, 0, buffer_retain(c->checkpoints[c->n_checkpoints - 1].states[i]), first_bytes(c->layout, s));
        } else {
            for (; m->end * GM_KV_BLOCK >= length + GM_KV_BLOCK; m->end--)
                place(m, m->end - 1, NULL, 0);
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

void cache_addresses(const gm_cache *c, int slot, void **first, void **second) {
    const slot_memory *m = &c->slots[slot];
    const bool blocks = c->layout->slots[slot].kind == CACHE_KV;
    *first = blocks ? (void *)m->first : m->first[0];
    *second = blocks ? (void *)m->second : m->second[0];
}
