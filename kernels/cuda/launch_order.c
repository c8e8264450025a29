/* launch_order.c - running sums, orders, random numbers. */
#include "cuda/order.h"

/* ---- running sums ---- */
typedef struct {
    gm_scan_args a;
    void *carries;
    int64_t chunk, chunks;
} scan_job;

static cuda_kernel scan_kernel(int op, int type) {
    if (type == GM_T_C64) return CUDA_scan_rows_complex;
    if (!is_float_type(type)) return CUDA_scan_rows_int;
    static const cuda_kernel kernels[GM_R_COUNT] = {[GM_R_SUM] = CUDA_scan_rows_sum,
                                                    [GM_R_PROD] = CUDA_scan_rows_prod,
                                                    [GM_R_MAX] = CUDA_scan_rows_max,
                                                    [GM_R_MIN] = CUDA_scan_rows_min,
                                                    [GM_R_LOGSUMEXP] = CUDA_scan_rows_logsumexp};
    return kernels[op];
}

static void launch_scan(const void *args, int64_t begin, int64_t end) {
    const scan_job *job = args;
    const gm_scan_args *a = &job->a;
    (void)begin;
    if (end == 0 || a->length == 0 || a->inner == 0) return;
    const cuda_kernel rows = scan_kernel(a->op, a->type), columns = (cuda_kernel)(rows + 1);
    cuda_scan_args p = {a->out, a->in, job->carries, a->op, a->type, a->reverse, a->exclusive, false, end, a->length,
                        a->inner, job->chunk, job->chunks};
    const cuda_kernel kernel = a->inner == 1 ? rows : columns;
    const int64_t lines = end * a->inner * job->chunks;
    const int64_t blocks = a->inner == 1 ? lines : blocks_of(lines, CUDA_THREADS);
    if (job->chunks > 1) {
        p.totals = true;
        cuda_start(kernel, blocks, CUDA_THREADS, 0, &p);
        p.totals = false;
        cuda_start((cuda_kernel)(rows + 2), end * a->inner, CUDA_THREADS, 0, &p);
    }
    cuda_start(kernel, blocks, CUDA_THREADS, 0, &p);
}

#define COLUMN_CHUNK 1024 /* elements that one thread goes through */

bool cuda_scan(gm_recorder *r, const gm_scan_args *a, int64_t n) {
    scan_job job = {*a, NULL, a->inner == 1 ? CUDA_SCAN_CHUNK : COLUMN_CHUNK, 1};
    job.chunks = blocks_of(a->length, job.chunk);
    if (job.chunks > 1 && n) {
        job.carries = r->workspace(r, (size_t)(n * a->inner * job.chunks) * 16);
        if (!job.carries) return false;
    }
    return r->launch(r, launch_scan, &job, sizeof job, n, 0, 0);
}

/* ---- orders ---- */
/* Bytes that an order of keys needs: two rooms of keys and of indices, and counts. */
static int64_t counts_bytes(int64_t rows, int64_t length) {
    return rows * 256 * blocks_of(length, CUDA_SORT_CHUNK) * (int64_t)sizeof(uint32_t);
}
bool order_rooms(gm_recorder *r, int64_t rows, int64_t length, order_room *room) {
    const size_t n = (size_t)(rows * length) + 1;
    room->keys = r->workspace(r, n * sizeof *room->keys);
    room->other_keys = r->workspace(r, n * sizeof *room->keys);
    room->indices = r->workspace(r, n * sizeof *room->indices);
    room->other_indices = r->workspace(r, n * sizeof *room->indices);
    room->counts = r->workspace(r, (size_t)counts_bytes(rows, length) + 1);
    return room->keys && room->other_keys && room->indices && room->other_indices && room->counts;
}
static void order_digit(cuda_sort_args *p) {
    const int64_t blocks = p->rows * p->chunks;
    cuda_start(CUDA_sort_count, blocks, CUDA_THREADS, 0, p);
    cuda_start(CUDA_sort_places, p->rows, CUDA_THREADS, 0, p);
    cuda_start(CUDA_sort_move, blocks, CUDA_THREADS, 0, p);
    uint64_t *keys = p->keys;
    uint32_t *indices = p->indices;
    p->keys = p->other_keys;
    p->indices = p->other_indices;
    p->other_keys = keys;
    p->other_indices = indices;
}
void order_keys(cuda_sort_args *p, int bytes) {
    if (p->length <= CUDA_SORT_SHORT) {
        int64_t size = 2;
        while (size < p->length) size *= 2;
        p->k = -1;
        cuda_start(CUDA_sort_short, p->rows, CUDA_THREADS, (size_t)size * 12, p);
        return;
    }
    p->chunks = blocks_of(p->length, CUDA_SORT_CHUNK);
    for (p->shift = 0; p->shift < 8 * bytes; p->shift += 8) order_digit(p);
}

/* A sort, an argsort, a partition, the end of one. */
typedef struct {
    cuda_sort_args p;
    order_room room;
} order_job;

static void launch_order(const void *args, int64_t begin, int64_t end) {
    const order_job *job = args;
    cuda_sort_args p = job->p;
    (void)begin;
    p.rows = end;
    if (end == 0 || p.length == 0) return;
    if (p.length <= CUDA_SORT_SHORT) {
        int64_t size = 2;
        while (size < p.length) size *= 2;
        cuda_start(CUDA_sort_short, p.rows, CUDA_THREADS, (size_t)size * 12, &p);
        return;
    }
    const int64_t blocks = blocks_of(p.rows * p.length, CUDA_THREADS);
    p.keys = job->room.keys;
    p.other_keys = job->room.other_keys;
    p.indices = job->room.indices;
    p.other_indices = job->room.other_indices;
    p.counts = job->room.counts;
    cuda_start(CUDA_sort_keys, blocks, CUDA_THREADS, 0, &p);
    order_keys(&p, (int)type_bytes(p.type));
    if (p.k >= 0) { /* keys in order become the others' room, keys as they come are made again, as classes */
        uint64_t *ordered = p.keys;
        p.keys = p.other_keys;
        p.other_keys = ordered;
        cuda_start(CUDA_sort_classes, blocks, CUDA_THREADS, 0, &p);
        p.shift = 0;
        order_digit(&p);
    }
    cuda_start(CUDA_sort_values, blocks, CUDA_THREADS, 0, &p);
}
static bool record_order(gm_recorder *r, cuda_sort_args p, int64_t rows) {
    order_job job = {p, {0}};
    if (p.length > CUDA_SORT_SHORT && rows && !order_rooms(r, rows, p.length, &job.room)) return false;
    return r->launch(r, launch_order, &job, sizeof job, rows, 0, 0);
}

bool cuda_sort(gm_recorder *r, const gm_sort_args *a, int64_t n) {
    return record_order(r, (cuda_sort_args){.out = a->out, .in = a->in, .type = a->type, .take_indices = a->indices,
                                            .one_zero = a->indices, .length = a->length, .k = -1, .kept = a->length}, n);
}
bool cuda_partition(gm_recorder *r, const gm_partition_args *a, int64_t n) {
    return record_order(r, (cuda_sort_args){.out = a->out, .in = a->in, .type = a->type, .take_indices = a->indices,
                                            .one_zero = true, .length = a->length, .k = a->k, .kept = a->length}, n);
}
bool cuda_topk(gm_recorder *r, const gm_topk_args *a, int64_t n) {
    return record_order(r, (cuda_sort_args){.out = a->out, .in = a->in, .type = a->type, .one_zero = true,
                                            .length = a->length, .k = a->length - a->k, .kept = a->k}, n);
}
bool cuda_word_order(gm_recorder *r, const gm_word_order_args *a, int64_t n) {
    return record_order(r, (cuda_sort_args){.out = a->out, .in = a->in, .type = GM_T_U32, .take_indices = true,
                                            .length = a->n, .k = -1, .kept = a->n}, n);
}

static void launch_search(const void *args, int64_t begin, int64_t end) {
    const gm_search_args *a = args;
    const cuda_search_args p = {a->out, a->sorted, a->values, a->type, a->right, a->length, end};
    (void)begin;
    cuda_start(CUDA_search, blocks_of(end, CUDA_THREADS), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(search)

static void launch_threefry(const void *args, int64_t begin, int64_t end) {
    const gm_threefry_args *a = args;
    const cuda_threefry_args p = {a->out, a->keys, (int32_t)a->kind, a->type, a->words, end, a->factor, a->shift};
    (void)begin;
    cuda_start(CUDA_threefry, blocks_of(end, CUDA_THREADS), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(threefry)
