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

bool cpu_copy_parts(gm_recorder *r, const gm_copy_parts_args *a, int64_t n) {
    return LAUNCH(r, copy_parts, a, n, GRAIN_LIGHT, 0);
}

bool cpu_copy_at(gm_recorder *r, const gm_copy_at_args *a, int64_t n) { return LAUNCH(r, copy_at, a, n, GRAIN, 0); }

/* Elements of a piece, by the `work` of the rows. */
#define LIGHT GRAIN_LIGHT
#define HEAVY GRAIN
static int64_t unary_grain(gm_unary_op op) {
    switch (op) {
#define UNARY_VALUE(name, doc, result, work, ...)                                                                      \
    case GM_U_##name: return work;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return LIGHT;
#include "unary.def"
    }
    return HEAVY;
}

static int64_t binary_grain(gm_binary_op op) {
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

bool cpu_unary(gm_recorder *r, const gm_unary_args *a, int64_t n) {
    return LAUNCH(r, unary, a, n, unary_grain(a->op), 0);
}

bool cpu_binary(gm_recorder *r, const gm_binary_args *a, int64_t n) {
    return LAUNCH(r, binary, a, n, binary_grain(a->op), 0);
}

bool cpu_select(gm_recorder *r, const gm_select_args *a, int64_t n) { return LAUNCH(r, select, a, n, GRAIN_LIGHT, 0); }
bool cpu_fused(gm_recorder *r, const gm_fused_args *a, int64_t n) { return LAUNCH(r, fused, a, n, GRAIN, 0); }
bool cpu_arange(gm_recorder *r, const gm_arange_args *a, int64_t n) { return LAUNCH(r, arange, a, n, GRAIN, 0); }

bool cpu_pad(gm_recorder *r, const gm_pad_args *a, int64_t n) {
    return LAUNCH(r, pad, a, n, grain_for(a->shape[a->ndim - 1]), 0);
}

/* ---- indices ---- */
bool cpu_positions(gm_recorder *r, const gm_positions_args *a, int64_t n) {
    return LAUNCH(r, positions, a, n, GRAIN, 0);
}

/* Copies go at the speed of memory: pieces are larger than those of arithmetic. */
bool cpu_take(gm_recorder *r, const gm_take_args *a, int64_t n) {
    return LAUNCH(r, take, a, n, 1 + 4 * GRAIN / a->run, 0);
}

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
bool cpu_threefry(gm_recorder *r, const gm_threefry_args *a, int64_t n) { return LAUNCH(r, threefry, a, n, 2048, 0); }

bool cpu_word_order(gm_recorder *r, const gm_word_order_args *a, int64_t n) {
    gm_word_order_args order = *a;
    order.work = r->workspace(r, (size_t)(n * a->n) * sizeof *order.work + 1);
    return order.work && LAUNCH(r, word_order, &order, n, 1 + 4096 / (a->n + 1), 0);
}
