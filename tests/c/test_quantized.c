/* test_quantized.c - quantised matrices: every coding, shapes that straddle the kernels' vectors and blocks, operands
 * that are views, batches chosen by indices that may be out of range, against dense products with what dequantize
 * gives; and every allocation made to fail, gradients among them. Under ASan nothing outside of an array is touched. */
#include <math.h>
#include <stdlib.h>
#include "base/memory.h"
#include "check.h"

static uint64_t state = 88172645463325252u;
static int64_t below(int64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}

typedef struct {
    const char *mode;
    int group, bits;
} coding;
static const coding codings[] = {
    {"affine", 32, 2}, {"affine", 64, 3}, {"affine", 128, 4}, {"affine", 32, 4}, {"affine", 64, 5},
    {"affine", 32, 6}, {"affine", 64, 8}, {"mxfp4", 32, 4},   {"mxfp8", 32, 8},  {"nvfp4", 16, 4},
};
#define N_CODINGS ((int)(sizeof codings / sizeof *codings))

static gm_array *values(gm_scope *s, int ndim, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < ndim; i++)
        size *= shape[i];
    float *data = malloc(sizeof *data * (size_t)(size + 1));
    for (int64_t i = 0; i < size; i++)
        data[i] = (float)(below(2001) - 1000) / 500;
    gm_array *a = gm_array_from(s, GM_FLOAT32, ndim, shape, data);
    free(data);
    return a;
}

static gm_array *indices(gm_scope *s, int64_t n, int64_t low, int64_t high) {
    int32_t data[16];
    for (int64_t i = 0; i < n; i++)
        data[i] = (int32_t)(low + below(high - low));
    return gm_array_from(s, GM_INT32, 1, &n, data);
}

/* The same values as a view of twice as many columns, turned twice. */
static gm_array *as_view(gm_scope *s, gm_array *x) {
    int ndim = gm_array_ndim(x), axes[4];
    gm_array *both[2] = {x, gm_negative(s, x)};
    for (int i = 0; i < ndim; i++)
        axes[i] = i < ndim - 2 ? i : 2 * ndim - 3 - i;
    gm_array *wide = gm_transpose(s, gm_concatenate(s, both, 2, -1), ndim, axes), *halves[2];
    return gm_split_evenly(s, wide, 2, -2, halves) ? gm_transpose(s, halves[0], ndim, axes) : NULL;
}

static bool near_to(const gm_array *got, const gm_array *want, float tolerance) {
    const float *a = gm_array_data(got), *b = gm_array_data(want);
    float most = 1;
    if (!a || !b || gm_array_size(got) != gm_array_size(want))
        return false;
    for (int64_t i = 0; i < gm_array_size(want); i++)
        most = fmaxf(most, fabsf(b[i]));
    for (int64_t i = 0; i < gm_array_size(want); i++)
        if (!(fabsf(a[i] - b[i]) <= tolerance * most))
            return false;
    return true;
}

static gm_array *swapped(gm_scope *s, gm_array *x) { return gm_swapaxes(s, x, -1, -2); }

static bool are_inside(const gm_array *index, int64_t size) {
    const int32_t *values_of = gm_array_data(index);
    bool inside = true;
    for (int64_t i = 0; i < gm_array_size(index); i++)
        inside = inside && values_of[i] >= -size && values_of[i] < size;
    return inside;
}

static void products(int which, int round) {
    const coding *c = &codings[which];
    gm_scope *s = gm_scope_open();
    bool transposed = round % 3 != 0;
    int64_t rows = 1 + below(round % 2 ? 70 : 5), k = c->group * (1 + below(round % 2 ? 20 : 3));
    int64_t tokens = below(5) == 0 ? 0 : 1 + below(round % 4 ? 5 : 70), batch = 1 + below(3);
    gm_array *w = values(s, 3, (int64_t[]){batch, rows, k}), *others[2];
    gm_array *x = values(s, 3, (int64_t[]){batch, tokens, transposed ? k : rows});
    x = round % 2 ? as_view(s, x) : x;
    gm_array *q = gm_quantize(s, round % 5 ? w : as_view(s, w), c->group, c->bits, c->mode, GM_NONE, others);
    gm_array *const scales = others[0], *const biases = others[1];
    gm_array *dense = gm_dequantize(s, q, scales, biases, c->group, c->bits, c->mode, GM_NONE, GM_FLOAT32);
    gm_array *got = gm_quantized_matmul(s, x, q, scales, biases, transposed, c->group, c->bits, c->mode);
    gm_array *want = gm_matmul(s, x, transposed ? swapped(s, dense) : dense);
    gm_array *all[] = {got, want, dense};
    CHECK(gm_eval(all, 3) == GM_OK);
    CHECK(near_to(got, want, 1e-5f));
    int64_t n = 1 + below(8);
    gm_array *lhs = indices(s, n, -batch, batch), *rhs = indices(s, n, -batch, batch);
    gm_array *chosen = gm_gather_qmm(s, x, q, scales, biases, lhs, rhs, transposed, c->group, c->bits, c->mode,
                                     GM_NONE);
    gm_array *some = gm_take(s, dense, rhs, 0);
    gm_array *each = gm_matmul(s, gm_take(s, x, lhs, 0), transposed ? swapped(s, some) : some);
    gm_array *picked[] = {chosen, each};
    CHECK(gm_eval(picked, 2) == GM_OK);
    CHECK(near_to(chosen, each, 1e-5f));
    lhs = indices(s, n, -9, 9), rhs = indices(s, n, -9, 9);
    gm_array *wild = gm_gather_qmm(s, x, q, scales, biases, lhs, rhs, transposed, c->group, c->bits, c->mode, GM_NONE);
    const gm_status status = gm_eval(&wild, 1);
    CHECK(status == (are_inside(lhs, batch) && are_inside(rhs, batch) ? GM_OK : GM_EINDEX) || tokens == 0);
    gm_take_error(&(gm_error){0});
    gm_scope_close(s);
}

/* ---- allocations that fail ---- */
static gm_array *build(gm_array *w, gm_array *x, gm_array *index, const coding *c) {
    gm_scope *s = gm_scope_open();
    gm_array *others[2], *grads[1], *traced, *root = NULL;
    if (!s)
        return NULL;
    gm_array *q = gm_quantize(s, w, c->group, c->bits, c->mode, GM_NONE, others);
    gm_array *const scales = others[0], *const biases = others[1];
    gm_trace_enter();
    traced = gm_tracer(s, as_view(s, x));
    gm_array *y = gm_quantized_matmul(s, traced, q, scales, biases, true, c->group, c->bits, c->mode);
    gm_array *z = gm_gather_qmm(s, y, q, scales, biases, GM_NONE, index, false, c->group, c->bits, c->mode, GM_NONE);
    gm_array *sum = gm_sum(s, gm_square(s, z), -1, NULL, false);
    gm_trace_leave();
    gm_array *one = gm_array_from(s, GM_FLOAT32, 0, NULL, &(float){1});
    gm_array *back = gm_dequantize(s, q, scales, biases, c->group, c->bits, c->mode, GM_NONE, GM_FLOAT32);
    if (sum && one && back && gm_vjp(s, &sum, &one, 1, &traced, 1, grads) == GM_OK)
        root = gm_add(s, gm_sum(s, grads[0], -1, NULL, false), gm_sum(s, back, -1, NULL, false));
    root = root ? gm_retain(root) : NULL;
    gm_scope_close(s);
    return root;
}

static void fail_each(const coding *c) {
    gm_scope *s = gm_scope_open();
    gm_error e;
    gm_array *w = values(s, 3, (int64_t[]){2, 9, 2 * c->group}), *x = values(s, 3, (int64_t[]){2, 5, 2 * c->group});
    gm_array *index = indices(s, 2, 0, 2), *inputs[] = {w, x, index};
    float first = 0;
    long failures = 0;
    CHECK(gm_eval(inputs, 3) == GM_OK);
    size_t before = gm_active_memory();
    for (long n = 0; n < 2000; n++) { /* the first time nothing fails: the value to come to */
        memory_fail_at(n);
        gm_array *root = build(w, x, index, c);
        gm_status status = root ? gm_eval(&root, 1) : GM_ENOMEM;
        gm_take_error(&e);
        memory_fail_at(0);
        float value = status == GM_OK ? *(const float *)gm_array_data(root) : 0;
        first = n ? first : value;
        gm_release(root);
        CHECK(status == GM_OK ? value == first : status == GM_ENOMEM && e.code == GM_ENOMEM);
        CHECK(gm_active_memory() == before);
        failures += status != GM_OK;
        if (n && status == GM_OK)
            break;
    }
    CHECK(failures > 20 && failures < 1900);
    gm_scope_close(s);
}

int main(void) {
    if (gm_init() != GM_OK)
        return 1;
    gm_set_cache_limit(0);
    gm_set_threads(3);
    for (int i = 0; i < N_CODINGS; i++)
        for (int round = 0; round < 24; round++)
            products(i, round);
    fail_each(&codings[3]);
    fail_each(&codings[N_CODINGS - 1]);
    return check_summary();
}
