/* sequence_weights.c - weights that are trained whole and that rows of sequences read without a product: vectors of
 * norms, tables of embeddings. What rows give to them is summed sequence by sequence in order, and may go on from a sum
 * so far, as in sequence_linear.c. */
#include "ops/layers/sequence_linear.h"

/* ---- a vector of a norm ---- */
typedef struct { int64_t rows; } vector_param; /* of the pass */
enum { VECTOR_WEIGHT, VECTOR_STARTS, VECTOR_SO_FAR, VECTOR_INPUTS };

static gm_status check_vector(const char *op, const gm_array *a, const char *name, int64_t size) {
    char text[128];
    if (a->dtype == GM_FLOAT32 && a->ndim == 1 && a->shape[0] == size)
        return GM_OK;
    array_text(a, text);
    return gm_fail(GM_ESHAPE, "%s: %s is %s, expected float32(%lld)", op, name, text, (long long)size);
}

static gm_status vector_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "sequence_vector";
    const gm_array *w = in[VECTOR_WEIGHT];
    (void)n_in;
    (void)param;
    GM_TRY(check_vector(op, w, "the vector", w->size));
    if (!array_is_none(in[VECTOR_SO_FAR]))
        GM_TRY(check_vector(op, in[VECTOR_SO_FAR], "the gradient so far", w->size));
    spec_like(out, w, GM_FLOAT32);
    return check_starts(op, in[VECTOR_STARTS]);
}

/* The first input itself. */
static gm_status share_eval(gm_array *out, gm_queue *q) {
    (void)q;
    array_share(out, out->in[0], out->in[0]->strides, 0);
    return GM_OK;
}

/* The op that reads it has summed: gm_sequence_sum. */
static void vector_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)s;
    (void)out;
    (void)in;
    grad[VECTOR_WEIGHT] = cots[0];
}

const gm_op sequence_vector_op = {.name = "sequence_vector",
                                  .shares = true,
                                  .n_in = VECTOR_INPUTS,
                                  .n_out = 1,
                                  .nondiff = 1u << VECTOR_STARTS | 1u << VECTOR_SO_FAR,
                                  .constant = true,
                                  .optional = 1u << VECTOR_SO_FAR,
                                  .param_size = sizeof(vector_param),
                                  .infer = vector_infer,
                                  .eval = share_eval,
                                  .vjp = vector_vjp};

gm_array *gm_sequence_vector(gm_scope *s, gm_array *w, int64_t rows, gm_array *starts, gm_array *so_far) {
    gm_array *in[VECTOR_INPUTS] = {w, starts, so_far};
    const vector_param p = {rows};
    return array_node(s, &sequence_vector_op, in, VECTOR_INPUTS, &p);
}

/* given [n * parts, size], of parts of rows as heads are: first the sum of each row's parts. */
gm_array *gm_sequence_sum(gm_scope *s, gm_array *given, gm_array *w) {
    if (!given || !w || w->op != &sequence_vector_op || !w->n_in)
        return unbroadcast(s, given, w);
    const int64_t rows = ((const vector_param *)w->param)->rows, size = w->size;
    if (given->size != rows * size) {
        const int64_t shape[3] = {rows, rows && size ? given->size / (rows * size) : 0, size};
        given = gm_sum(s, gm_reshape(s, given, 3, shape), 1, (int[]){1}, false);
    }
    gm_array *so_far = w->in[VECTOR_SO_FAR];
    gm_array *ones = gm_full(s, 2, (int64_t[]){rows, 1}, scalar_array(s, 1, GM_FLOAT32), GM_FLOAT32);
    if (!array_is_none(so_far))
        so_far = gm_reshape(s, so_far, 2, (int64_t[]){1, size});
    return gm_reshape(s, sequence_outer(s, ones, given, w->in[VECTOR_STARTS], so_far, false), 1, &size);
}

/* ---- a table whose rows are looked up ---- */
enum { TABLE_ROWS, TABLE_WEIGHT, TABLE_IDS, TABLE_SO_FAR, TABLE_INPUTS };

static gm_status table_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "sequence_embedding";
    const gm_array *rows = in[TABLE_ROWS], *w = in[TABLE_WEIGHT], *ids = in[TABLE_IDS];
    (void)n_in;
    (void)param;
    GM_TRY(check_rows(op, w, "the table", w->shape[0], w->ndim == 2 ? w->shape[1] : 0));
    GM_TRY(check_rows(op, rows, "its rows", ids->shape[0], w->shape[1]));
    if (!array_is_none(in[TABLE_SO_FAR]))
        GM_TRY(check_rows(op, in[TABLE_SO_FAR], "the gradient so far", w->shape[0], w->shape[1]));
    spec_like(out, rows, GM_FLOAT32);
    return GM_OK;
}

/* Row by row, so that it does not matter where sequences end. */
static void table_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    const gm_array *w = in[TABLE_WEIGHT];
    gm_array *so_far = in[TABLE_SO_FAR], *ids = in[TABLE_IDS];
    (void)out;
    if (array_is_none(so_far))
        so_far = gm_full(s, 2, w->shape, scalar_array(s, 0, GM_FLOAT32), GM_FLOAT32);
    grad[TABLE_WEIGHT] = gm_scatter(s, so_far, (gm_indices){&ids, 1, (const int[]){0}, 0}, cots[0], GM_S_ADD, NULL);
}

const gm_op sequence_embedding_op = {.name = "sequence_embedding",
                                     .shares = true,
                                     .n_in = TABLE_INPUTS,
                                     .n_out = 1,
                                     .nondiff = 1u << TABLE_ROWS | 1u << TABLE_IDS | 1u << TABLE_SO_FAR,
                                     .constant = true,
                                     .optional = 1u << TABLE_SO_FAR,
                                     .infer = table_infer,
                                     .eval = share_eval,
                                     .vjp = table_vjp};

gm_array *gm_sequence_embedding(gm_scope *s, gm_array *w, gm_array *ids, gm_array *so_far) {
    gm_array *in[TABLE_INPUTS] = {gm_take(s, gm_stop_gradient(s, w), ids, 0), w, ids, so_far};
    return array_node(s, &sequence_embedding_op, in, TABLE_INPUTS, NULL);
}
