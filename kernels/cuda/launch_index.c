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
        if (w.outer_ndim) {
            cuda_refuse("indices of more than 8 dimensions");
            return;
        }
        const cuda_positions_args p = {a->out, x->data, x->type, k == 0, x->size, x->step, x->fault, w.shape, w.steps[0]};
        cuda_start(CUDA_positions, blocks_of(end, CUDA_THREADS), CUDA_THREADS, 0, &p);
    }
}
CUDA_CONTRACT(positions)

static bool index_params(const gm_index_args *a, cuda_index_args *p) {
    if (a->ndim > CUDA_DIMS) {
        cuda_refuse("an index of more than 8 dimensions");
        return false;
    }
    *p = (cuda_index_args){.out = a->out, .in = a->in, .index = a->index, .type = a->type, .in_type = a->in_type,
                           .index_type = a->index_type, .mode = a->mode, .size = a->size, .step = a->step,
                           .fault = a->fault, .count = a->count, .dense_step = a->dense_step,
                           .index_step = a->index_step, .run = a->run, .sparse_run = a->sparse_run,
                           .dense_run = a->dense_run, .index_run = a->index_run};
    p->lead.ndim = a->ndim ? a->ndim : 1;
    p->lead.shape[0] = p->lead.count = 1;
    for (int d = 0; d < a->ndim; d++) {
        p->lead.count *= p->lead.shape[d] = a->shape[d];
        p->sparse_steps.at[d] = a->sparse_strides[d];
        p->dense_steps.at[d] = a->dense_strides[d];
        p->index_steps.at[d] = a->index_strides[d];
    }
    return true;
}

static void launch_take(const void *args, int64_t begin, int64_t end) {
    const gm_take_args *a = args;
    cuda_index_args p;
    (void)begin;
    if (end == 0 || a->run == 0 || !index_params(a, &p)) return;
    cuda_start((cuda_kernel)(CUDA_take_1 + size_index(type_bytes(a->type))),
               blocks_of(end * a->run, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(take)

typedef struct {
    gm_scatter_args a;
    order_room room;
    int64_t lists, limit; /* limit: above all positions */
} scatter_job;

static void launch_scatter(const void *args, int64_t begin, int64_t end) {
    const scatter_job *job = args;
    const gm_scatter_args *a = &job->a;
    cuda_index_args p;
    (void)begin;
    if (end == 0 || a->count == 0 || !index_params(a, &p)) return;
    cuda_sort_args order = {.keys = job->room.keys, .other_keys = job->room.other_keys, .indices = job->room.indices,
                            .other_indices = job->room.other_indices, .counts = job->room.counts, .rows = job->lists,
                            .length = a->count, .k = -1};
    const int64_t blocks = blocks_of(job->lists * a->count, CUDA_THREADS);
    int bytes = 1;
    while (bytes < 8 && job->limit >> (8 * bytes)) bytes++;
    p.keys = order.keys;
    p.limit = (uint64_t)job->limit;
    cuda_start(CUDA_scatter_keys, blocks, CUDA_THREADS, 0, &p);
    if (a->count > CUDA_SORT_SHORT) cuda_start(CUDA_sort_keys, blocks, CUDA_THREADS, 0, &order);
    order_keys(&order, bytes);
    p.keys = order.keys;
    p.order = order.indices;
    cuda_start(CUDA_scatter, blocks_of(job->lists * a->count * (a->index_run ? 1 : a->run), CUDA_THREADS), CUDA_THREADS,
               0, &p);
}

bool cuda_scatter(gm_recorder *r, const gm_scatter_args *a, int64_t n) {
    scatter_job job = {*a, {0}, 0, a->size < 0 ? a->span : a->size * a->step};
    if (n && a->run) job.lists = a->index_run ? n : n / a->run;
    if (job.lists && a->count && !order_rooms(r, job.lists, a->count, &job.room)) return false;
    return r->launch(r, launch_scatter, &job, sizeof job, n, 0, 0);
}
