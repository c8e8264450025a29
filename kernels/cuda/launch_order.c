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

/* Rows of floats, forwards, which one kernel goes through once. */
static bool are_lines(const gm_scan_args *a) { return a->inner == 1 && is_float_type(a->type) && !a->reverse; }
/* Chunks of a group: about as many as there are groups. */
static int64_t group_of(int64_t chunks) {
    int64_t group = 1;
    while (group * group < chunks) group *= 2;
    return group;
}
static int64_t line_words(int64_t rows, int64_t chunks) {
    return CUDA_LINE_WORDS * rows * (chunks + blocks_of(chunks, group_of(chunks)));
}
static void start_scan_lines(cuda_kernel rows, cuda_scan_args *p) {
    const size_t shared = (size_t)(p->chunk * type_bytes(p->type) + CUDA_THREADS * 16);
    p->group = group_of(p->chunks);
    if (p->chunks > 1) {
        const cuda_arange_args zeros = {p->carries, GM_T_U64, line_words(p->rows, p->chunks), 0, 0};
        cuda_start(CUDA_arange, blocks_of(zeros.count, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &zeros);
    }
    cuda_start((cuda_kernel)(rows + 3 + float_index(p->type)), p->rows * p->chunks, CUDA_THREADS, shared, p);
}
static void launch_scan(const void *args, int64_t begin, int64_t end) {
    const scan_job *job = args;
    const gm_scan_args *a = &job->a;
    (void)begin;
    if (end == 0 || a->length == 0 || a->inner == 0) return;
    const cuda_kernel rows = scan_kernel(a->op, a->type), columns = (cuda_kernel)(rows + 1);
    cuda_scan_args p = {a->out, a->in, job->carries, a->op,    a->type,    a->reverse,  a->exclusive,
                        false,  end,   a->length,    a->inner, job->chunk, job->chunks, 0};
    if (are_lines(a)) {
        start_scan_lines(rows, &p);
        return;
    }
    const cuda_kernel kernel = a->inner == 1 ? rows : columns;
    const int64_t lines = end * a->inner * job->chunks;
    const int64_t blocks = a->inner == 1 ? lines : blocks_of(lines, CUDA_THREADS), item = type_bytes(a->type);
    const size_t shared = a->inner == 1 ? (size_t)(CUDA_THREADS * (CUDA_SCAN_EACH * item + CUDA_SCAN_GAP(item))) : 0;
    if (job->chunks > 1) {
        p.totals = true;
        cuda_start(kernel, blocks, CUDA_THREADS, shared, &p);
        p.totals = false;
        cuda_start((cuda_kernel)(rows + 2), end * a->inner, CUDA_THREADS, 0, &p);
    }
    cuda_start(kernel, blocks, CUDA_THREADS, shared, &p);
}

#define COLUMN_CHUNK 1024 /* elements that one thread goes through */

bool cuda_scan(gm_recorder *r, const gm_scan_args *a, int64_t n) {
    const bool lines = are_lines(a), is_long = lines && a->length > CUDA_SCAN_CHUNK;
    scan_job job = {*a, NULL, is_long ? CUDA_LINE_CHUNK : a->inner == 1 ? CUDA_SCAN_CHUNK : COLUMN_CHUNK, 1};
    job.chunks = blocks_of(a->length, job.chunk);
    if (job.chunks > 1 && n) {
        const int64_t words = lines ? line_words(n, job.chunks) : 2 * n * a->inner * job.chunks;
        job.carries = r->workspace(r, (size_t)words * sizeof(uint64_t));
        if (!job.carries) return false;
    }
    return r->launch(r, launch_scan, &job, sizeof job, n, 0, 0);
}

/* ---- orders ---- */
bool order_rooms(gm_recorder *r, int64_t rows, int64_t length, int key_bytes, order_room *room) {
    const size_t n = (size_t)(rows * length) + 1, digits = (size_t)rows * CUDA_SORT_DIGITS;
    room->keys = r->workspace(r, n * (size_t)key_bytes);
    room->other_keys = r->workspace(r, n * (size_t)key_bytes);
    room->indices = r->workspace(r, n * sizeof *room->indices);
    room->other_indices = r->workspace(r, n * sizeof *room->indices);
    room->counts = r->workspace(r, digits * (size_t)blocks_of(length, CUDA_SORT_CHUNK) * sizeof *room->counts + 1);
    room->totals = r->workspace(r, digits * sizeof *room->totals + 1);
    return room->keys && room->other_keys && room->indices && room->other_indices && room->counts && room->totals;
}
void order_in(cuda_sort_args *p, const order_room *room) {
    p->keys = room->keys;
    p->other_keys = room->other_keys;
    p->indices = room->indices;
    p->other_indices = room->other_indices;
    p->counts = room->counts;
    p->totals = room->totals;
}
static void order_digit(cuda_sort_args *p, int key_bytes) {
    const int64_t blocks = p->rows * p->chunks, lines = p->chunks <= CUDA_SORT_FEW_CHUNKS ? 1 : CUDA_SORT_DIGITS;
    const size_t shared = (CUDA_SORT_THREADS / 32) * CUDA_SORT_DIGITS * sizeof(uint32_t);
    cuda_start(key_bytes == 4 ? CUDA_sort_count_4 : CUDA_sort_count_8, blocks, CUDA_SORT_THREADS, 0, p);
    cuda_start(CUDA_sort_places, p->rows * lines, CUDA_THREADS, 0, p);
    const cuda_kernel move = key_bytes == 8    ? CUDA_sort_move_8
                             : p->with_indices ? CUDA_sort_move_4
                                               : CUDA_sort_move_keys;
    cuda_start(move, blocks, CUDA_SORT_THREADS, shared + (size_t)key_bytes * CUDA_SORT_CHUNK, p);
    void *keys = p->keys;
    uint32_t *indices = p->indices;
    p->keys = p->other_keys;
    p->indices = p->other_indices;
    p->other_keys = keys;
    p->other_indices = indices;
    p->in = NULL;
    p->first = false;
}
/* to_out: the last pass writes what the sort is for. */
static void order_digits(cuda_sort_args *p, int key_bytes, int bytes, bool to_out) {
    p->chunks = blocks_of(p->length, CUDA_SORT_CHUNK);
    p->first = true;
    for (p->shift = 0; p->shift < 8 * bytes; p->shift += 8) {
        p->last = to_out && p->shift + 8 >= 8 * bytes;
        order_digit(p, key_bytes);
    }
}
static void order_short(const cuda_sort_args *p, int key_bytes) {
    int64_t size = 2;
    while (size < p->length) size *= 2;
    cuda_start(key_bytes == 4 ? CUDA_sort_short_4 : CUDA_sort_short_8, p->rows, CUDA_THREADS, (size_t)size * 12, p);
}
void order_keys(cuda_sort_args *p, int key_bytes, int bytes) {
    p->k = -1;
    p->with_indices = true;
    if (p->length <= CUDA_SORT_SHORT) order_short(p, key_bytes);
    else order_digits(p, key_bytes, bytes, false);
}

/* A sort, an argsort, a partition, the end of one. */
typedef struct {
    cuda_sort_args p;
    order_room room;
} order_job;

/* Of the elements' types: keys have as many bits as these. */
static int key_bytes_of(int type) { return type_bytes(type) <= 4 ? 4 : 8; }

static void launch_order(const void *args, int64_t begin, int64_t end) {
    const order_job *job = args;
    cuda_sort_args p = job->p;
    const int bytes = (int)type_bytes(p.type), key_bytes = key_bytes_of(p.type);
    (void)begin;
    p.rows = end;
    p.values = p.in;
    if (end == 0 || p.length == 0) return;
    if (p.length <= CUDA_SORT_SHORT) {
        order_short(&p, key_bytes);
        return;
    }
    order_in(&p, &job->room);
    p.with_indices = p.take_indices || p.one_zero || bytes > 4; /* keys do not give elements back */
    order_digits(&p, key_bytes, bytes, p.k < 0);
    if (p.k < 0) return;
    p.in = p.values; /* once more, as classes; the keys in order stay where they are */
    p.kth = p.keys;
    order_digits(&p, key_bytes, 1, true);
}
static bool record_order(gm_recorder *r, cuda_sort_args p, int64_t rows) {
    order_job job = {p, {0}};
    if (p.length > CUDA_SORT_SHORT && rows && !order_rooms(r, rows, p.length, key_bytes_of(p.type), &job.room))
        return false;
    return r->launch(r, launch_order, &job, sizeof job, rows, 0, 0);
}

/* Where elements lie while their memory is written: there, or, in long rows whose keys do not give them back, or whose
 * only pass reads them while it writes, a copy. */
static const void *kept_elements(gm_recorder *r, const gm_sort_args *a, int64_t n) {
    const int64_t bytes = type_bytes(a->type);
    if (a->in != a->out || a->indices || a->length <= CUDA_SORT_SHORT || (bytes > 1 && bytes <= 4)) return a->in;
    int64_t *shape = r->arguments(r, 2 * sizeof *shape);
    void *kept = r->workspace(r, (size_t)(n * a->length * type_bytes(a->type)));
    if (!shape || !kept) return NULL;
    shape[0] = n * a->length;
    shape[1] = 1;
    const gm_copy_args copy = {kept, a->in, a->type, a->type, 1, shape, shape + 1, shape + 1};
    return cuda_copy(r, &copy, shape[0]) ? kept : NULL;
}
bool cuda_sort(gm_recorder *r, const gm_sort_args *a, int64_t n) {
    const void *in = kept_elements(r, a, n);
    if (!in) return false;
    return record_order(r,
                        (cuda_sort_args){.out = a->out,
                                         .in = in,
                                         .type = a->type,
                                         .take_indices = a->indices,
                                         .one_zero = a->indices,
                                         .length = a->length,
                                         .k = -1,
                                         .kept = a->length},
                        n);
}
bool cuda_partition(gm_recorder *r, const gm_partition_args *a, int64_t n) {
    return record_order(r,
                        (cuda_sort_args){.out = a->out,
                                         .in = a->in,
                                         .type = a->type,
                                         .take_indices = a->indices,
                                         .one_zero = true,
                                         .length = a->length,
                                         .k = a->k,
                                         .kept = a->length},
                        n);
}
bool cuda_topk(gm_recorder *r, const gm_topk_args *a, int64_t n) {
    return record_order(r,
                        (cuda_sort_args){.out = a->out,
                                         .in = a->in,
                                         .type = a->type,
                                         .one_zero = true,
                                         .length = a->length,
                                         .k = a->length - a->k,
                                         .kept = a->k},
                        n);
}
bool cuda_word_order(gm_recorder *r, const gm_word_order_args *a, int64_t n) {
    return record_order(
        r,
        (cuda_sort_args){
            .out = a->out, .in = a->in, .type = GM_T_U32, .take_indices = true, .length = a->n, .k = -1, .kept = a->n},
        n);
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
