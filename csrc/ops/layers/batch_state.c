/* batch_state.c - see batch_state.h. */
#include "ops/layers/batch_state.h"
#include <string.h>
#include "base/memory.h"
#include "ops/ops.h"

static gm_status measure(const int32_t *counts, int n_sequences, bool prompt, gm_batch_shape *shape) {
    int64_t rows = 0, tiles = 0;
    for (int i = 0; i < n_sequences; i++) {
        if (counts[i] < 1)
            return gm_fail(GM_EVALUE, "batch: sequence %d has %d rows, expected 1 or more", i, counts[i]);
        rows += counts[i];
        tiles += batch_count_tiles(counts[i]);
    }
    if (n_sequences < 1 || rows > INT32_MAX)
        return gm_fail(GM_EVALUE, "batch: %lld rows of %d sequences, expected 1 to %d", (long long)rows, n_sequences,
                       INT32_MAX);
    shape->rows = (int32_t)rows;
    shape->tiles = prompt || rows > n_sequences ? (int32_t)tiles : 0;
    return GM_OK;
}

/* What stays the same from run to run. */
static void fill(const gm_batch_shape *s, const gm_batch_view *v, const int32_t *counts) {
    gm_query_tile *tile = v->tiles;
    int32_t row = 0;
    for (int i = 0; i < s->sequences; i++) {
        v->first[i] = row;
        if (s->tiles)
            tile = batch_put_tiles(tile, row, counts[i]);
        for (int32_t end = row + counts[i]; row < end; row++)
            v->sequence[row] = i;
        v->last[i] = row - 1;
    }
    v->first[s->sequences] = row;
}

/* n numbers of the block as an array. */
static gm_array *part(const gm_batch_state *b, const int32_t *numbers, int64_t n) {
    const gm_spec spec = {.dtype = GM_INT32, .ndim = 1, .shape = {n}};
    return array_data(NULL, &spec, b->block->buf, (const char *)numbers - (const char *)b->view.caches);
}

static gm_status make_parts(gm_batch_state *b) {
    b->tokens = part(b, b->view.tokens, b->shape.rows);
    b->positions = part(b, b->view.positions, b->shape.rows);
    b->last = part(b, b->view.last, b->shape.sequences);
    return b->tokens && b->positions && b->last ? GM_OK : error_code();
}
static void release_parts(const gm_batch_state *b) {
    gm_release(b->tokens);
    gm_release(b->positions);
    gm_release(b->last);
}

gm_status batch_state_new(const int32_t *counts, int n_sequences, bool prompt, int n_slots, int kv_type,
                          gm_batch_state **out) {
    gm_batch_shape shape = {.sequences = n_sequences, .slots = n_slots};
    *out = NULL;
    GM_TRY(measure(counts, n_sequences, prompt, &shape));
    gm_batch_state *b = memory_zeroed(sizeof *b);
    const int64_t bytes = batch_bytes(&shape);
    if (!b || !(b->block = array_new(NULL, GM_UINT8, 1, &bytes))) {
        memory_free(b);
        return error_code();
    }
    memset(array_ptr(b->block), 0, (size_t)bytes);
    b->shape = shape;
    b->kv_type = kv_type;
    b->view = batch_view(array_ptr(b->block), &shape);
    fill(&shape, &b->view, counts);
    if (make_parts(b) != GM_OK) {
        batch_state_free(b);
        return error_code();
    }
    *out = b;
    return GM_OK;
}

void batch_state_free(gm_batch_state *b) {
    if (!b)
        return;
    release_parts(b);
    gm_release(b->block);
    if (b->host)
        device_unpin(b->device, b->host);
    if (b->tables)
        device_unpin(b->device, b->tables);
    memory_free(b->paged);
    buffer_release(b->sent);
    memory_free(b);
}

/* Memory of the host for a batch on a device, besides its tables. */
static gm_status reserve_host(gm_batch_state *b) {
    const size_t bytes = (size_t)b->block->size;
    b->paged = memory_zeroed((size_t)b->shape.slots * sizeof *b->paged + 1);
    b->host = b->paged ? device_pinned(b->device, bytes + 2 * (size_t)b->shape.rows * sizeof *b->best) : NULL;
    if (!b->host)
        return error_code();
    memcpy(b->host, b->view.caches, bytes);
    b->best = (gm_row_best *)((char *)b->host + bytes);
    return GM_OK;
}

gm_status batch_state_place(gm_batch_state *b, int number) {
    if (!number)
        return GM_OK;
    if (!(b->device = device_get(number)))
        return error_code();
    GM_TRY(reserve_host(b));
    gm_buffer *there = buffer_new_on(number, (size_t)b->block->size);
    gm_array *twin = there ? array_moved(b->block, there, 0) : NULL;
    buffer_release(there);
    if (!twin)
        return error_code();
    release_parts(b);
    gm_release(b->block);
    b->block = twin;
    b->view = batch_view(b->host, &b->shape);
    return make_parts(b);
}

void batch_state_set_rows(gm_batch_state *b, int sequence, const int32_t *tokens, int64_t position) {
    const int32_t first = b->view.first[sequence], n = batch_state_count(b, sequence);
    for (int32_t i = 0; i < n; i++) {
        b->view.tokens[first + i] = tokens[i];
        b->view.positions[first + i] = (int32_t)(position + i);
    }
    const int32_t blocks = (int32_t)((position + n + GM_KV_BLOCK - 1) / GM_KV_BLOCK);
    if (sequence == 0)
        b->n_tables = 0;
    if (sequence == 0 || blocks > *b->view.n_blocks)
        *b->view.n_blocks = blocks;
}

void batch_state_set_cache(gm_batch_state *b, int sequence, int slot, const gm_cache_address arrays[2]) {
    for (int i = 0; i < 2; i++)
        batch_caches(&b->view, &b->shape, slot, i)[sequence] = arrays[i];
}

/* Capacity for more tables, in pinned memory: copies from other memory would wait for what is under way. */
static gm_status reserve_tables(gm_batch_state *b, size_t more) {
    const size_t wanted = b->n_tables + more;
    if (wanted <= b->tables_capacity)
        return GM_OK;
    void **tables = device_pinned(b->device, 2 * wanted * sizeof *tables);
    if (!tables)
        return error_code();
    if (b->n_tables)
        memcpy(tables, b->tables, b->n_tables * sizeof *tables);
    if (b->tables)
        device_unpin(b->device, b->tables);
    b->tables = tables;
    b->tables_capacity = 2 * wanted;
    return GM_OK;
}

gm_status batch_state_set_blocks(gm_batch_state *b, int sequence, int slot, const gm_cache_address arrays[2],
                                 int64_t blocks) {
    gm_cache_address at[2] = {arrays[0], arrays[1]};
    b->paged[slot] = blocks > 0;
    if (blocks > 0)
        GM_TRY(reserve_tables(b, 2 * (size_t)blocks));
    for (int i = 0; i < 2 && blocks > 0; i++) {
        memcpy(b->tables + b->n_tables, arrays[i].blocks, (size_t)blocks * sizeof *b->tables);
        at[i].blocks = (void *const *)(b->n_tables * sizeof *b->tables);
        b->n_tables += (size_t)blocks;
    }
    batch_state_set_cache(b, sequence, slot, at);
    return GM_OK;
}

/* Places in the tables become addresses. */
static void point_to_tables(gm_batch_state *b) {
    for (int slot = 0; slot < b->shape.slots; slot++)
        for (int i = 0; i < 2 * b->shape.sequences && b->paged[slot]; i++) {
            gm_cache_address *at = &batch_caches(&b->view, &b->shape, slot, 0)[i];
            at->blocks = (void *const *)((char *)b->sent->data + (size_t)at->blocks);
        }
}

/* Before a failure is told. */
static void await_copies(int number) {
    gm_error cause, ignored;
    gm_take_error(&cause);
    if (device_await(number) != GM_OK)
        gm_take_error(&ignored);
    error_restore(cause.code, cause.os_errno, cause.text);
}

gm_status batch_state_send(gm_batch_state *b) {
    const size_t bytes = b->n_tables * sizeof *b->tables;
    if (!b->device)
        return GM_OK;
    if (bytes && (!b->sent || b->sent->bytes < bytes)) {
        buffer_release(b->sent);
        if (!(b->sent = buffer_new_on(b->device->number, 2 * bytes)))
            return error_code();
    }
    point_to_tables(b);
    GM_TRY(device_copy(b->device->number, array_ptr(b->block), b->view.caches, (size_t)batch_bytes(&b->shape)));
    if (!bytes)
        return GM_OK;
    const gm_status status = device_copy(b->device->number, b->sent->data, b->tables, bytes);
    if (status != GM_OK)
        await_copies(b->device->number);
    return status;
}

gm_status batch_state_check(const char *op, const gm_array *block, const gm_batch_shape *shape, int64_t rows,
                            int slot) {
    if (block->dtype != GM_UINT8 || block->ndim != 1 || block->size != batch_bytes(shape)) {
        char text[128];
        array_text(block, text);
        return gm_fail(GM_ESHAPE, "%s: the batch state is %s, expected uint8(%lld)", op, text,
                       (long long)batch_bytes(shape));
    }
    if (rows != shape->rows)
        return gm_fail(GM_ESHAPE, "%s: the batch has %d rows, x has %lld", op, shape->rows, (long long)rows);
    if (!within(slot, shape->slots))
        return gm_fail(GM_ESHAPE, "%s: slot %d of caches of %d slots", op, slot, shape->slots);
    return GM_OK;
}
