/* test_batch_state.c - the state of a forward pass: what its block says, what is refused, and that ops record addresses
 * of its parts without reading them. */
#include <stdlib.h>
#include "base/memory.h"
#include "check.h"
#include "core/graph.h"
#include "ops/layers/batch_state.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

/* ---- the block ---- */
static void layout(void) {
    const int32_t counts[3] = {3, 1, 40}, tokens[40] = {7, 8, 9};
    gm_batch_state *b;
    CHECK(batch_state_new(counts, 3, false, 2, GM_FLOAT16, &b) == GM_OK);
    const gm_batch_view *v = &b->view;
    CHECK(b->shape.rows == 44 && b->shape.sequences == 3 && b->shape.slots == 2 && b->shape.tiles == 5);
    CHECK(b->kv_type == GM_FLOAT16 && b->max_blocks == 0 && !batch_state_has_single_rows(b));
    CHECK((char *)(v->tiles + b->shape.tiles) == (char *)array_ptr(b->block) + gm_array_size(b->block));
    const int32_t first[4] = {0, 3, 4, 44}, last[3] = {2, 3, 43};
    CHECK(memcmp(v->first, first, sizeof first) == 0 && memcmp(v->last, last, sizeof last) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(batch_state_count(b, i) == counts[i]);
    for (int32_t r = 0; r < 44; r++)
        CHECK(v->sequence[r] == (r >= 3) + (r >= 4));
    const gm_query_tile tiles[5] = {{0, 3}, {3, 1}, {36, 8}, {20, 16}, {4, 16}};
    CHECK(memcmp(v->tiles, tiles, sizeof tiles) == 0);
    for (int i = 0; i < 3; i++)
        batch_state_set_rows(b, i, tokens, i == 0 ? 510 : 5);
    CHECK(*v->n_blocks == 3 && v->positions[0] == 510 && v->positions[2] == 512 && v->positions[43] == 44);
    CHECK(array_ptr(b->tokens) == v->tokens && ((int32_t *)array_ptr(b->tokens))[4] == 7);
    CHECK(array_ptr(b->positions) == v->positions && array_ptr(b->last) == v->last);
    CHECK(b->tokens->size == 44 && b->positions->size == 44 && b->last->size == 3);
    for (int i = 0; i < 3; i++) /* the next run begins anew */
        batch_state_set_rows(b, i, tokens, 0);
    CHECK(*v->n_blocks == 1);
    void *blocks[1] = {NULL};
    batch_state_set_cache(b, 2, 1, (gm_cache_address[2]){{.blocks = blocks}, {.state = (float *)blocks}});
    CHECK(batch_caches(v, &b->shape, 1, 0)[2].blocks == blocks);
    CHECK(batch_caches(v, &b->shape, 1, 1)[2].state == (float *)blocks);
    for (int i = 0; i < 2 * 2 * 3; i++)
        CHECK((v->caches[i].state != NULL) == (i == (1 * 2 + 0) * 3 + 2 || i == (1 * 2 + 1) * 3 + 2));
    batch_state_free(b);
    CHECK(batch_state_new((int32_t[]){1, 1}, 2, false, 0, GM_FLOAT32, &b) == GM_OK);
    CHECK(b->shape.tiles == 0 && batch_state_has_single_rows(b));
    batch_state_free(b);
    batch_state_free(NULL);
}

static void refusals(void) {
    gm_batch_state *b;
    CHECK_ERROR(batch_state_new((int32_t[]){1, 0}, 2, false, 1, GM_FLOAT32, &b), GM_EVALUE, "sequence 1 has 0 rows");
    CHECK_ERROR(batch_state_new((int32_t[]){1}, 0, false, 1, GM_FLOAT32, &b), GM_EVALUE, "0 rows of 0 sequences");
    CHECK_ERROR(batch_state_new((int32_t[]){INT32_MAX, INT32_MAX}, 2, false, 1, GM_FLOAT32, &b), GM_EVALUE,
                "2 sequences");
    CHECK(!b);
}

/* ---- ops over it ---- */
enum { HEADS = 2, DIM = 16, HALF = 8, CHANNELS = 5, TAPS = 3, SEQUENCES = 2, MOST = 20 };
/* Slot 0: keys and values, slot 1: a convolution's rows, slot 2: the state of a delta rule. */
typedef struct {
    float *keys[SEQUENCES], *values[SEQUENCES];
    float rows[SEQUENCES][(TAPS - 1) * CHANNELS], state[SEQUENCES][HEADS * DIM * DIM];
    void *tables[SEQUENCES][2][1];
} caches;

static bool caches_new(caches *c) {
    memset(c, 0, sizeof *c);
    for (int s = 0; s < SEQUENCES; s++) {
        c->keys[s] = calloc(HEADS * GM_KV_BLOCK * DIM, sizeof(float));
        c->values[s] = calloc(HEADS * GM_KV_BLOCK * DIM, sizeof(float));
        if (!c->keys[s] || !c->values[s])
            return false;
        c->tables[s][0][0] = c->keys[s];
        c->tables[s][1][0] = c->values[s];
    }
    return true;
}
static void caches_free(caches *c) {
    for (int s = 0; s < SEQUENCES; s++) {
        free(c->keys[s]);
        free(c->values[s]);
    }
}
static void set(gm_batch_state *b, caches *c, int64_t position) {
    const int32_t tokens[MOST] = {0};
    for (int s = 0; s < SEQUENCES; s++) {
        batch_state_set_rows(b, s, tokens, position);
        batch_state_set_cache(b, s, 0, (gm_cache_address[2]){{.blocks = c->tables[s][0]}, {.blocks = c->tables[s][1]}});
        batch_state_set_cache(b, s, 1, (gm_cache_address[2]){{.state = c->rows[s]}, {.state = NULL}});
        batch_state_set_cache(b, s, 2, (gm_cache_address[2]){{.state = NULL}, {.state = c->state[s]}});
    }
}

static gm_array *noise(gm_scope *s, int64_t n, int64_t width) {
    gm_array *a = array_new(s, GM_FLOAT32, 2, (int64_t[]){n, width});
    for (int64_t i = 0; a && i < n * width; i++)
        ((float *)array_ptr(a))[i] = (float)(i * 7919 % 101) / 50 - 1;
    return a;
}
/* out[0 .. 3): attention, a convolution and a delta rule over the rows of b; not evaluated. */
static void build(gm_scope *s, const gm_batch_state *b, gm_array **out) {
    const int64_t n = b->shape.rows;
    const gm_attention_spec spec = {.n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = DIM, .scale = 0.25f};
    gm_array *x = noise(s, n, HEADS * DIM), *gates = noise(s, n, HEADS), *conv = noise(s, n, CHANNELS);
    gm_array *angles = gm_reshape(s, noise(s, n, 2 * HALF), 3, (int64_t[]){n, 2, HALF});
    out[0] = gm_cached_attention(s, &(gm_attention_inputs){x, x, x, angles, GM_NONE, GM_NONE, GM_NONE}, b, &spec);
    out[1] = gm_cached_conv(s, conv, noise(s, CHANNELS, TAPS), b, 1);
    out[2] = gm_cached_gated_delta(s, &(gm_delta_inputs){x, x, x, gates, gates}, b,
                                   &(gm_delta_spec){.slot = 2, .n_key_heads = HEADS, .n_value_heads = HEADS});
}

static bool run(gm_plan *plan) {
    gm_status status;
    queue_start(plan_queue(plan), 2);
    while ((status = queue_step(plan_queue(plan), 0)) == GM_AGAIN)
        continue;
    queue_finish(plan_queue(plan));
    return status == GM_OK;
}

/* A plan that was recorded while the block could not be read gives the bits of an evaluation with the block filled
 * before, also when it runs again from another position. */
static void recorded_unseen(const int32_t *counts) {
    caches seen, unseen;
    gm_batch_state *b;
    gm_array *out[3], *want[3];
    gm_plan *plan = NULL;
    CHECK(caches_new(&seen) && caches_new(&unseen));
    CHECK(batch_state_new(counts, SEQUENCES, false, 3, GM_FLOAT32, &b) == GM_OK);
    b->max_blocks = 1;
    gm_scope *s = gm_scope_open();
    build(s, b, out);
    CHECK(out[0] && out[1] && out[2]);
    const size_t bytes = (size_t)gm_array_size(b->block);
    uint8_t *kept = malloc(bytes), *block = array_ptr(b->block);
    memcpy(kept, block, bytes);
    memset(block, 0xff, bytes);
    ASAN_POISON_MEMORY_REGION(block, bytes);
    CHECK(run_lock(-1) == GM_OK && plan_capture(out, 3, &plan) == GM_OK);
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
    memcpy(block, kept, bytes);
    free(kept);
    for (int64_t position = 0; plan && position <= counts[0]; position += counts[0]) {
        set(b, &unseen, position);
        CHECK(run(plan));
        run_unlock();
        set(b, &seen, position);
        build(s, b, want);
        CHECK(gm_eval(want, 3) == GM_OK);
        for (int i = 0; i < 3; i++)
            CHECK(memcmp(array_ptr(out[i]), array_ptr(want[i]), (size_t)gm_array_size(want[i]) * sizeof(float)) == 0);
        CHECK(run_lock(-1) == GM_OK);
    }
    CHECK(memcmp(seen.state, unseen.state, sizeof seen.state) == 0 && seen.state[1][0] != 0);
    plan_free(plan);
    run_unlock();
    gm_scope_close(s);
    batch_state_free(b);
    caches_free(&seen);
    caches_free(&unseen);
}

/* A batch whose rows or slots are others than the operands' is refused by all three. */
static void misfits(void) {
    gm_batch_state *b;
    const gm_attention_spec spec = {.slot = 3, .n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = DIM, .scale = 1};
    gm_scope *s = gm_scope_open();
    CHECK(batch_state_new((int32_t[]){2}, 1, false, 3, GM_FLOAT32, &b) == GM_OK);
    gm_array *x = noise(s, 3, HEADS * DIM), *two = noise(s, 2, HEADS * DIM);
    gm_array *angles = gm_reshape(s, noise(s, 3, 2 * HALF), 3, (int64_t[]){3, 2, HALF});
    gm_array *fit = gm_reshape(s, noise(s, 2, 2 * HALF), 3, (int64_t[]){2, 2, HALF});
    CHECK(!gm_cached_attention(s, &(gm_attention_inputs){x, x, x, angles, GM_NONE, GM_NONE, GM_NONE}, b, &spec));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "cached_attention: the batch has 2 rows, x has 3");
    CHECK(!gm_cached_attention(s, &(gm_attention_inputs){two, two, two, fit, GM_NONE, GM_NONE, GM_NONE}, b, &spec));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "slot 3 of caches of 3 slots");
    CHECK(!gm_cached_attention(s, &(gm_attention_inputs){two, two, two, angles, GM_NONE, GM_NONE, GM_NONE}, b,
                               &(gm_attention_spec){.n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = DIM}));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "angles are float32(3,2,8), expected float32(2,2,half)");
    CHECK(!gm_cached_attention(s, &(gm_attention_inputs){NULL, two, two, fit, GM_NONE, GM_NONE, GM_NONE}, b, &spec));
    gm_scope_close(s);
    batch_state_free(b);
}

static void failures(void) {
    gm_error e;
    gm_batch_state *b;
    const size_t before = gm_active_memory();
    gm_status status = GM_ENOMEM;
    long n = 1;
    for (; status != GM_OK && n < 100; n++) {
        memory_fail_at(n);
        status = batch_state_new((int32_t[]){3, 17}, 2, false, 3, GM_FLOAT32, &b);
        memory_fail_at(0);
        gm_take_error(&e);
        CHECK((status == GM_OK && b) || (status == GM_ENOMEM && e.code == GM_ENOMEM && !b));
        batch_state_free(b);
        CHECK(gm_active_memory() == before);
    }
    CHECK(n > 4 && n < 100);
}

int main(void) {
    CHECK(gm_init() == GM_OK);
    gm_set_cache_limit(0);
    layout();
    refusals();
    recorded_unseen((int32_t[]){1, 1});
    recorded_unseen((int32_t[]){MOST, 3});
    misfits();
    failures();
    return check_summary();
}
