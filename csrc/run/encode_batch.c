/* encode_batch.c - many texts to ids on the team of threads.
 *  (1) Texts are handed out in groups of some GROUP_BYTES, long ones first and alone, to whichever thread is free;
 *      where a text's result is stored depends on that, what it is does not.
 *  (2) After the first failure only texts before it are still done: the failure is always that of the first bad text.
 *      Its message is had by encoding the text again on the caller's thread.
 *  (3) Between steps nobody works on the batch, and nothing is locked. */
#include <stdlib.h>
#include "base/team.h"
#include "core/graph.h"
#include "core/queue.h"
#include "text/tokenizer.h"

#define GROUP_BYTES 16384
#define GROUP_TEXTS 1024
#define LONG_BYTES 65536
#define BYTES_PER_THREAD 32768 /* waking a thread for less costs more than it saves */

typedef struct { size_t start, end; } text_group; /* of the order */

struct gm_encode_batch {
    gm_tokenizer *tokenizer;
    const gm_text *texts, *pairs;
    size_t n;
    gm_encode_options options;
    gm_truncation truncation; /* what options point to */
    gm_padding padding;       /* done at the end, when the longest is known */
    bool pads;
    bool encodings;
    int threads;
    uint32_t *order;
    text_group *groups;
    size_t n_groups;
    _Atomic size_t next;   /* group */
    _Atomic size_t failed; /* text; SIZE_MAX for none */
    _Atomic int64_t deadline;
    encode_work **works; /* by thread */
    id_buffer *blocks;   /* by thread: what lay in works[k]->ids */
    gm_encoded *results;
    gm_encoding **made;
};

static size_t bytes_of(const gm_encode_batch *b, size_t i) {
    return b->texts[i].length + (b->pairs ? b->pairs[i].length : 0);
}

typedef struct {
    size_t bytes;
    uint32_t text;
} long_text;

static int longest_first(const void *a, const void *b) {
    const long_text *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->text < y->text ? -1 : 1;
}

/* Long texts first, then the others as they come. */
static gm_status put_in_order(gm_encode_batch *b, size_t *total) {
    size_t n_long = 0, at = 0;
    for (size_t i = 0; i < b->n; i++)
        n_long += bytes_of(b, i) >= LONG_BYTES;
    long_text *longs = memory_array(n_long + 1, sizeof *longs);
    if (!longs)
        return GM_ENOMEM;
    for (size_t i = 0; i < b->n; i++)
        if (bytes_of(b, i) >= LONG_BYTES)
            longs[at++] = (long_text){bytes_of(b, i), (uint32_t)i};
    qsort(longs, n_long, sizeof *longs, longest_first);
    for (size_t k = 0; k < n_long; k++)
        b->order[k] = longs[k].text;
    memory_free(longs);
    for (size_t i = 0; i < b->n; i++)
        if (bytes_of(b, i) < LONG_BYTES)
            b->order[at++] = (uint32_t)i;
    size_t group = 0, first = 0;
    for (size_t k = 0; k < b->n; k++) {
        group += bytes_of(b, b->order[k]);
        *total += bytes_of(b, b->order[k]);
        if (group < GROUP_BYTES && k + 1 < b->n && k + 1 - first < GROUP_TEXTS)
            continue;
        b->groups[b->n_groups++] = (text_group){first, k + 1};
        first = k + 1;
        group = 0;
    }
    return GM_OK;
}

static void take_options(gm_encode_batch *b, const gm_encode_options *o) {
    b->options = *o;
    b->options.padding = NULL;
    b->pads = o->padding != NULL;
    if (b->pads)
        b->padding = *o->padding;
    if (o->truncation) {
        b->truncation = *o->truncation;
        b->options.truncation = &b->truncation;
    }
}

/* What the threads write to, and a tokenizer's workspace for each of them. */
static gm_status reserve(gm_encode_batch *b) {
    b->works = memory_zeroed((size_t)b->threads * sizeof *b->works);
    b->blocks = memory_zeroed((size_t)b->threads * sizeof *b->blocks);
    b->results = b->encodings ? NULL : memory_array(b->n + 1, sizeof *b->results);
    b->made = b->encodings ? memory_zeroed((b->n + 1) * sizeof *b->made) : NULL;
    if (!b->works || !b->blocks || (b->encodings ? !b->made : !b->results))
        return GM_ENOMEM;
    for (int k = 0; k < b->threads; k++)
        if (!(b->works[k] = work_take(b->tokenizer)))
            return GM_ENOMEM;
    return GM_OK;
}

gm_status gm_encode_begin(gm_tokenizer *t, const gm_encode_request *r, const gm_encode_options *o,
                          gm_encode_batch **out) {
    *out = NULL;
    if (r->n > UINT32_MAX / 2)
        return gm_fail(GM_EOVERFLOW, "encode_batch: got %zu texts, expected at most %u at once", r->n, UINT32_MAX / 2);
    gm_encode_batch *b = memory_zeroed(sizeof *b);
    if (!b)
        return GM_ENOMEM;
    b->tokenizer = gm_tokenizer_retain(t);
    b->texts = r->texts;
    b->pairs = r->pairs;
    b->n = r->n;
    b->encodings = r->encodings;
    take_options(b, o);
    atomic_init(&b->next, 0);
    atomic_init(&b->failed, SIZE_MAX);
    atomic_init(&b->deadline, 0);
    b->order = memory_array(b->n + 1, sizeof *b->order);
    b->groups = memory_array(b->n + 1, sizeof *b->groups);
    size_t total = 0;
    gm_status status = !b->order || !b->groups ? GM_ENOMEM : put_in_order(b, &total);
    const int threads = r->threads > 0 ? r->threads : engine_threads();
    const size_t useful = total / BYTES_PER_THREAD + 1;
    b->threads = (size_t)threads > useful ? (int)useful : threads;
    if (status == GM_OK)
        status = reserve(b);
    if (status != GM_OK) {
        gm_encode_free(b);
        return status;
    }
    *out = b;
    return GM_OK;
}

void gm_encode_free(gm_encode_batch *b) {
    if (!b)
        return;
    for (int k = 0; k < b->threads && b->works; k++)
        work_give_back(b->tokenizer, b->works[k]);
    for (int k = 0; k < b->threads && b->blocks; k++)
        memory_free(b->blocks[k].data);
    for (size_t i = 0; i < b->n && b->made; i++)
        gm_encoding_free(b->made[i]);
    memory_free(b->works);
    memory_free(b->blocks);
    memory_free(b->results);
    memory_free(b->made);
    memory_free(b->order);
    memory_free(b->groups);
    gm_tokenizer_release(b->tokenizer);
    memory_free(b);
}

static gm_status encode_one(gm_encode_batch *b, int thread, size_t i) {
    encode_work *work = b->works[thread];
    const gm_text *pair = b->pairs ? &b->pairs[i] : NULL;
    if (b->encodings)
        return tokenizer_encoding(b->tokenizer, work, &b->texts[i], pair, &b->options, &b->made[i]);
    size_t start = work->ids.size;
    GM_TRY(tokenizer_encode(b->tokenizer, work, &b->texts[i], pair, &b->options));
    b->results[i] = (gm_encoded){(size_t)thread, start, work->ids.size - start, work->truncated};
    return GM_OK;
}

/* Text i has failed, unless an earlier one has. */
static void fail_at(gm_encode_batch *b, size_t i) {
    size_t before = atomic_load(&b->failed);
    while (i < before && !atomic_compare_exchange_weak(&b->failed, &before, i))
        ;
}

static void work_through(void *context, int thread, int n_threads) {
    gm_encode_batch *b = context;
    int64_t deadline = atomic_load(&b->deadline);
    (void)n_threads;
    do {
        size_t g = atomic_fetch_add(&b->next, 1);
        if (g >= b->n_groups)
            return;
        for (size_t k = b->groups[g].start; k < b->groups[g].end; k++)
            if (b->order[k] < atomic_load(&b->failed) && encode_one(b, thread, b->order[k]) != GM_OK)
                fail_at(b, b->order[k]);
    } while (deadline == 0 || clock_ns() < deadline);
}

/* The rows of ids, each filled up to the length, in one block. */
static gm_status pad_rows(gm_encode_batch *b, size_t length) {
    size_t total = 0;
    for (size_t i = 0; i < b->n; i++)
        total += b->results[i].count > length ? b->results[i].count : length;
    int32_t *out = memory_array(total + 1, sizeof *out);
    if (!out)
        return GM_ENOMEM;
    size_t at = 0;
    for (size_t i = 0; i < b->n; i++) {
        gm_encoded *r = &b->results[i];
        size_t count = r->count > length ? r->count : length, more = count - r->count;
        size_t first = b->padding.left ? more : 0;
        for (size_t k = 0; k < more; k++)
            out[at + (first ? k : r->count + k)] = b->padding.id;
        if (r->count > 0)
            memcpy(out + at + first, b->blocks[r->block].data + r->start, r->count * sizeof *out);
        *r = (gm_encoded){0, at, count, r->truncated};
        at += count;
    }
    for (int k = 0; k < b->threads; k++) {
        memory_free(b->blocks[k].data);
        b->blocks[k] = (id_buffer){0};
    }
    b->blocks[0] = (id_buffer){out, at, total + 1};
    return GM_OK;
}

/* All texts are there: padding to the longest. */
static gm_status pad_all(gm_encode_batch *b) {
    size_t longest = 0;
    if (!b->pads)
        return GM_OK;
    for (size_t i = 0; i < b->n; i++) {
        size_t size = b->encodings ? b->made[i]->size : b->results[i].count;
        longest = size > longest ? size : longest;
    }
    size_t length = padded_length(&b->padding, longest);
    for (size_t i = 0; b->encodings && i < b->n; i++)
        GM_TRY(tokenizer_pad(b->tokenizer, b->made[i], length, &b->padding));
    return b->encodings ? GM_OK : pad_rows(b, length);
}

static gm_status finish(gm_encode_batch *b) {
    size_t failed = atomic_load(&b->failed);
    if (failed < b->n) {
        gm_error cause;
        if (encode_one(b, 0, failed) == GM_OK)
            return gm_fail(GM_ENOMEM, "text %zu: not enough memory", failed); /* there was none then */
        gm_status status = gm_take_error(&cause);
        return gm_fail(status, "text %zu: %s", failed, cause.text);
    }
    for (int k = 0; k < b->threads; k++) {
        b->blocks[k] = b->works[k]->ids;
        b->works[k]->ids = (id_buffer){0};
    }
    return pad_all(b);
}

gm_status gm_encode_step(gm_encode_batch *b, int slice_ms) {
    atomic_store(&b->deadline, slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0);
    if (b->threads > 1) {
        GM_TRY(run_lock(slice_ms > 0 ? slice_ms : -1));
        int n = team_start(b->threads, work_through, b);
        work_through(b, 0, n);
        team_join();
        bool lost = team_lost();
        run_unlock();
        if (lost)
            return gm_fail(GM_EVALUE, "encode_batch: the process was forked while its threads were at work");
    } else {
        work_through(b, 0, 1);
    }
    return atomic_load(&b->next) < b->n_groups ? GM_AGAIN : finish(b);
}

size_t gm_encode_blocks(const gm_encode_batch *b) { return (size_t)b->threads; }

int32_t *gm_encode_take(gm_encode_batch *b, size_t block, size_t *count) {
    int32_t *ids = b->blocks[block].data;
    *count = b->blocks[block].size;
    b->blocks[block].data = NULL;
    return ids;
}

gm_encoded gm_encode_result(const gm_encode_batch *b, size_t i) { return b->results[i]; }

const int32_t *gm_encode_ids(const gm_encode_batch *b, size_t i) {
    const int32_t *block = b->blocks[b->results[i].block].data;
    return block ? block + b->results[i].start : NULL; /* NULL: no text of the block has any */
}

gm_encoding *gm_encode_encoding(gm_encode_batch *b, size_t i) {
    gm_encoding *e = b->made[i];
    b->made[i] = NULL;
    return e;
}
