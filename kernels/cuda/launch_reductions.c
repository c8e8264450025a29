/* launch_reductions.c - reductions, of which long ones are cut into parts, and work on rows. */
#include <string.h>
#include "cuda/best_rows.h"
#include "cuda/launch.h"

#define SHORT 1024      /* elements of an output that one warp reduces */
#define PART 65536      /* of a part, where an output is cut; a multiple of what a thread reads at once */
#define LEAST_PART 4096 /* where there are few outputs */
#define LEAST_LINES 256 /* of columns */
#define FILL 1056       /* blocks that keep a large card busy: 8 for each of 132 processors */

typedef struct { int64_t parts, part; } split;

/* Where parts begin follows from the shape alone. A log-sum's follow from its length alone: a row of logits has the
 * same bits whatever rows are beside it. */
static split split_of(int64_t outputs, int64_t length, int64_t least, bool alone) {
    int64_t wanted = alone || outputs >= FILL ? blocks_of(length, PART) : FILL / outputs;
    if (!alone && outputs >= FILL) wanted = 1;
    int64_t part = blocks_of(length, wanted > 0 ? wanted : 1);
    if (part < least) part = least;
    part = (part + 255) / 256 * 256;
    return (split){blocks_of(length, part), part};
}

/* The kernels of a reduction: rows, columns, columns in groups of 16 bytes, or the same again, parts. */
typedef struct { cuda_kernel rows, columns, wide, parts; } reduction;
static reduction of_floats(cuda_kernel first, int type) {
    const int i = 3 * float_index(type);
    return (reduction){(cuda_kernel)(first + i), (cuda_kernel)(first + i + 1), (cuda_kernel)(first + i + 2),
                       (cuda_kernel)(first + 9)};
}
static reduction of_others(cuda_kernel rows) {
    return (reduction){rows, (cuda_kernel)(rows + 1), (cuda_kernel)(rows + 1), (cuda_kernel)(rows + 2)};
}
static reduction reduction_of(gm_reduce_op op, int type) {
    if (op == GM_R_ALL || op == GM_R_ANY) return of_others(CUDA_reduce_rows_truth);
    if (type == GM_T_C64) return of_others(CUDA_reduce_rows_complex);
    if (!is_float_type(type)) return of_others(CUDA_reduce_rows_int);
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
    split split;
    bool columns;
} split_reduce;

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

/* How many columns a block has where they come in groups; they follow from the type alone. */
static int64_t column_block(int type) { return is_float_type(type) ? 32 * (16 / type_bytes(type)) : 32; }
/* Whether all columns are groups of 16 bytes, aligned and side by side. */
static bool is_wide(const cuda_reduce_args *p) {
    const int last = p->kept.ndim - 1;
    bool fits = is_float_type(p->in_type) && p->reduced.ndim == 1 && is_aligned(p->in, 16);
    if (!fits) return false;
    const int64_t each = 16 / type_bytes(p->in_type);
    fits = p->kept.shape[last] % each == 0 && p->reduced_steps.at[0] % each == 0;
    for (int d = 0; d < last; d++) fits = fits && p->kept_steps.at[d] % each == 0;
    return fits && p->kept_steps.at[last] == 1;
}
static void launch_reduce(const void *args, int64_t begin, int64_t end) {
    const split_reduce *job = args;
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
                          job->split.parts,
                          job->split.part,
                          some && walk_is_line(&reduced, 0)};
    const bool wide = job->columns && kernels.wide != kernels.columns && is_wide(&p);
    const int64_t width = wide ? column_block(a->in_type) : 32;
    if (job->columns)
        cuda_start(wide ? kernels.wide : kernels.columns, blocks_of(kept.shape.count, width) * p.parts, CUDA_THREADS, 0,
                   &p);
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
    split_reduce job = {*a, NULL, {1, 0}, is_columns(a)};
    if (n && length && (job.columns || length > SHORT))
        job.split = split_of(job.columns ? blocks_of(n, column_block(a->in_type)) : n, length,
                             job.columns ? LEAST_LINES : LEAST_PART, a->op == GM_R_LOGSUMEXP);
    if (job.split.parts > 1 && !(job.partial = r->workspace(r, (size_t)(n * job.split.parts) * 16))) return false;
    return r->launch(r, launch_reduce, &job, sizeof job, n, 0, 0);
}

typedef struct {
    gm_arg_reduce_args a;
    void *partial;
    split split;
    bool columns;
} split_arg_reduce;

static void launch_arg_reduce(const void *args, int64_t begin, int64_t end) {
    const split_arg_reduce *job = args;
    const gm_arg_reduce_args *a = &job->a;
    cuda_walk kept;
    (void)begin;
    if (end == 0 || !walk_of(&kept, a->n_kept, a->kept_shape, 1, &a->kept_strides)) return;
    const cuda_arg_reduce_args p = {a->out,         a->in,         job->partial, a->max,    a->type,
                                    kept.shape,     kept.steps[0], a->length,    a->stride, job->split.parts,
                                    job->split.part};
    const bool lines = is_float_type(a->type) && a->stride == 1;
    const cuda_kernel rows = lines ? (cuda_kernel)(CUDA_arg_lines_f16 + float_index(a->type)) : CUDA_arg_rows;
    if (job->columns) cuda_start(CUDA_arg_columns, blocks_of(end, 32) * p.parts, CUDA_THREADS, 0, &p);
    else if (p.part == 0) cuda_start(rows, blocks_of(end, CUDA_THREADS / 32), CUDA_THREADS, 0, &p);
    else cuda_start(rows, end * p.parts, CUDA_THREADS, 0, &p);
    if (p.parts > 1) cuda_start(CUDA_arg_parts, blocks_of(end, CUDA_THREADS), CUDA_THREADS, 0, &p);
}

bool cuda_arg_reduce(gm_recorder *r, const gm_arg_reduce_args *a, int64_t n) {
    if (!walk_fits(a->n_kept, a->kept_shape, a->kept_strides)) return r->lack(r, MANY_DIMENSIONS);
    split_arg_reduce job = {*a, NULL, {1, 0}, a->stride != 1 && a->n_kept && a->kept_strides[a->n_kept - 1] == 1};
    const bool by_warps = a->length <= SHORT || n >= FILL * (CUDA_THREADS / 32); /* an extreme is the same either way */
    if (n && (job.columns || !by_warps))
        job.split = split_of(job.columns ? blocks_of(n, 32) : n, a->length, LEAST_PART, false);
    if (job.split.parts > 1 && !(job.partial = r->workspace(r, (size_t)(n * job.split.parts) * 16))) return false;
    return r->launch(r, launch_arg_reduce, &job, sizeof job, n, 0, 0);
}

typedef struct {
    gm_best_rows_args to;
    cuda_best *partial;
} best_job;
static int64_t best_parts(const gm_best_rows_args *a) { return blocks_of(a->vocab, CUDA_BEST_PART); }
static void launch_best_rows(const void *args, int64_t begin, int64_t end) {
    const best_job *job = args;
    const cuda_best_rows_args p = {job->to, job->partial, end, best_parts(&job->to),
                                   job->to.vocab % 4 == 0 && is_aligned(job->to.logits, 16)};
    (void)begin;
    cuda_start(CUDA_best_parts, end * p.parts, CUDA_THREADS, 0, &p);
    cuda_start(CUDA_best_rows, blocks_of(end, CUDA_THREADS / 32), CUDA_THREADS, 0, &p);
}
bool cuda_best_rows(gm_recorder *r, const gm_best_rows_args *a, int64_t n) {
    best_job job = {*a, r->workspace(r, (size_t)(n * best_parts(a)) * sizeof(cuda_best) + 1)};
    return job.partial && r->launch(r, launch_best_rows, &job, sizeof job, n, 0, 0);
}

/* ---- rows ---- */
static bool lies_in_lines(const cuda_rows_args *p, int64_t group) {
    return p->dim % group == 0 && p->stride % group == 0 && is_aligned(p->x, 16) && is_aligned(p->out, 16) &&
           is_aligned(p->weight, 16) && is_aligned(p->bias, 16);
}
/* As many threads as have no more elements than they keep in registers; they follow from the length alone. */
static void start_rows(cuda_kernel first, int type, cuda_rows_args p) {
    const size_t item = (size_t)type_bytes(type);
    const int64_t group = 16 / (int64_t)item, groups = blocks_of(p.dim, group);
    const cuda_kernel kernel = (cuda_kernel)(first + 3 * float_index(type)); /* short rows, others, long ones */
    p.lines = lies_in_lines(&p, group);
    if (p.dim <= 32 * CUDA_ROW_SHORT) {
        cuda_start(kernel, blocks_of(p.rows, CUDA_THREADS / 32), CUDA_THREADS, 0, &p);
        return;
    }
    if (p.dim <= CUDA_ROW_THREADS * CUDA_ROW_EACH(item)) {
        const int threads = (int)blocks_of(p.dim, 32 * CUDA_ROW_EACH(item)) * 32;
        cuda_start((cuda_kernel)(kernel + 1), p.rows, threads, 0, &p);
        return;
    }
    const int64_t in_registers = CUDA_ROW_THREADS * CUDA_ROW_LONG / group;
    int64_t in_memory = groups > in_registers ? groups - in_registers : 0;
    const int64_t most = (int64_t)(cuda_block_memory() / sizeof(float));
    if (in_memory * group > most) in_memory = most / group;
    p.kept_groups = in_registers + in_memory;
    cuda_start((cuda_kernel)(kernel + 2), p.rows, CUDA_ROW_THREADS, (size_t)(in_memory * group) * sizeof(float), &p);
}

/* Rows in lines that a block's registers do not hold, where clusters of blocks can have them: as many blocks as hold
 * them all, and where there are not so many, memory for the rest. */
static void start_cluster_rows(cuda_kernel kernel, int64_t item, cuda_rows_args p) {
    const int64_t group = 16 / item, groups = blocks_of(p.dim, group), kept = CUDA_ROW_CLUSTER / group;
    int blocks = 1;
    while (blocks < CUDA_ROW_BLOCKS && groups > kept * CUDA_ROW_THREADS * blocks) blocks *= 2;
    const int64_t team = CUDA_ROW_THREADS * blocks, most = CUDA_CLUSTER_MEMORY / (CUDA_ROW_THREADS * group);
    int64_t in_memory = blocks_of(groups, team) - kept; /* groups of a thread */
    in_memory = in_memory < 0 ? 0 : in_memory > most ? most : in_memory;
    p.kept_groups = (kept + in_memory) * team;
    const size_t room = (size_t)(CUDA_ROW_JOINED + in_memory * CUDA_ROW_THREADS * group) * sizeof(float);
    cuda_start_clusters(kernel, p.rows * blocks, blocks, CUDA_ROW_THREADS, room, &p);
}

void cuda_start_softmax(const gm_softmax_args *a, int64_t rows) {
    const cuda_rows_args p = {.out = a->out, .x = a->in, .rows = rows, .dim = a->dim, .stride = a->in_stride};
    if (a->type == GM_T_F64) {
        cuda_refuse("softmax of float64");
        return;
    }
    const int64_t item = type_bytes(a->type);
    if (a->dim > CUDA_ROW_THREADS * CUDA_ROW_EACH(item) && cuda_has_wgmma() && lies_in_lines(&p, 16 / item))
        start_cluster_rows((cuda_kernel)(CUDA_softmax_cluster_f16 + float_index(a->type)), item, p);
    else if (a->dim > 0) start_rows(CUDA_softmax_f16_short, a->type, p);
}
static void launch_softmax(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start_softmax(args, end);
}
CUDA_CONTRACT(softmax)

void cuda_start_rms_norm(const gm_rms_norm_args *a, int64_t rows) {
    start_rows(CUDA_rms_norm_f16_short, a->type,
               (cuda_rows_args){a->out, a->x, a->weight, NULL, rows, a->dim, a->x_stride, 0, a->eps, false, false});
}
void cuda_start_rounded_norm(const gm_rms_norm_args *a, int64_t rows) {
    start_rows(CUDA_rms_norm_f16_short, GM_T_F32,
               (cuda_rows_args){.out = a->out,
                                .x = a->x,
                                .weight = a->weight,
                                .rows = rows,
                                .dim = a->dim,
                                .stride = a->x_stride,
                                .eps = a->eps,
                                .rounds = true});
}
static void launch_rms_norm(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start_rms_norm(args, end);
}
CUDA_CONTRACT(rms_norm)

static void launch_layer_norm(const void *args, int64_t begin, int64_t end) {
    const gm_layer_norm_args *a = args;
    (void)begin;
    start_rows(CUDA_layer_norm_f16_short, a->type,
               (cuda_rows_args){a->out, a->x, a->weight, a->bias, end, a->dim, a->x_stride, 0, a->eps, false, false});
}
CUDA_CONTRACT(layer_norm)
