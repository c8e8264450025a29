/* low_rank.c - see low_rank.h. Two ops, so that the first one runs beside the products that give y: x @ a.T of all
 * terms, one after another; and y with that @ b, in the memory of y. */
#include "ops/layers/low_rank.h"
#include <string.h>
#include "base/memory.h"
#include "ops/ops.h"

/* One term: of which output, which rows, and where its x @ a.T is. */
typedef struct {
    int64_t first, rows, rank, at;
    int32_t output;
    float scale;
} item;
typedef struct {
    int32_t n_outputs, n_items;
    item items[];
} low_rank_param;
static const gm_field fields[] = {{FIELD_INT, offsetof(low_rank_param, n_outputs), "outputs", 1},
                                  {FIELD_INT, offsetof(low_rank_param, n_items), "terms", 1},
                                  {0}};

static size_t param_bytes(int n_items) { return sizeof(low_rank_param) + (size_t)n_items * sizeof(item); }

static bool is_rows(const gm_array *x) { return x->dtype == GM_FLOAT32 && x->ndim == 2; }
static bool is_term(const gm_array *a, int64_t rank) {
    const bool held = a->dtype == GM_FLOAT32 || a->dtype == GM_FLOAT16 || a->dtype == GM_BFLOAT16;
    return held && a->ndim == 2 && a->shape[0] == rank && rank > 0;
}
static gm_status refuse(const char *what, const gm_array *got, const gm_array *x) {
    char a[128], b[128];
    array_text(got, a);
    array_text(x, b);
    return gm_fail(GM_ESHAPE, "low_rank: %s is %s for rows of %s", what, a, b);
}

/* ---- x @ a.T ---- */
static gm_status down_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const low_rank_param *p = param;
    const gm_array *x = in[0];
    (void)n_in;
    if (!is_rows(x))
        return refuse("x", x, x);
    int64_t size = 0;
    for (int i = 0; i < p->n_items; i++) {
        const item *it = &p->items[i];
        const gm_array *a = in[1 + i];
        if (!is_term(a, it->rank) || a->shape[1] != x->shape[1] || it->first < 0 || it->rows < 1 ||
            it->first + it->rows > x->shape[0])
            return refuse("a", a, x);
        size += it->rows * it->rank;
    }
    out->dtype = GM_FLOAT32;
    out->ndim = 1;
    out->shape[0] = size;
    return GM_OK;
}

/* The items as kernels read them; a or b NULL: not known there. */
static gm_status terms_of(gm_queue *q, const low_rank_param *p, gm_array *const *a, gm_array *const *b,
                          gm_low_rank_term **out) {
    gm_low_rank_term *terms = queue_arena(q, (size_t)p->n_items * sizeof *terms);
    if (!terms)
        return error_code();
    for (int i = 0; i < p->n_items; i++) {
        const item *it = &p->items[i];
        terms[i] = (gm_low_rank_term){.type = a ? a[i]->dtype : b[i]->dtype,
                                      .scale = it->scale,
                                      .first = it->first,
                                      .rows = it->rows,
                                      .rank = it->rank,
                                      .at = it->at};
        GM_TRY(dense_operand(q, a ? a[i] : b[i], a ? &terms[i].a : &terms[i].b));
    }
    *out = terms;
    return GM_OK;
}

static gm_status down_eval(gm_array *out, gm_queue *q) {
    const low_rank_param *p = out->param;
    const gm_array *x = out->in[0];
    gm_low_rank_term *terms;
    const float *data;
    GM_TRY(float_operand(q, x, &data));
    GM_TRY(terms_of(q, p, out->in + 1, NULL, &terms));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, low_rank_down, p->n_items, .low = array_ptr(out), .x = data, .k = x->shape[1], .terms = terms);
}

const gm_op low_rank_down_op = {.name = "low_rank_down",
                                .n_in = -1,
                                .n_out = 1,
                                .nondiff = UINT32_MAX,
                                .param_size = sizeof(low_rank_param),
                                .fields = fields,
                                .infer = down_infer,
                                .eval = down_eval};

/* ---- that @ b ---- */
static gm_status up_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const low_rank_param *p = param;
    (void)n_in;
    for (int i = 0; i < p->n_outputs; i++) {
        if (!is_rows(in[i]))
            return refuse("y", in[i], in[i]);
        spec_like(&out[i], in[i], GM_FLOAT32);
    }
    for (int i = 0; i < p->n_items; i++) {
        const gm_array *b = in[p->n_outputs + 1 + i], *y = in[p->items[i].output];
        if (!is_term(b, p->items[i].rank) || b->shape[1] != y->shape[1])
            return refuse("b", b, y);
    }
    return GM_OK;
}

/* out k in the memory of y, or with its numbers. */
static gm_status start_output(gm_array *node, gm_queue *q, int k) {
    gm_array *out = array_output(node, k), *y = node->in[k];
    GM_TRY(array_alloc_from(out, q, y));
    if (out->buf == y->buf)
        return GM_OK;
    GM_TRY(launch_copy(q, to_array(out), from_array(y), 2, y->shape));
    queue_fence(q);
    return GM_OK;
}

static bool same_rows(const item *a, const item *b) {
    return a->output == b->output && a->first == b->first && a->rows == b->rows;
}

static gm_status up_eval(gm_array *out, gm_queue *q) {
    const low_rank_param *p = out->param;
    gm_low_rank_part *parts = queue_arena(q, (size_t)p->n_items * sizeof *parts);
    gm_low_rank_term *terms;
    int64_t n = 0;
    if (!parts)
        return error_code();
    GM_TRY(terms_of(q, p, NULL, out->in + p->n_outputs + 1, &terms));
    for (int k = 0; k < p->n_outputs; k++)
        GM_TRY(start_output(out, q, k));
    for (int i = 0; i < p->n_items; i++) {
        const item *it = &p->items[i];
        if (i == 0 || !same_rows(it, it - 1)) {
            gm_array *to = array_output(out, it->output);
            parts[n++] = (gm_low_rank_part){
                .out = array_ptr(to), .width = to->shape[1], .first = it->first, .rows = it->rows, .term = i};
        }
        parts[n - 1].n_terms++;
    }
    return DISPATCH(q, low_rank_up, n, .low = array_ptr(out->in[p->n_outputs]), .terms = terms, .parts = parts);
}

const gm_op low_rank_up_op = {.name = "low_rank_up",
                              .n_in = -1,
                              .n_out = -1,
                              .nondiff = UINT32_MAX,
                              .param_size = sizeof(low_rank_param),
                              .fields = fields,
                              .infer = up_infer,
                              .eval = up_eval};

/* ---- both ---- */
static low_rank_param *param_of(low_rank_layers layers, int n_items) {
    low_rank_param *p = memory_zeroed(param_bytes(n_items));
    if (!p)
        return NULL;
    p->n_outputs = layers.n;
    int64_t at = 0;
    for (int k = 0; k < layers.n; k++)
        for (int j = 0; j < layers.n_terms[k]; j++) {
            const low_rank_term *t = &layers.terms[k][j];
            const int64_t rank = t->a->ndim == 2 ? t->a->shape[0] : 0;
            p->items[p->n_items++] = (item){
                .first = t->first, .rows = t->rows, .rank = rank, .at = at, .output = k, .scale = t->scale};
            at += t->rows * rank;
        }
    return p;
}

/* in: capacity for all inputs of either op. */
static gm_status add_nodes(gm_scope *s, gm_array *x, low_rank_layers layers, gm_array **y, const low_rank_param *p,
                           gm_array **in) {
    const size_t bytes = param_bytes(p->n_items);
    int n = 0;
    in[n++] = x;
    for (int k = 0; k < layers.n; k++)
        for (int j = 0; j < layers.n_terms[k]; j++)
            in[n++] = layers.terms[k][j].a;
    gm_array *low = array_node_sized(s, &low_rank_down_op, in, n, p, bytes);
    if (!low)
        return error_code();
    for (n = 0; n < layers.n; n++)
        in[n] = y[n];
    in[n++] = low;
    for (int k = 0; k < layers.n; k++)
        for (int j = 0; j < layers.n_terms[k]; j++)
            in[n++] = layers.terms[k][j].b;
    return array_nodes(s, &low_rank_up_op, in, n, p, bytes, layers.n, y);
}

static gm_status add(gm_scope *s, gm_array *x, low_rank_layers layers, gm_array **y, int n_items) {
    low_rank_param *p = param_of(layers, n_items);
    gm_array **in = memory_array((size_t)layers.n + 1 + (size_t)n_items, sizeof *in);
    const gm_status status = p && in ? add_nodes(s, x, layers, y, p, in) : error_code();
    memory_free(p);
    memory_free(in);
    return status;
}

void low_rank_add(gm_scope *s, gm_array *x, low_rank_layers layers, gm_array **y) {
    int n_items = 0;
    bool whole = x != NULL;
    for (int k = 0; k < layers.n; k++) {
        n_items += layers.n_terms[k];
        whole &= y[k] != NULL;
    }
    if (whole && n_items == 0)
        return;
    if (whole && add(s, x, layers, y, n_items) == GM_OK)
        return;
    for (int k = 0; k < layers.n; k++)
        y[k] = NULL;
}
