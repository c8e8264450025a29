/* launch_index.c - positions, take, scatter. */
#include <string.h>
#include "cuda/order.h"

static void launch_positions(const void *args, int64_t begin, int64_t end) {
    const gm_positions_args *a = args;
    (void)begin;
    for (int k = 0; k < a->n_indices && end; k++) {
        const gm_positions_index *x = &a->indices[k];
        cuda_walk w;
        if (!walk_of(&w, a->ndim, a->shape, 1, &x->strides)) return;
        const cuda_positions_args p = {a->out,  x->data,  x->type, k == 0,    x->size,
                                       x->step, x->fault, w.shape, w.steps[0]};
        cuda_start(CUDA_positions, blocks_of(end, CUDA_THREADS), CUDA_THREADS, 0, &p);
    }
}
bool cuda_positions(gm_recorder *r, const gm_positions_args *a, int64_t n) {
    for (int k = 0; k < a->n_indices; k++)
        if (!walk_fits(a->ndim, a->shape, a->indices[k].strides)) return r->lack(r, MANY_DIMENSIONS);
    return r->launch(r, launch_positions, a, sizeof *a, n, 0, 0);
}

static void index_params(const gm_index_args *a, cuda_index_args *p) {
    *p = (cuda_index_args){.out = a->out,
                           .in = a->in,
                           .index = a->index,
                           .type = a->type,
                           .in_type = a->in_type,
                           .index_type = a->index_type,
                           .mode = a->mode,
                           .size = a->size,
                           .step = a->step,
                           .fault = a->fault,
                           .count = a->count,
                           .dense_step = a->dense_step,
                           .index_step = a->index_step,
                           .run = a->run,
                           .sparse_run = a->sparse_run,
                           .dense_run = a->dense_run,
                           .index_run = a->index_run};
    p->lead.ndim = a->ndim ? a->ndim : 1;
    p->lead.shape[0] = p->lead.count = 1;
    for (int d = 0; d < a->ndim; d++) {
        p->lead.count *= p->lead.shape[d] = a->shape[d];
        p->sparse_steps.at[d] = a->sparse_strides[d];
        p->dense_steps.at[d] = a->dense_strides[d];
        p->index_steps.at[d] = a->index_strides[d];
    }
}

#define WARP_GROUPS 128 /* of 16 bytes, that a warp takes: index.cu */

/* Whole lines of 16 bytes, where all that is taken is made of them: then these are the elements. */
static bool take_lines(const gm_take_args *a, cuda_index_args *p) {
    const int64_t each = 16 / type_bytes(a->type);
    bool fits = !a->index_run && a->sparse_run == 1 && a->size >= 0 && a->run % each == 0 && a->step % each == 0 &&
                a->dense_step % each == 0 && is_aligned(a->in, 16) && is_aligned(a->out, 16);
    for (int d = 0; d < a->ndim; d++)
        fits = fits && a->sparse_strides[d] % each == 0 && a->dense_strides[d] % each == 0;
    if (!fits) return false;
    p->run /= each;
    p->step /= each;
    p->dense_step /= each;
    for (int d = 0; d < a->ndim; d++) {
        p->sparse_steps.at[d] /= each;
        p->dense_steps.at[d] /= each;
    }
    return true;
}
static void launch_take(const void *args, int64_t begin, int64_t end) {
    const gm_take_args *a = args;
    cuda_index_args p;
    (void)begin;
    if (end == 0 || a->run == 0) return;
    index_params(a, &p);
    const cuda_kernel kernel = (cuda_kernel)(CUDA_take_1 + size_index(type_bytes(a->type)));
    const bool lines = take_lines(a, &p);
    if (lines && p.run >= WARP_GROUPS) {
        cuda_start(CUDA_take_rows, blocks_of(end * blocks_of(p.run, WARP_GROUPS), CUDA_THREADS / 32), CUDA_THREADS, 0,
                   &p);
        return;
    }
    cuda_start(lines ? CUDA_take_16 : kernel, blocks_of(end * p.run, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT_OF(take, a->ndim)

typedef struct {
    gm_scatter_args a;
    order_room room;
    uint32_t *starts;
    int64_t lists, limit; /* limit: above all keys */
} scatter_job;

static void launch_scatter(const void *args, int64_t begin, int64_t end) {
    const scatter_job *job = args;
    const gm_scatter_args *a = &job->a;
    cuda_index_args p;
    (void)begin;
    if (end == 0 || a->count == 0) return;
    index_params(a, &p);
    cuda_sort_args order = {.rows = job->lists, .length = a->count};
    const int64_t items = job->lists * a->count, blocks = blocks_of(items, CUDA_THREADS);
    int bytes = 1;
    while (bytes < 8 && job->limit >> (8 * bytes)) bytes++;
    order_in(&order, &job->room);
    p.keys = order.keys;
    p.limit = (uint64_t)job->limit;
    p.wide = bytes > 4;
    p.starts = job->starts;
    cuda_start(CUDA_scatter_keys, blocks, CUDA_THREADS, 0, &p);
    order_keys(&order, p.wide ? 8 : 4, bytes);
    p.keys = order.keys;
    p.order = order.indices;
    int64_t threads = items;
    if (job->starts) {
        threads = job->lists * job->limit;
        const cuda_arange_args none = {job->starts, GM_T_U32, threads, UINT32_MAX, 0};
        cuda_start(CUDA_arange, blocks_of(threads, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &none);
        cuda_start(CUDA_scatter_starts, blocks, CUDA_THREADS, 0, &p);
    }
    cuda_start(CUDA_scatter, blocks_of(threads * (a->index_run ? 1 : a->run), CUDA_THREADS), CUDA_THREADS, 0, &p);
}

/* ---- sums of many float32 to few places ---- */
#define FEW_PLACES 65536
#define MANY_SUMS (1 << 18)
#define MOST_SUMS (1 << 24) /* that the cells of exact.cuh hold: what is more is added later */
#define MOST_WIDTH 32768    /* places that a block has on cards with memory for them */
#define LEAST_WIDTH 16384   /* on others */
#define LEAST_SEGMENT (4 * CUDA_SUMS_BATCH)
#define MOST_COPIES 32
#define UNITS_PLACES 2048 /* up to which there is room for several units */
typedef struct {
    gm_scatter_args a;
    int64_t *sums, *cells;
} sums_job;

static bool is_sums(const gm_scatter_args *a, int64_t n) {
    return a->mode == GM_S_ADD && a->type == GM_T_F32 && a->in_type == GM_T_F32 && n == 1 && a->run == 1 &&
           !a->index_run && a->size > 0 && a->size <= FEW_PLACES && a->count >= MANY_SUMS;
}
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
/* Of `count` elements, where blocks have `width` places; each has a block for each part of the places. */
static int64_t segments_of(int64_t size, int64_t count, int64_t width) {
    return least(TILED_FILL / blocks_of(size, width), blocks_of(count, LEAST_SEGMENT));
}
static size_t sums_memory(int64_t width) { return (size_t)(width + width / 2) * sizeof(uint32_t); }
/* Adds the elements that p has, of which the cells hold all. */
static void add_sums(cuda_index_args *p) {
    const int64_t cells = CUDA_SUM_CELLS * p->size;
    const cuda_arange_args zeros = {p->cells, GM_T_I64, cells, 0, 0};
    p->segment = blocks_of(p->count, segments_of(p->size, p->count, p->width));
    p->segments = blocks_of(p->count, p->segment);
    cuda_start(CUDA_arange, blocks_of(cells, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &zeros);
    cuda_start(CUDA_scatter_sums, p->segments * p->parts, CUDA_SUMS_THREADS, sums_memory(p->width), p);
    cuda_start(CUDA_scatter_join, blocks_of(p->size, CUDA_THREADS), CUDA_THREADS, 0, p);
}
static void launch_sums(const void *args, int64_t begin, int64_t end) {
    const sums_job *job = args;
    const int64_t count = job->a.count, size = job->a.size;
    cuda_index_args p;
    (void)begin, (void)end;
    index_params(&job->a, &p);
    p.width = sums_memory(MOST_WIDTH) <= cuda_block_memory() ? MOST_WIDTH : LEAST_WIDTH;
    p.parts = (int32_t)blocks_of(size, p.width);
    p.places = (int32_t)blocks_of(size, p.parts);
    p.lines = p.index_step == 1 && p.dense_step == 1 &&
              (p.index_type == GM_T_I32 || p.index_type == GM_T_U32 || p.index_type == GM_T_I64);
    p.units = p.lines && p.places <= UNITS_PLACES ? CUDA_SUMS_UNITS : 1;
    p.copies = (int32_t)least(p.width / (p.units * p.places), MOST_COPIES);
    p.sums = job->sums;
    p.cells = job->cells;
    for (int64_t first = 0; first < count; first += MOST_SUMS) {
        p.in = (const float *)job->a.in + first * p.dense_step;
        p.index = (const char *)job->a.index + first * p.index_step * type_bytes(p.index_type);
        p.count = least(count - first, MOST_SUMS);
        add_sums(&p);
    }
}
static bool record_sums(gm_recorder *r, const gm_scatter_args *a) {
    sums_job job = {.a = *a};
    const int64_t segments = segments_of(a->size, least(a->count, MOST_SUMS), MOST_WIDTH);
    job.sums = r->workspace(r, (size_t)(segments * a->size) * sizeof *job.sums);
    job.cells = r->workspace(r, (size_t)(CUDA_SUM_CELLS * a->size + 1) * sizeof *job.cells);
    if (!job.sums || !job.cells) return false;
    return r->launch(r, launch_sums, &job, sizeof job, 1, 0, 0);
}

bool cuda_scatter(gm_recorder *r, const gm_scatter_args *a, int64_t n) {
    scatter_job job = {*a, {0}, NULL, 0, a->size < 0 ? a->span : a->size};
    if (a->ndim > CUDA_DIMS) return r->lack(r, MANY_DIMENSIONS);
    if (is_sums(a, n)) return record_sums(r, a);
    if (n && a->run) job.lists = a->index_run ? n : n / a->run;
    if (job.lists && a->count) {
        if (!order_rooms(r, job.lists, a->count, job.limit >> 32 ? 8 : 4, &job.room)) return false;
        if (job.limit <= a->count) { /* each place has an element or so: a thread for each loses none */
            job.starts = r->workspace(r, (size_t)(job.lists * job.limit) * sizeof *job.starts + 1);
            if (!job.starts) return false;
        }
    }
    return r->launch(r, launch_scatter, &job, sizeof job, n, 0, 0);
}
