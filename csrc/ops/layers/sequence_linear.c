/* sequence_linear.c - products of rows of sequences with small trained matrices. What they give to such a matrix is
 * summed sequence by sequence in order, and may go on from a sum so far: rows that come in several passes, each of
 * whole sequences, give the same bits as in one. */
#include "ops/layers/sequence_linear.h"

enum { IN_X, IN_W, IN_ADDED, IN_STARTS, IN_SO_FAR, INPUTS };
enum { OUTER_LEFT, OUTER_RIGHT, OUTER_STARTS, OUTER_SO_FAR, OUTER_INPUTS };

static gm_status check_some_rows(const char *op, const gm_array *a, const char *name) {
    char text[128];
    if (a->dtype == GM_FLOAT32 && a->ndim == 2)
        return GM_OK;
    array_text(a, text);
    return gm_fail(GM_ESHAPE, "%s: %s is %s, expected float32 of two dimensions", op, name, text);
}

/* ---- the sum over rows of what two of their vectors make ---- */
typedef struct { int32_t rounded; } outer_param;
static const gm_field outer_fields[] = {{FIELD_INT, offsetof(outer_param, rounded), "rounded", 1}, {0}};

static gm_status outer_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "sequence_outer";
    const gm_array *left = in[OUTER_LEFT], *right = in[OUTER_RIGHT], *so_far = in[OUTER_SO_FAR];
    (void)n_in;
    (void)param;
    GM_TRY(check_some_rows(op, left, "the left"));
    GM_TRY(check_some_rows(op, right, "the right"));
    GM_TRY(check_rows(op, right, "the right", left->shape[0], right->shape[1]));
    if (!array_is_none(so_far))
        GM_TRY(check_rows(op, so_far, "the sum so far", left->shape[1], right->shape[1]));
    spec_like(out, right, GM_FLOAT32);
    out->shape[0] = left->shape[1];
    return check_starts(op, in[OUTER_STARTS]);
}

static gm_status outer_eval(gm_array *out, gm_queue *q) {
    const gm_array *so_far = out->in[OUTER_SO_FAR];
    const float *left, *right, *before = NULL;
    const void *starts;
    GM_TRY(float_operand(q, out->in[OUTER_LEFT], &left));
    GM_TRY(float_operand(q, out->in[OUTER_RIGHT], &right));
    GM_TRY(dense_operand(q, out->in[OUTER_STARTS], &starts));
    if (!array_is_none(so_far))
        GM_TRY(float_operand(q, so_far, &before));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, sequence_outer, out->shape[1], .out = array_ptr(out), .left = left, .right = right,
                    .so_far = before, .starts = starts, .sequences = out->in[OUTER_STARTS]->shape[0] - 1,
                    .m = out->shape[0], .k = out->shape[1], .rounded = ((const outer_param *)out->param)->rounded != 0);
}

const gm_op sequence_outer_op = {.name = "sequence_outer",
                                 .n_in = OUTER_INPUTS,
                                 .n_out = 1,
                                 .optional = 1u << OUTER_SO_FAR,
                                 .param_size = sizeof(outer_param),
                                 .fields = outer_fields,
                                 .infer = outer_infer,
                                 .eval = outer_eval};

gm_array *sequence_outer(gm_scope *s, gm_array *left, gm_array *right, gm_array *starts, gm_array *so_far,
                         bool rounded) {
    gm_array *in[OUTER_INPUTS] = {left, right, starts, so_far};
    const outer_param p = {rounded && right && right->ndim == 2 && right->shape[1] % 16 == 0};
    return array_node(s, &sequence_outer_op, in, OUTER_INPUTS, &p);
}

/* ---- x @ w.T + added ---- */
static gm_status linear_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "sequence_linear";
    const gm_array *x = in[IN_X], *w = in[IN_W], *added = in[IN_ADDED], *so_far = in[IN_SO_FAR];
    (void)n_in;
    (void)param;
    GM_TRY(check_some_rows(op, x, "x"));
    GM_TRY(check_some_rows(op, w, "the matrix"));
    GM_TRY(check_rows(op, w, "the matrix", w->shape[0], x->shape[1]));
    if (!array_is_none(added))
        GM_TRY(check_rows(op, added, "what is added", x->shape[0], w->shape[0]));
    if (!array_is_none(so_far))
        GM_TRY(check_rows(op, so_far, "the gradient so far", w->shape[0], w->shape[1]));
    spec_like(out, x, GM_FLOAT32);
    out->shape[1] = w->shape[0];
    return check_starts(op, in[IN_STARTS]);
}

static gm_status linear_eval(gm_array *out, gm_queue *q) {
    const gm_array *w = out->in[IN_W];
    const float *x, *matrix, *added = NULL;
    GM_TRY(float_operand(q, out->in[IN_X], &x));
    GM_TRY(float_operand(q, w, &matrix));
    if (!array_is_none(out->in[IN_ADDED]))
        GM_TRY(float_operand(q, out->in[IN_ADDED], &added));
    GM_TRY(array_alloc(out, q));
    const int64_t m = w->shape[0], k = w->shape[1];
    return DISPATCH(q, product, 1, .out = array_ptr(out), .x = x, .w = matrix, .add = added, .type = GM_T_F32,
                    .rows = out->shape[0], .columns = m, .k = k, .out_row = m, .out_column = 1, .x_row = k, .x_k = 1,
                    .w_k = 1, .w_column = k, .add_row = m, .add_column = 1, .alpha = 1, .beta = 1);
}

static gm_array *turned(gm_scope *s, gm_array *x) {
    return array_is_none(x) ? x : gm_transpose(s, x, 2, (int[]){1, 0});
}

/* The wider side of the sum is the one whose rows are read as they lie. */
gm_array *sequence_matrix_gradient(gm_scope *s, gm_array *cot, gm_array *x, gm_array *starts, gm_array *so_far,
                                   bool rounded) {
    if (!cot || !x)
        return NULL;
    if (cot->shape[1] > x->shape[1])
        return turned(s, sequence_outer(s, x, cot, starts, turned(s, so_far), rounded));
    return sequence_outer(s, cot, x, starts, so_far, rounded);
}

static void linear_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out;
    grad[IN_X] = gm_matmul(s, cots[0], in[IN_W]);
    grad[IN_W] = sequence_matrix_gradient(s, cots[0], in[IN_X], in[IN_STARTS], in[IN_SO_FAR], false);
    if (!array_is_none(in[IN_ADDED]))
        grad[IN_ADDED] = cots[0];
}

const gm_op sequence_linear_op = {.name = "sequence_linear",
                                  .n_in = INPUTS,
                                  .n_out = 1,
                                  .nondiff = 1u << IN_STARTS | 1u << IN_SO_FAR,
                                  .constant = true,
                                  .optional = 1u << IN_ADDED | 1u << IN_SO_FAR,
                                  .infer = linear_infer,
                                  .eval = linear_eval,
                                  .vjp = linear_vjp};

gm_array *gm_sequence_linear(gm_scope *s, gm_array *x, gm_array *w, gm_array *added, gm_array *starts,
                             gm_array *so_far) {
    gm_array *in[INPUTS] = {x, w, added, starts, so_far};
    return array_node(s, &sequence_linear_op, in, INPUTS, NULL);
}
