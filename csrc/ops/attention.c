/* attention.c - softmax(q k^T) v over the KV caches of sequences; over plain arrays it is in sdpa.c.
 * Source of the block-wise form: Milakov and Gimelshein 2018; Dao et al., FlashAttention, 2022. */
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "ops/ops.h"

/* ---- over caches ----
 * Inputs: q, k, v, angles, rows (sequence and position of each row, and after them the number of key blocks in use),
 * how many rows each sequence has, then K and V of each sequence. The caches are written in place: rows at and beyond
 * the positions given are nobody's yet. */
typedef struct {
    int32_t n_sequences, n_heads, n_kv_heads, head_dim, window;
    float scale;
    int32_t one_row_each;
} cached_param;
static const gm_field cached_fields[] = {{FIELD_INT, offsetof(cached_param, n_sequences), "n_sequences", 1},
                                         {FIELD_INT, offsetof(cached_param, n_heads), "n_heads", 1},
                                         {FIELD_INT, offsetof(cached_param, n_kv_heads), "n_kv_heads", 1},
                                         {FIELD_INT, offsetof(cached_param, head_dim), "head_dim", 1},
                                         {FIELD_INT, offsetof(cached_param, window), "window", 1},
                                         {FIELD_FLOAT, offsetof(cached_param, scale), "scale", 1},
                                         {FIELD_INT, offsetof(cached_param, one_row_each), "one_row_each", 1}, {0}};
enum { IN_Q, IN_K, IN_V, IN_ANGLES, IN_ROWS, IN_SPANS, IN_CACHES };

static gm_status cached_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const cached_param *p = param;
    int64_t n = in[IN_Q]->ndim == 2 ? in[IN_Q]->shape[0] : -1;
    int64_t q_dim = (int64_t)p->n_heads * p->head_dim, kv_dim = (int64_t)p->n_kv_heads * p->head_dim;
    const int64_t widths[3] = {q_dim, kv_dim, kv_dim};
    for (int i = 0; i < 3; i++)
        if (in[i]->dtype != GM_FLOAT32 || in[i]->ndim != 2 || in[i]->shape[0] != n || in[i]->shape[1] != widths[i]) {
            char text[128];
            array_text(in[i], text);
            return gm_fail(GM_ESHAPE, "cached_attention: %c is %s, expected float32(%lld,%lld)", "qkv"[i], text,
                           (long long)n, (long long)widths[i]);
        }
    if (n_in != IN_CACHES + 2 * p->n_sequences || in[IN_ROWS]->dtype != GM_INT32 || in[IN_ROWS]->size < 2 * n + 1 ||
        in[IN_ANGLES]->ndim != 3 || in[IN_ANGLES]->shape[0] != n || 2 * in[IN_ANGLES]->shape[2] > p->head_dim)
        return gm_fail(GM_ESHAPE, "cached_attention: rows, angles or caches do not fit %lld rows of %d sequences",
                       (long long)n, p->n_sequences);
    for (int i = 0; i < 2 * p->n_sequences; i++) {
        const gm_array *c = in[IN_CACHES + i];
        if (c->dtype != in[IN_CACHES]->dtype || (c->dtype != GM_FLOAT32 && c->dtype != GM_FLOAT16 &&
                                                 c->dtype != GM_BFLOAT16) ||
            c->size % ((int64_t)GM_KV_BLOCK * kv_dim) || c->size == 0) {
            char text[128];
            array_text(c, text);
            return gm_fail(GM_ESHAPE, "cached_attention: cache %d is %s, expected whole blocks of %d keys", i, text,
                           GM_KV_BLOCK);
        }
    }
    spec_like(out, in[IN_Q], GM_FLOAT32);
    return GM_OK;
}

static gm_status cached_eval(gm_array *out, gm_queue *q) {
    const cached_param *p = out->param;
    int64_t n = out->shape[0], q_dim = out->shape[1], kv_dim = (int64_t)p->n_kv_heads * p->head_dim;
    int sequences = p->n_sequences;
    gm_array **caches = out->in + IN_CACHES;
    const int32_t *rows = array_ptr(out->in[IN_ROWS]), *spans = array_ptr(out->in[IN_SPANS]);
    const float *qd, *kd, *vd, *angles;
    int64_t max_blocks = 0;
    GM_TRY(float_operand(q, out->in[IN_Q], &qd));
    GM_TRY(float_operand(q, out->in[IN_K], &kd));
    GM_TRY(float_operand(q, out->in[IN_V], &vd));
    GM_TRY(float_operand(q, out->in[IN_ANGLES], &angles));
    void **pointers = queue_arena(q, (size_t)(2 * sequences) * sizeof *pointers);
    if (!pointers)
        return error_code();
    for (int i = 0; i < sequences; i++) {
        pointers[i] = array_ptr(caches[2 * i]);
        pointers[sequences + i] = array_ptr(caches[2 * i + 1]);
        int64_t blocks = caches[2 * i]->size / (GM_KV_BLOCK * kv_dim);
        max_blocks = blocks > max_blocks ? blocks : max_blocks;
        GM_TRY(queue_writes(q, caches[2 * i]->buf));
        GM_TRY(queue_writes(q, caches[2 * i + 1]->buf));
    }
    GM_TRY(array_alloc(out, q));
    float *turned = queue_scratch(q, (size_t)(n * q_dim) * sizeof(float) + 1);
    if (!turned)
        return error_code();
    GM_TRY(LAUNCH(q, rope_cache, n, 1 + 8192 / (q_dim + 2 * kv_dim), 0, .q_out = turned, .q = qd, .k = kd, .v = vd,
                  .angles = angles, .q_stride = q_dim, .k_stride = kv_dim, .v_stride = kv_dim, .k_cache = pointers,
                  .v_cache = pointers + sequences, .sequence = rows, .position = rows + n, .kv_type = caches[0]->dtype,
                  .n_heads = p->n_heads, .n_kv_heads = p->n_kv_heads, .head_dim = p->head_dim,
                  .half = out->in[IN_ANGLES]->shape[2]));
    queue_fence(q);
    gm_attention_args args = {.out = array_ptr(out), .q = turned, .k_cache = pointers, .v_cache = pointers + sequences,
                              .sequence = rows, .position = rows + n, .kv_type = caches[0]->dtype,
                              .n_heads = p->n_heads, .n_kv_heads = p->n_kv_heads, .head_dim = p->head_dim,
                              .window = p->window, .scale = p->scale};
    const gm_kernels *kernels = queue_kernels(q);
    if (p->one_row_each) {
        /* One query a sequence: the keys are split into blocks, so that long contexts keep all threads busy. */
        args.max_blocks = max_blocks;
        args.n_blocks = rows + 2 * n;
        args.partial = queue_scratch(q, (size_t)(n * p->n_heads * max_blocks * (p->head_dim + 2)) * sizeof(float));
        if (!args.partial)
            return error_code();
        GM_TRY(queue_launch(q, kernels->attention_split, &args, sizeof args, n * p->n_kv_heads, 1, 0));
        queue_scale(q, args.n_blocks);
        queue_fence(q);
        return queue_launch(q, kernels->attention_merge, &args, sizeof args, n * p->n_heads, 1 + 4096 / p->head_dim, 0);
    }
    int64_t n_tiles = 0;
    for (int i = 0; i < sequences; i++)
        n_tiles += (spans[i] + GM_QUERY_TILE - 1) / GM_QUERY_TILE;
    int32_t *tiles = queue_arena(q, (size_t)(2 * n_tiles) * sizeof *tiles + 1), *t = tiles, first = 0;
    if (!tiles)
        return error_code();
    for (int i = 0; i < sequences; first += spans[i++])
        for (int32_t at = 0; at < spans[i]; at += GM_QUERY_TILE) {
            *t++ = first + at;
            *t++ = spans[i] - at < GM_QUERY_TILE ? spans[i] - at : GM_QUERY_TILE;
        }
    args.tiles = tiles;
    args.n_tiles = n_tiles;
    return queue_launch(q, kernels->attention, &args, sizeof args, n_tiles * p->n_kv_heads, 1, 0);
}

const gm_op cached_attention_op = {.name = "cached_attention", .n_in = -1, .n_out = 1, .nondiff = 0xfffffff0u,
                                .param_size = sizeof(cached_param), .fields = cached_fields, .infer = cached_infer,
                                .eval = cached_eval};

gm_array *gm_cached_attention(gm_scope *s, gm_array *q, gm_array *k, gm_array *v, gm_array *angles, gm_array *rows,
                              gm_array *const *caches, int n_sequences, const int32_t *spans, int n_heads,
                              int n_kv_heads, int head_dim, int window, float scale) {
    cached_param p;
    bool one_each = true;
    int64_t total = 0;
    if (!q)
        return NULL;
    for (int i = 0; i < n_sequences; i++) {
        one_each &= spans[i] == 1;
        total += spans[i];
    }
    if (n_sequences < 1 || n_sequences > 8192 || total != q->shape[0])
        return gm_fail(GM_EVALUE, "cached_attention: spans of %d sequences add up to %lld rows, q has %lld",
                       n_sequences, (long long)total, (long long)q->shape[0]), NULL;
    memset(&p, 0, sizeof p);
    p.n_sequences = n_sequences;
    p.n_heads = n_heads;
    p.n_kv_heads = n_kv_heads;
    p.head_dim = head_dim;
    p.window = window;
    p.scale = scale;
    p.one_row_each = one_each;
    gm_array *span_array = gm_array_from(s, GM_INT32, 1, (int64_t[]){n_sequences}, spans);
    int n_in = IN_CACHES + 2 * n_sequences;
    gm_array *few[IN_CACHES + 16], **in = n_sequences <= 8 ? few : memory_array((size_t)n_in, sizeof *in);
    if (!in)
        return NULL;
    in[IN_Q] = q;
    in[IN_K] = k;
    in[IN_V] = v;
    in[IN_ANGLES] = angles;
    in[IN_ROWS] = rows;
    in[IN_SPANS] = span_array;
    memcpy(in + IN_CACHES, caches, (size_t)(2 * n_sequences) * sizeof *in);
    gm_array *out = array_node(s, &cached_attention_op, in, n_in, &p);
    if (in != few)
        memory_free(in);
    return out;
}
