/* launch_reductions.c - reductions, of which long ones are cut into parts, and work on rows. */
#include <string.h>
#include "cuda/launch.h"

#define SHORT 1024      /* elements of an output that one warp reduces */
#define PART 65536      /* of a part, where an output is cut; a multiple of what a thread reads at once */
#define LEAST_PART 4096 /* where there are few outputs */
#define FILL 1056       /* blocks that keep a large card busy: 8 for each of 132 processors */

typedef struct { int64_t parts, part; } parting;

/* Where parts begin follows from the shape alone. A log-sum's follow from its length alone: a row of logits has the
 * same bits whatever rows are beside it. */
static parting part_of(int64_t outputs, int64_t length, bool alone) {
    int64_t wanted = alone || outputs >= FILL ? blocks_of(length, PART) : FILL / outputs;
    if (!alone && outputs >= FILL) wanted = 1;
    int64_t part = blocks_of(length, wanted > 0 ? wanted : 1);
    if (part < LEAST_PART) part = LEAST_PART;
    part = (part + 255) / 256 * 256;
    return (parting){blocks_of(length, part), part};
}

/* The three kernels of a reduction: rows, columns, parts. */
typedef struct { cuda_kernel rows, columns, parts; } reduction;
static reduction of_floats(cuda_kernel first, int type) {
    const int i = float_index(type);
    return (reduction){(cuda_kernel)(first + 2 * i), (cuda_kernel)(first + 2 * i + 1), (cuda_kernel)(first + 6)};
}
static reduction reduction_of(gm_reduce_op op, int type) {
    if (op == GM_R_ALL || op == GM_R_ANY)
        return (reduction){CUDA_reduce_rows_truth, CUDA_reduce_columns_truth, CUDA_reduce_parts_truth};
    if (type == GM_T_C64)
        return (reduction){CUDA_reduce_rows_complex, CUDA_reduce_columns_complex, CUDA_reduce_parts_complex};
    if (!is_float_type(type)) return (reduction){CUDA_reduce_rows_int, CUDA_reduce_columns_int, CUDA_reduce_parts_int};
    static const cuda_kernel first[GM_R_COUNT] = {[GM_R_SUM] = CUDA_reduce_rows_sum_f16,
                                                  [GM_R_PROD] = CUDA_reduce_rows_prod_f16,
                                                  [GM_R_MAX] = CUDA_reduce_rows_max_f16,
                                                  [GM_R_MIN] = CUDA_reduce_rows_min_f16,
                                                  [GM_R_LOGSUMEXP] = CUDA_reduce_rows_logsumexp_f16};
    return of_floats(first[op], type);
}

/* A reduction and where its parts go. */
typedef struct {
    gm_reduce_args a;
    void *partial;
    parting p;
    bool columns;
} parted_reduce;

static int64_t product_of(int n, const int64_t *shape) {
    int64_t count = 1;
    for (int d = 0; d < n; d++) count *= shape[d];
    return count;
}
/* The outputs are side by side and what is reduced is not. */
static bool is_columns(const gm_reduce_args *a) {
    return a->n_kept > 0 && a->kept_strides[a->n_kept - 1] == 1 && a->kept_shape[a->n_kept - 1] > 1 &&
           (a->n_reduced == 0 || a->reduced_strides[a->n_reduced - 1] != 1);
}

static void launch_reduce(const void *args, int64_t begin, int64_t end) {
    const parted_reduce *job = args;
    const gm_reduce_args *a = &job->a;
    cuda_walk kept, reduced;
    (void)begin;
    if (end == 0 || !walk_of(&kept, a->n_kept, a->kept_shape, 1, &a->kept_strides)) return;
    const bool some = walk_of(&reduced, a->n_reduced, a->reduced_shape, 1, &a->reduced_strides);
    if (!some) reduced.shape.ndim = 1;
    const reduction kernels = reduction_of(a->op, a->in_type);
    const int64_t warps = CUDA_THREADS / 32;
    cuda_reduce_args p = {a->out,
                          a->in,
                          job->partial,
                          (int32_t)a->op,
                          a->in_type,
                          a->out_type,
                          kept.shape,
                          reduced.shape,
                          kept.steps[0],
                          reduced.steps[0],
                          job->p.parts,
                          job->p.part,
                          some && walk_is_line(&reduced, 0)};
    if (job->columns) cuda_start(kernels.columns, blocks_of(kept.shape.count, 32) * p.parts, CUDA_THREADS, 0, &p);
    else if (p.part == 0) cuda_start(kernels.rows, blocks_of(kept.shape.count, warps), CUDA_THREADS, 0, &p);
    else cuda_start(kernels.rows, kept.shape.count * p.parts, CUDA_THREADS, 0, &p);
    const int64_t outputs = p.parts >= CUDA_MANY_PARTS ? kept.shape.count : blocks_of(kept.shape.count, warps);
    if (p.parts > 1) cuda_start(kernels.parts, outputs, CUDA_THREADS, 0, &p);
}

bool cuda_reduce(gm_recorder *r, const gm_reduce_args *a, int64_t n) {
    if (!walk_fits(a->n_kept, a->kept_shape, a->kept_strides) ||
        !walk_fits(a->n_reduced, a->reduced_shape, a->reduced_strides))
        return r->lack(r, MANY_DIMENSIONS);
    const int64_t length = product_of(a->n_reduced, a->reduced_shape);
    parted_reduce job = {*a, NULL, {1, 0}, is_columns(a)};
    if (n && (job.columns || length > SHORT))
        job.p = part_of(job.columns ? blocks_of(n, 32) : n, length, a->op == GM_R_LOGSUMEXP);
    if (job.p.parts > 1 && !(job.partial = r->workspace(r, (size_t)(n * job.p.parts) * 16))) return false;
    return r->launch(r, launch_reduce, &job, sizeof job, n, 0, 0);
}

typedef struct {
    gm_arg_reduce_args a;
    void *partial;
    parting p;
    bool columns;
} parted_arg_reduce;

static void launch_arg_reduce(const void *args, int64_t begin, int64_t end) {
    const parted_arg_reduce *job = args;
    const gm_arg_reduce_args *a = &job->a;
    cuda_walk kept;
    (void)begin;
    if (end == 0 || !walk_of(&kept, a->n_kept, a->kept_shape, 1, &a->kept_strides)) return;
    const cuda_arg_reduce_args p = {a->out,        a->in,     job->partial, a->max,       a->type,    kept.shape,
                                    kept.steps[0], a->length, a->stride,    job->p.parts, job->p.part};
    if (job->columns) cuda_start(CUDA_arg_columns, blocks_of(end, 32) * p.parts, CUDA_THREADS, 0, &p);
    else if (p.part == 0) cuda_start(CUDA_arg_rows, blocks_of(end, CUDA_THREADS / 32), CUDA_THREADS, 0, &p);
    else cuda_start(CUDA_arg_rows, end * p.parts, CUDA_THREADS, 0, &p);
    if (p.parts > 1) cuda_start(CUDA_arg_parts, blocks_of(end, CUDA_THREADS), CUDA_THREADS, 0, &p);
}

bool cuda_arg_reduce(gm_recorder *r, const gm_arg_reduce_args *a, int64_t n) {
    if (!walk_fits(a->n_kept, a->kept_shape, a->kept_strides)) return r->lack(r, MANY_DIMENSIONS);
    parted_arg_reduce job = {*a, NULL, {1, 0}, a->stride != 1 && a->n_kept && a->kept_strides[a->n_kept - 1] == 1};
    if (n && (job.columns || a->length > SHORT)) job.p = part_of(job.columns ? blocks_of(n, 32) : n, a->length, false);
    if (job.p.parts > 1 && !(job.partial = r->workspace(r, (size_t)(n * job.p.parts) * 16))) return false;
    return r->launch(r, launch_arg_reduce, &job, sizeof job, n, 0, 0);
}

/* ---- rows ---- */
/* As many threads as have no more elements than they keep in registers; they follow from the length alone. */
static void start_rows(cuda_kernel first, int type, cuda_rows_args p) {
    const size_t item = (size_t)type_bytes(type);
    const int64_t group = 16 / (int64_t)item, groups = blocks_of(p.dim, group);
    const cuda_kernel kernel = (cuda_kernel)(first + 3 * float_index(type)); /* short rows, others, long ones */
    p.lines = p.dim % group == 0 && p.stride % group == 0 && is_aligned(p.x, 16) && is_aligned(p.out, 16) &&
              is_aligned(p.weight, 16) && is_aligned(p.bias, 16);
    if (p.dim <= 32 * CUDA_ROW_SHORT) {
        cuda_start(kernel, blocks_of(p.rows, CUDA_THREADS / 32), CUDA_THREADS, 0, &p);
        return;
    }
    if (p.dim <= CUDA_ROW_THREADS * CUDA_ROW_EACH) {
        const int threads = (int)blocks_of(p.dim, 32 * CUDA_ROW_EACH) * 32;
        cuda_start((cuda_kernel)(kernel + 1), p.rows, threads, 0, &p);
        return;
    }
    const int64_t in_registers = CUDA_ROW_THREADS * CUDA_ROW_LONG / group;
    int64_t in_memory = groups > in_registers ? groups - in_registers : 0;
    if (in_memory * group > CUDA_ROW_MEMORY) in_memory = CUDA_ROW_MEMORY / group;
    p.kept_groups = in_registers + in_memory;
    cuda_start((cuda_kernel)(kernel + 2), p.rows, CUDA_ROW_THREADS, (size_t)(in_memory * group) * sizeof(float), &p);
}

void cuda_start_softmax(const gm_softmax_args *a, int64_t rows) {
    if (a->type == GM_T_F64) cuda_refuse("softmax of float64");
    else if (a->dim > 0)
        start_rows(CUDA_softmax_f16_short, a->type,
                   (cuda_rows_args){.out = a->out, .x = a->in, .rows = rows, .dim = a->dim, .stride = a->in_stride});
}
static void launch_softmax(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start_softmax(args, end);
}
CUDA_CONTRACT(softmax)

static void launch_rms_norm(const void *args, int64_t begin, int64_t end) {
    const gm_rms_norm_args *a = args;
    (void)begin;
    start_rows(CUDA_rms_norm_f16_short, a->type,
               (cuda_rows_args){a->out, a->x, a->weight, NULL, end, a->dim, a->x_stride, 0, a->eps, false});
}
CUDA_CONTRACT(rms_norm)

static void launch_layer_norm(const void *args, int64_t begin, int64_t end) {
    const gm_layer_norm_args *a = args;
    (void)begin;
    start_rows(CUDA_layer_norm_f16_short, a->type,
               (cuda_rows_args){a->out, a->x, a->weight, a->bias, end, a->dim, a->x_stride, 0, a->eps, false});
}
CUDA_CONTRACT(layer_norm)

static void launch_glu(const void *args, int64_t begin, int64_t end) {
    const gm_glu_args *a = args;
    const cuda_glu_args p = {a->out,       a->gate,          a->up,    end,     a->dim, a->gate_stride,
                             a->up_stride, (int32_t)a->kind, a->alpha, a->limit};
    (void)begin;
    cuda_start(CUDA_glu, blocks_of(end * a->dim, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(glu)
