/* launch_elements.c - copies, elementwise work, indices, random numbers: pieces of some microseconds. */
#include "cpu/launch.h"
#include "strides.h"

/* A transposing copy goes by bands of 64 rows, so that its tiles are whole. */
bool cpu_copy(gm_recorder *r, const gm_copy_args *a, int64_t n) {
    const int last = a->ndim - 1;
    if (last < 1 || a->shape[last] == 0 || a->in_strides[last - 1] != 1 || a->in_strides[last] == 1)
        return LAUNCH(r, copy, a, n, GRAIN_LIGHT, 0);
    const int64_t band = 64 * a->shape[last];
    return LAUNCH(r, copy, a, n, GRAIN_LIGHT > band ? GRAIN_LIGHT / band * band : band, 0);
}

bool launch_merged_copy(gm_recorder *r, const gm_copy_args *a) {
    const int64_t *const strides[2] = {a->out_strides, a->in_strides};
    int64_t *dims = r->arguments(r, (size_t)a->ndim * 3 * sizeof *dims + 1), n = 1;
    if (!dims) return false;
    int64_t *const steps[2] = {dims + a->ndim, dims + (ptrdiff_t)2 * a->ndim};
    gm_copy_args copy = *a;
    copy.ndim = merge_dimensions(a->ndim, a->shape, 2, strides, dims, steps);
    copy.shape = dims;
    copy.out_strides = steps[0];
    copy.in_strides = steps[1];
    for (int i = 0; i < copy.ndim; i++) n *= dims[i];
    return cpu_copy(r, &copy, n);
}

/* Elements of a piece, by the `work` of the rows. */
#define LIGHT GRAIN_LIGHT
#define HEAVY GRAIN
int64_t unary_grain(gm_unary_op op) {
    switch (op) {
#define UNARY_VALUE(name, doc, result, work, ...)                                                                      \
    case GM_U_##name: return work;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return LIGHT;
#include "unary.def"
    }
    return HEAVY;
}

int64_t binary_grain(gm_binary_op op) {
    switch (op) {
#define BINARY_VALUE(name, doc, work, ...)                                                                             \
    case GM_B_##name: return work;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return LIGHT;
#include "binary.def"
    }
    return HEAVY;
}
#undef LIGHT
#undef HEAVY

/* ---- indices ---- */

#define NARROW 64     /* with fewer columns, threads share the positions instead, */
#define FAR (1 << 20) /* if these are spread over at least this many bytes */

bool cpu_scatter(gm_recorder *r, const gm_scatter_args *a, int64_t n) {
    gm_scatter_args parts = *a;
    const int threads = r->threads(r);
    const bool far = a->count >= 4 * GRAIN && a->span * type_bytes(a->type) >= FAR;
    parts.columns = n;
    parts.parts = n < NARROW && far && threads > 1 ? threads : 1;
    int64_t grain = parts.parts > 1 ? n : 1 + 4 * GRAIN / (a->count + 1);
    if (parts.parts == 1 && a->run >= NARROW && grain < NARROW) grain = NARROW;
    return LAUNCH(r, scatter, &parts, parts.parts * n, grain, 0);
}

/* ---- random numbers ---- */

bool cpu_word_order(gm_recorder *r, const gm_word_order_args *a, int64_t n) {
    gm_word_order_args order = *a;
    order.work = r->workspace(r, (size_t)(n * a->n) * sizeof *order.work + 1);
    return order.work && LAUNCH(r, word_order, &order, n, 1 + 4096 / (a->n + 1), 0);
}
