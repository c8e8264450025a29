/* gather_mm.c - products of matrices that indices choose: result [i] = a[lhs[i]] b[rhs[i]], both chosen from the
 * leading axes taken as one. No matrix is copied. */
#include <string.h>
#include "ops/index/index.h"

enum { IN_A, IN_B, IN_LHS, IN_RHS, INPUTS };

static gm_status gather_mm_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *a = in[IN_A], *b = in[IN_B];
    (void)n_in;
    (void)param;
    if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2]) {
        char ta[128], tb[128];
        shape_text(a->ndim, a->shape, ta);
        shape_text(b->ndim, b->shape, tb);
        return gm_fail(GM_ESHAPE, "gather_mm: the last dimension of %s does not match the second last of %s", ta, tb);
    }
    GM_TRY(broadcast_shape("gather_mm", in[IN_LHS], in[IN_RHS], out));
    if (out->ndim + 2 > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "gather_mm: the result has more than %d dimensions", GM_MAX_NDIM);
    out->dtype = (gm_dtype)a->dtype;
    out->shape[out->ndim++] = a->shape[a->ndim - 2];
    out->shape[out->ndim++] = b->shape[b->ndim - 1];
    return GM_OK;
}

/* x's matrices one after the other in memory, in place or copied: the first, how many, and how far apart; strides of
 * their rows and columns. */
typedef struct {
    const void *first;
    int64_t count, apart, row, column;
} matrices;
static gm_status matrices_of(gm_queue *q, const gm_array *x, matrices *m) {
    int64_t strides[GM_MAX_NDIM];
    const int n = x->ndim;
    bool regular = true;
    memcpy(strides, x->strides, (size_t)n * sizeof *strides);
    *m = (matrices){.first = array_ptr(x), .count = 1};
    for (int i = n - 3; i >= 0; i--) {
        regular = regular && (i == n - 3 || x->strides[i] == x->strides[i + 1] * x->shape[i + 1]);
        m->count *= x->shape[i];
    }
    if (!regular) {
        GM_TRY(dense_operand(q, x, &m->first));
        shape_strides(n, x->shape, strides);
    }
    m->apart = n > 2 ? strides[n - 3] : 0;
    m->row = strides[n - 2];
    m->column = strides[n - 1];
    return GM_OK;
}

/* An index for each matrix of the result, of `count`. */
static gm_status indices_of(gm_queue *q, const gm_array *index, const gm_array *out, int64_t items, int64_t count,
                            int32_t **list) {
    const int64_t *wide, one = 1;
    GM_TRY(index_list(q, "gather_mm", index, out->ndim - 2, out->shape, count, &wide));
    if (!(*list = queue_scratch(q, (size_t)items * sizeof **list)))
        return error_code();
    return launch_copy(q, (copy_to){*list, GM_INT32, &one}, (copy_from){wide, GM_INT64, &one}, 1, &items);
}

static gm_status gather_mm_eval(gm_array *out, gm_queue *q) {
    const int n = out->ndim;
    const gm_array *a = out->in[IN_A];
    const int64_t rows = out->shape[n - 2], columns = out->shape[n - 1], k = a->shape[a->ndim - 1];
    matrices x, w;
    int32_t *lhs, *rhs;
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    const int64_t items = out->size / (rows * columns);
    GM_TRY(matrices_of(q, a, &x));
    GM_TRY(matrices_of(q, out->in[IN_B], &w));
    if (x.count == 0 || w.count == 0)
        return gm_fail(GM_EVALUE, "gather_mm: got no matrices, expected at least one to choose from");
    GM_TRY(indices_of(q, out->in[IN_LHS], out, items, x.count, &lhs));
    GM_TRY(indices_of(q, out->in[IN_RHS], out, items, w.count, &rhs));
    queue_fence(q);
    return DISPATCH(q, gather_product, items,
                    .product = {.out = array_ptr(out),
                                .x = x.first,
                                .w = w.first,
                                .type = out->dtype,
                                .rows = rows,
                                .columns = columns,
                                .k = k,
                                .out_row = columns,
                                .out_column = 1,
                                .x_row = x.row,
                                .x_k = x.column,
                                .w_k = w.row,
                                .w_column = w.column},
                    .x_index = lhs, .w_index = rhs, .x_matrices = x.count, .w_matrices = w.count, .x_matrix = x.apart,
                    .w_matrix = w.apart);
}

/* The matrices of x [..., m, n] chosen by indices into its leading axes taken as one. */
static gm_array *chosen(gm_scope *s, gm_array *x, gm_array *indices) {
    int64_t shape[3] = {-1, x->shape[x->ndim - 2], x->shape[x->ndim - 1]};
    if (x->ndim == 2)
        shape[0] = 1;
    return gm_take(s, gm_reshape(s, x, 3, shape), indices, 0);
}

static gm_array *gather_mm_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    (void)param;
    return gm_matmul(s, chosen(s, in[IN_A], in[IN_LHS]), chosen(s, in[IN_B], in[IN_RHS]));
}

static gm_status gather_mm_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                   gm_array **outs) {
    (void)n_in;
    (void)param;
    (void)n_out;
    return rebuilt(gm_gather_mm(s, in[IN_A], in[IN_B], in[IN_LHS], in[IN_RHS], false), outs);
}

static gm_status gather_mm_refuse(const gm_array *node, int i, bool forward) {
    (void)node;
    return i == IN_LHS || i == IN_RHS ? refuse_index("GatherMM", forward) : GM_OK;
}

const gm_op gather_mm_op = {.name = "gather_mm",
                            .n_in = INPUTS,
                            .n_out = 1,
                            .nondiff = 1 << IN_LHS | 1 << IN_RHS,
                            .refuse = gather_mm_refuse,
                            .infer = gather_mm_infer,
                            .eval = gather_mm_eval,
                            .compose = gather_mm_compose,
                            .rebuild = gather_mm_rebuild};

/* Without indices: each matrix once, in the shape of the leading axes. */
static gm_array *all_matrices(gm_scope *s, const gm_array *x) {
    double count = 1;
    for (int i = 0; i < x->ndim - 2; i++)
        count *= (double)x->shape[i];
    return gm_reshape(s, gm_arange(s, 0, count, 1, GM_INT32), x->ndim - 2, x->shape);
}

gm_array *gm_gather_mm(gm_scope *s, gm_array *a, gm_array *b, gm_array *lhs, gm_array *rhs, bool sorted) {
    /* Whether they are sorted is found out on the way. */
    if (!a || !b || !lhs || !rhs)
        return NULL;
    if (a->ndim < 1 || b->ndim < 1)
        return gm_fail(GM_EVALUE, "gather_mm: 0-dimensional operands have no product"), NULL;
    const gm_dtype type = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (!dtype_is_inexact(type))
        return gm_fail(GM_EVALUE, "gather_mm: got %s, expected floating point", gm_dtype_name(type)), NULL;
    for (int i = 0; i < 2; i++) {
        gm_array *index = i ? rhs : lhs;
        if (!array_is_none(index) && !dtype_is_integer((gm_dtype)index->dtype))
            return gm_fail(GM_EVALUE, "gather_mm: indices are %s, expected integers",
                           gm_dtype_name((gm_dtype)index->dtype)),
                   NULL;
    }
    if (a->ndim == 1 || b->ndim == 1) { /* vectors become rows or columns, which the result does not have */
        const int at = a->ndim == 1 && b->ndim == 1 ? 2 : 1, axes[2] = {a->ndim == 1 ? -2 : -1, -1};
        a = a->ndim == 1 ? gm_reshape(s, a, 2, (int64_t[]){1, a->size}) : a;
        b = b->ndim == 1 ? gm_reshape(s, b, 2, (int64_t[]){b->size, 1}) : b;
        return gm_squeeze(s, gm_gather_mm(s, a, b, lhs, rhs, sorted), at, axes);
    }
    if (array_is_none(lhs) && array_is_none(rhs))
        return gm_matmul(s, a, b);
    gm_array *in[INPUTS] = {gm_astype(s, a, type), gm_astype(s, b, type), array_is_none(lhs) ? all_matrices(s, a) : lhs,
                            array_is_none(rhs) ? all_matrices(s, b) : rhs};
    return array_node(s, &gather_mm_op, in, INPUTS, NULL);
}
