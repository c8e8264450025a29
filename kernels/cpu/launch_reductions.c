/* launch_reductions.c - reductions, of which long ones to few outputs go by blocks, and work on rows. */
#include <string.h>
#include "cpu/launch.h"

#define SPLIT_WORK 131072 /* elements of a block, when a reduction to few outputs is cut into blocks */
#define FEW_OUTPUTS 512

static bool is_float(int type) { return type >= GM_T_F16 && type <= GM_T_F64; }

/* What the result of a block is kept in until the blocks are joined. */
static int block_type(gm_reduce_op op, int in) {
    if (op == GM_R_ALL || op == GM_R_ANY) return GM_T_BOOL;
    if ((op == GM_R_SUM || op == GM_R_PROD) && is_float(in))
        return GM_T_F64; /* what the blocks before bring back into range may be outside of it here */
    if (in == GM_T_F16 || in == GM_T_BF16) return GM_T_F32;
    if (is_float(in) || in == GM_T_C64 || op == GM_R_MAX || op == GM_R_MIN) return in;
    return in == GM_T_U64 ? GM_T_U64 : GM_T_I64;
}

/* work: reduced elements of an output. */
static bool launch_whole(gm_recorder *r, const gm_reduce_args *a, int64_t outputs, int64_t work) {
    const int64_t light = a->op == GM_R_LOGSUMEXP ? GRAIN : GRAIN_LIGHT;
    const int64_t grain = work >= light ? 1 : light / (work > 0 ? work : 1);
    return LAUNCH(r, reduce, a, outputs, strip_grain(grain, a->n_kept, a->kept_shape, a->kept_strides), 0);
}

/* A long reduced axis with few outputs: blocks of it side by side, then their results in order. The blocks follow from
 * the shape alone. */
static bool launch_blocks(gm_recorder *r, const gm_reduce_args *a, int64_t outputs, int64_t block) {
    const int64_t length = a->reduced_shape[0], stride = a->reduced_strides[0];
    const int64_t blocks = length / block, rest = length % block;
    const int type = block_type(a->op, a->in_type);
    const int64_t item = type_bytes(type);
    int64_t *shape = r->arguments(r, (size_t)(2 * (a->n_kept + 1) + 6) * sizeof *shape);
    char *partial = shape ? r->workspace(r, (size_t)((blocks + 1) * outputs * item)) : NULL;
    if (!partial) return false;
    int64_t *strides = shape + a->n_kept + 1, *lengths = strides + a->n_kept + 1;
    shape[0] = blocks;
    strides[0] = stride * block;
    memcpy(shape + 1, a->kept_shape, (size_t)a->n_kept * sizeof *shape);
    memcpy(strides + 1, a->kept_strides, (size_t)a->n_kept * sizeof *shape);
    memcpy(lengths, (int64_t[]){block, rest, blocks + (rest > 0), stride, outputs, 1}, 6 * sizeof *lengths);
    gm_reduce_args part = *a;
    part.out = partial;
    part.out_type = type;
    part.n_kept = a->n_kept + 1;
    part.kept_shape = shape;
    part.kept_strides = strides;
    part.reduced_shape = lengths;
    if (!launch_whole(r, &part, blocks * outputs, block)) return false;
    if (rest) {
        part.out = partial + blocks * outputs * item;
        part.in = (const char *)a->in + blocks * block * stride * type_bytes(a->in_type);
        part.n_kept = a->n_kept;
        part.kept_shape = a->kept_shape;
        part.kept_strides = a->kept_strides;
        part.reduced_shape = lengths + 1;
        if (!launch_whole(r, &part, outputs, rest)) return false;
    }
    r->fence(r);
    const gm_reduce_args joined = {.out = a->out,
                                   .in = partial,
                                   .op = a->op,
                                   .in_type = type,
                                   .out_type = a->out_type,
                                   .n_kept = 1,
                                   .kept_shape = lengths + 4,
                                   .kept_strides = lengths + 5,
                                   .n_reduced = 1,
                                   .reduced_shape = lengths + 2,
                                   .reduced_strides = lengths + 4};
    return LAUNCH(r, reduce, &joined, outputs, grain_for(lengths[2]), 0);
}

bool cpu_reduce(gm_recorder *r, const gm_reduce_args *a, int64_t n) {
    int64_t work = 1;
    for (int d = 0; d < a->n_reduced; d++) work *= a->reduced_shape[d];
    const bool few = a->op == GM_R_LOGSUMEXP || n <= FEW_OUTPUTS;
    if (n && few && a->n_reduced == 1 && n * work >= 2 * SPLIT_WORK) {
        /* A row of logits has the same bits whatever rows are beside it: its blocks follow from its length alone. */
        const int64_t block = a->op == GM_R_LOGSUMEXP ? SPLIT_WORK : SPLIT_WORK / n;
        if (work >= 2 * block) return launch_blocks(r, a, n, block);
    }
    return launch_whole(r, a, n, work);
}

/* By contracts of its parts, with their bits. */
bool cpu_best_rows(gm_recorder *r, const gm_best_rows_args *a, int64_t n) {
    int64_t *list = r->arguments(r, 4 * sizeof *list); /* shapes and strides of one dimension */
    float *sums = list ? r->workspace(r, (size_t)n * sizeof *sums + 1) : NULL;
    if (!sums) return false;
    memcpy(list, (int64_t[]){n, a->vocab, a->vocab, 1}, 4 * sizeof *list);
    const gm_reduce_args sum = {.out = sums,
                                .in = a->logits,
                                .op = GM_R_LOGSUMEXP,
                                .in_type = GM_T_F32,
                                .out_type = GM_T_F32,
                                .n_kept = 1,
                                .kept_shape = list,
                                .kept_strides = list + 1,
                                .n_reduced = 1,
                                .reduced_shape = list + 2,
                                .reduced_strides = list + 3};
    const gm_arg_reduce_args first = {.out = a->ids,
                                      .in = a->logits,
                                      .max = true,
                                      .type = GM_T_F32,
                                      .n_kept = 1,
                                      .kept_shape = list,
                                      .kept_strides = list + 1,
                                      .length = a->vocab,
                                      .stride = 1};
    if (!cpu_reduce(r, &sum, n) || !cpu_arg_reduce(r, &first, n)) return false;
    r->fence(r);
    const gm_put_best_args put = {*a, sums, n};
    return LAUNCH(r, put_best, &put, n, n, 0);
}
