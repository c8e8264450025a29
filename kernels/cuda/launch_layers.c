/* launch_layers.c - 8-bit floats, MLX's quantised matrices, rotary positions, recurrences, convolutions, attention. */
#include "cuda/launch.h"

static int64_t by_threads(int64_t n) { return blocks_of(n, CUDA_THREADS); }
static int64_t by_warps(int64_t n) { return blocks_of(n, CUDA_THREADS / 32); }

static void launch_fp8_encode(const void *args, int64_t begin, int64_t end) {
    const gm_fp8_encode_args *a = args;
    const cuda_fp8_args p = {a->out, a->in, a->type, end};
    (void)begin;
    cuda_start(CUDA_fp8_encode, by_threads(end), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(fp8_encode)
static void launch_fp8_decode(const void *args, int64_t begin, int64_t end) {
    const gm_fp8_decode_args *a = args;
    const cuda_fp8_args p = {a->out, a->in, a->type, end};
    (void)begin;
    cuda_start(CUDA_fp8_decode, by_threads(end), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(fp8_decode)

/* ---- MLX's quantised matrices ---- */
static cuda_group_args group_of(const gm_grouped *w) {
    return (cuda_group_args){.weight = w->weight,
                             .scales = w->scales,
                             .biases = w->biases,
                             .mode = w->mode,
                             .bits = w->bits,
                             .group = w->group,
                             .scale_type = w->scale_type,
                             .matrices = w->matrices,
                             .rows = w->rows,
                             .k = w->k};
}
static void launch_group_quantize(const void *args, int64_t begin, int64_t end) {
    const cuda_group_quantize_args p = {*(const gm_group_quantize_args *)args, end};
    (void)begin;
    cuda_start(CUDA_group_quantize, by_warps(end), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(group_quantize)
static void launch_group_dequantize(const void *args, int64_t begin, int64_t end) {
    const gm_group_dequantize_args *a = args;
    cuda_group_args p = group_of(&a->from);
    (void)begin;
    p.out = a->out;
    p.global = a->global;
    p.count = end;
    cuda_start(CUDA_group_dequantize, by_threads(end * p.group), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(group_dequantize)
static cuda_group_args product_of(const gm_quantized_matmul_args *a, int64_t items) {
    cuda_group_args p = group_of(&a->w);
    p.out = a->out;
    p.x = a->x;
    p.x_type = a->x_type;
    p.out_type = a->out_type;
    p.x_count = a->x_count;
    p.tokens = a->tokens;
    p.items = items;
    p.x_index = a->x_index;
    p.matrix_index = a->matrix_index;
    return p;
}
#define QMM_ROWS 16     /* of a block of quantized_matmul_4, and of a span of quantized_halves */
#define QMM_STRETCH 128 /* bytes of a row that a warp takes at once */
#define MOST_TURNS 8
/* A row of x as float32 and the sums of each 32, both to a multiple of 1024 elements. */
static size_t qmm_shared(int64_t k) { return (size_t)blocks_of(k, 1024) * (1024 + 32) * sizeof(float); }
/* Blocks of a row of out: those whose spans the card makes soonest, in a few turns of as many blocks as it runs at
 * once, two on a processor; to begin takes a block as long as a span. */
static int64_t halves_blocks(int64_t rows_of_out, int64_t spans) {
    const int64_t at_once = 2 * cuda_processors();
    int64_t best = 1, least = INT64_MAX;
    for (int64_t turns = 1; turns <= MOST_TURNS && rows_of_out > 0 && spans > 0; turns++) {
        const int64_t fill = turns * at_once / rows_of_out, most = fill < 1 ? 1 : fill < spans ? fill : spans;
        const int64_t each = blocks_of(spans, most), blocks = blocks_of(spans, each);
        const int64_t steps = blocks_of(blocks * rows_of_out, at_once) * (each + 1);
        if (steps < least) best = blocks, least = steps;
    }
    return best;
}
/* What quantized_halves needs of a block's memory: stretches ahead, x with the sums of its runs, and scales of so many
 * spans. */
static size_t halves_shared(const cuda_group_args *p, int64_t spans) {
    const int64_t values = QMM_STRETCH * 8 / p->bits, stretches = blocks_of(p->k, values);
    return (size_t)(CUDA_QMM_PARTS * CUDA_QMM_AHEAD * QMM_ROWS * QMM_STRETCH +
                    (stretches < CUDA_QMM_PARTS ? CUDA_QMM_PARTS : stretches) * (values * 2 + 32) +
                    spans * (p->k / p->group) * QMM_ROWS * (p->mode == GM_AFFINE ? 4 : 1));
}
/* Which kernel of few rows there is, where a block's memory holds what it needs. */
static bool is_of_halves(const cuda_group_args *p) {
    const bool affine = p->mode == GM_AFFINE; /* sixteens of bytes of scales are of one matrix, each */
    const bool whole = p->matrices == 1 || p->rows * (p->k / p->group) % (affine ? 8 : 16) == 0;
    const bool coding = affine ? p->group % 32 == 0 && (p->bits == 4 || p->bits == 8) && p->x_type == p->scale_type
                               : p->mode == GM_MXFP4;
    return p->x_type != GM_T_F32 && coding && whole && is_aligned(p->weight, 16) && is_aligned(p->x, 16) &&
           is_aligned(p->scales, 16) && (!affine || is_aligned(p->biases, 16));
}
static bool is_of_nibbles(const cuda_group_args *p) {
    return p->mode == GM_AFFINE && p->bits == 4 && p->group % 32 == 0 && is_aligned(p->weight, 16);
}
/* What quantized_halves needs to know, and of a block's memory: where the scales of several spans have no room a block
 * makes one. */
static bool plan_halves(cuda_group_args *p, size_t *shared) {
    if (!is_of_halves(p)) return false;
    const int64_t spans = blocks_of(p->rows, QMM_ROWS), of_part = p->k / (QMM_STRETCH * 8 / p->bits * CUDA_QMM_PARTS);
    const int64_t ahead = blocks_of(CUDA_QMM_AHEAD, of_part ? of_part : 1) + 1;
    int64_t blocks = halves_blocks(p->items * p->tokens, spans), of_block = blocks_of(spans, blocks);
    if (halves_shared(p, ahead < of_block ? ahead : of_block) > cuda_block_memory()) blocks = spans, of_block = 1;
    p->blocks = (int32_t)blocks;
    p->scale_spans = (int32_t)(ahead < of_block ? ahead : of_block);
    *shared = halves_shared(p, p->scale_spans);
    return *shared <= cuda_block_memory();
}
/* ---- products of many rows, or of a coding that no kernel of few rows has: the matrix is unpacked, and multiplied as
 * any other ---- */
#define MANY_TOKENS 16     /* from so many on that is sooner than the kernels of a row after another */
#define UNPACKED 268435456 /* bytes of a matrix that are unpacked at once, where 256 rows are not more */
#define SLOWER 8           /* times as many */
#define MANY_STEPS 4194304 /* multiplications: of fewer, to begin two kernels takes longer than they save */
typedef struct {
    gm_quantized_matmul_args a;
    void *matrix, *workspace; /* matrix: NULL, it is not unpacked; workspace: of cuBLASLt, or NULL */
    void *made;               /* of columns, what is rounded to another type then; or NULL */
    int64_t at_once;          /* rows of the matrix */
    bool columns;
} quantized_job;
/* By rows of the matrix from number `first` on. Of columns these are a part of each sum. */
static cuda_product_args unpacked_product(const quantized_job *job, int64_t first, int64_t rows) {
    const gm_quantized_matmul_args *a = &job->a;
    const bool columns = job->columns;
    cuda_product_args p = {.x = a->x, .w = job->matrix, .type = a->x_type, .rows = a->tokens};
    p.out = job->made ? job->made : a->out;
    p.out_row = p.columns = columns ? a->w.k : rows;
    p.x_row = p.k = columns ? rows : a->w.k;
    p.out_column = p.x_k = p.add_column = 1;
    p.w_k = columns ? a->w.k : 1;
    p.w_column = columns ? 1 : a->w.k;
    p.alpha = p.beta = 1;
    p.batch = (cuda_shape){.count = 1, .ndim = 1, .shape = {1}};
    if (columns) {
        p.x = (const char *)a->x + first * type_bytes(a->x_type);
        p.x_row = a->w.rows;
        p.add = first > 0 ? p.out : NULL;
        p.add_row = a->w.k;
    } else {
        p.out = (char *)a->out + first * type_bytes(a->out_type);
        p.out_row = a->w.rows;
    }
    return p;
}
/* Whether that is sooner. The own product of float32, where there is no library, is as slow for few rows as for many.
 */
static bool is_unpacked(const quantized_job *job, int64_t items) {
    const gm_quantized_matmul_args *a = &job->a;
    const cuda_group_args p = product_of(a, items);
    const bool one = items == 1 && !a->x_index && !a->matrix_index && a->x_count == 1 && p.matrices == 1;
    const bool exact = p.mode == GM_AFFINE || p.x_type != GM_T_F16; /* scales of others are beyond float16's */
    const bool same = job->columns ? p.x_type == GM_T_F32 : p.x_type == p.out_type;
    if (!one || !same || !exact || (double)p.rows * (double)p.k * (double)p.tokens < MANY_STEPS) return false;
    if (job->columns) return true;
    const cuda_product_args whole = unpacked_product(job, 0, p.rows);
    const bool slow = p.x_type == GM_T_F32 && blaslt_workspace(&whole) == 0;
    return p.tokens >= (is_of_halves(&p) || is_of_nibbles(&p) ? MANY_TOKENS : 1) * (slow ? SLOWER : 1);
}
static void start_unpacked(const quantized_job *job) {
    const gm_quantized_matmul_args *a = &job->a;
    const gm_grouped *of = &a->w;
    for (int64_t first = 0; first < of->rows; first += job->at_once) {
        const int64_t left = of->rows - first, rows = left < job->at_once ? left : job->at_once;
        const int64_t groups = first * (of->k / of->group);
        const int64_t scale = of->mode == GM_AFFINE ? type_bytes(of->scale_type) : 1;
        const cuda_product_args p = unpacked_product(job, first, rows);
        cuda_group_args w = product_of(a, 1);
        w.rows = rows;
        w.weight = (const char *)of->weight + first * (of->k / 8 * of->bits);
        w.scales = (const char *)of->scales + groups * scale;
        if (of->biases) w.biases = (const char *)of->biases + groups * scale;
        w.out = job->matrix;
        w.out_type = w.x_type;
        cuda_start(CUDA_group_values, by_threads(rows * of->k / 8), CUDA_THREADS, 0, &w);
        if (!blaslt_product(&p, 1, job->workspace)) cuda_start_product(&p);
    }
    const int64_t count = a->tokens * of->k, one = 1;
    const gm_copy_args copy = {.out = a->out,
                               .in = job->made,
                               .out_type = a->out_type,
                               .in_type = a->x_type,
                               .ndim = 1,
                               .shape = &count,
                               .out_strides = &one,
                               .in_strides = &one};
    if (job->made) cuda_start_copy(&copy, count);
}
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static bool record_quantized(gm_recorder *r, gm_kernel launch, const gm_quantized_matmul_args *a, int64_t n,
                             bool columns) {
    quantized_job job = {.a = *a, .columns = columns};
    if (is_unpacked(&job, n)) {
        const int64_t row = a->w.k * type_bytes(a->x_type), fit = UNPACKED / row / 256,
                      most = fit > 1 ? fit * 256 : 256;
        job.at_once = a->w.rows < most ? a->w.rows : most;
        job.matrix = r->workspace(r, (size_t)(job.at_once * row));
        if (!job.matrix) return false;
        const bool other = columns && a->out_type != a->x_type;
        if (other && !(job.made = r->workspace(r, (size_t)(a->tokens * row)))) return false;
        const int64_t last = a->w.rows % job.at_once ? a->w.rows % job.at_once : job.at_once;
        const cuda_product_args first = unpacked_product(&job, 0, job.at_once),
                                rest = unpacked_product(&job, a->w.rows - last, last);
        const size_t given = larger(blaslt_workspace(&first), blaslt_workspace(&rest));
        if (given && !(job.workspace = r->workspace(r, given))) return false;
    }
    return r->launch(r, launch, &job, sizeof job, n, 0, 0);
}

static void launch_quantized_matmul(const void *args, int64_t begin, int64_t end) {
    const quantized_job *job = args;
    cuda_group_args p = product_of(&job->a, end);
    size_t shared;
    (void)begin;
    if (job->matrix) {
        start_unpacked(job);
        return;
    }
    if (plan_halves(&p, &shared)) {
        cuda_start(p.x_type == GM_T_F16 ? CUDA_quantized_halves_f16 : CUDA_quantized_halves_bf16,
                   p.items * p.tokens * p.blocks, CUDA_THREADS, shared, &p);
        return;
    }
    if (is_of_nibbles(&p) && qmm_shared(p.k) <= cuda_block_memory()) {
        cuda_start(CUDA_quantized_matmul_4, blocks_of(p.rows, QMM_ROWS) * end * p.tokens, CUDA_THREADS, qmm_shared(p.k),
                   &p);
        return;
    }
    cuda_start(CUDA_quantized_matmul, by_warps(end * p.tokens * p.rows), CUDA_THREADS, 0, &p);
}
bool cuda_quantized_matmul(gm_recorder *r, const gm_quantized_matmul_args *a, int64_t n) {
    return record_quantized(r, launch_quantized_matmul, a, n, false);
}
static void launch_quantized_matmul_columns(const void *args, int64_t begin, int64_t end) {
    const quantized_job *job = args;
    const cuda_group_args p = product_of(&job->a, end);
    (void)begin;
    if (job->matrix) start_unpacked(job);
    else cuda_start(CUDA_quantized_matmul_columns, by_threads(end * p.tokens * p.k), CUDA_THREADS, 0, &p);
}
bool cuda_quantized_matmul_columns(gm_recorder *r, const gm_quantized_matmul_args *a, int64_t n) {
    return record_quantized(r, launch_quantized_matmul_columns, a, n, true);
}

/* ---- rotary positions ---- */
static void launch_rope_table(const void *args, int64_t begin, int64_t end) {
    const gm_rope_table_args *a = args;
    const cuda_rope_table_args p = {a->out, a->offset, a->freqs, end, a->steps, a->half, a->scale, a->base, a->inverse};
    (void)begin;
    cuda_start(CUDA_rope_table, by_threads(end * a->half), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(rope_table)
static void launch_rope(const void *args, int64_t begin, int64_t end) {
    const gm_rope_args *a = args;
    const cuda_rope_args p = {a->out,         a->x,           a->angles,       a->type,       end,
                              a->heads,       a->steps,       a->dim,          a->half,       a->batch_stride,
                              a->head_stride, a->step_stride, a->angle_stride, a->interleaved};
    (void)begin;
    cuda_start(CUDA_rope, by_threads(end * (a->dim - a->half)), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(rope)

/* ---- recurrences ---- */
static void launch_gated_delta(const void *args, int64_t begin, int64_t end) {
    const cuda_gated_delta_args p = {*(const gm_gated_delta_args *)args, end};
    (void)begin;
    cuda_start(CUDA_gated_delta, by_warps(end), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(gated_delta)

/* ---- convolutions and attention ---- */
static void launch_convolution(const void *args, int64_t begin, int64_t end) {
    const cuda_convolution_args p = {*(const gm_convolution_args *)args, end};
    const gm_convolution_args *c = &p.conv;
    (void)begin;
    if (c->type == GM_T_F64) cuda_refuse("a convolution of float64");
    else
        cuda_start(CUDA_convolution,
                   by_threads(end * c->positions[0] * c->positions[1] * c->positions[2] * c->groups * c->filters),
                   CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(convolution)
/* Attention of float32 with many queries is two products and a softmax over its scores, which are in memory for as many
 * sequences at a time as have room there; other attention is a kernel with a block for each query. */
#define MANY_QUERIES 32
#define SCORE_BYTES ((int64_t)256 << 20)
typedef struct {
    gm_sdpa_args s;
    float *scores;     /* NULL: the kernel */
    const float *zero; /* what own products add where there is no mask */
    void *workspace;   /* of cuBLASLt; NULL: own products */
    int64_t at_once;   /* sequences */
} sdpa_job;

/* q, k and v of a sequence, and so on, by sequence, head of k and head of q of those of it. */
static void put_batch(cuda_product_args *p, const gm_sdpa_args *s, int64_t sequences) {
    p->batch.ndim = 3;
    p->batch.shape[0] = sequences;
    p->batch.shape[1] = s->n_kv_heads;
    p->batch.shape[2] = s->n_heads / s->n_kv_heads;
    p->batch.count = sequences * s->n_heads;
}
static cuda_strides steps_of(const gm_sdpa_args *s, int64_t sequence, int64_t head, bool shared) {
    const int64_t group = s->n_heads / s->n_kv_heads;
    return (cuda_strides){{sequence, shared ? head : group * head, shared ? 0 : head}};
}
/* Scores of so many sequences: scale q k^T + mask. */
static cuda_product_args scores_of(const gm_sdpa_args *s, float *scores, int64_t sequences) {
    const int64_t each = s->queries * s->keys;
    cuda_product_args p = {.out = scores,
                           .x = s->q,
                           .w = s->k,
                           .add = s->mask,
                           .type = s->type,
                           .rows = s->queries,
                           .columns = s->keys,
                           .k = s->dim,
                           .out_row = s->keys,
                           .out_column = 1,
                           .x_row = s->q_strides[2],
                           .x_k = 1,
                           .w_k = 1,
                           .w_column = s->k_strides[2],
                           .alpha = s->scale};
    put_batch(&p, s, sequences);
    p.out_steps = steps_of(s, s->n_heads * each, each, false);
    p.x_steps = steps_of(s, s->q_strides[0], s->q_strides[1], false);
    p.w_steps = steps_of(s, s->k_strides[0], s->k_strides[1], true);
    if (s->mask) {
        p.beta = 1;
        p.add_row = s->mask_strides[2];
        p.add_column = s->mask_strides[3];
        p.add_steps = steps_of(s, s->mask_strides[0], s->mask_strides[1], false);
    }
    return p;
}
/* Their softmax times v. */
static cuda_product_args values_of(const gm_sdpa_args *s, const float *scores, int64_t sequences) {
    const int64_t each = s->queries * s->keys, made = s->queries * s->value_dim;
    cuda_product_args p = {.out = s->out,
                           .x = scores,
                           .w = s->v,
                           .type = s->type,
                           .rows = s->queries,
                           .columns = s->value_dim,
                           .k = s->keys,
                           .out_row = s->value_dim,
                           .out_column = 1,
                           .x_row = s->keys,
                           .x_k = 1,
                           .w_k = s->v_strides[2],
                           .w_column = 1};
    put_batch(&p, s, sequences);
    p.out_steps = steps_of(s, s->n_heads * made, made, false);
    p.x_steps = steps_of(s, s->n_heads * each, each, false);
    p.w_steps = steps_of(s, s->v_strides[0], s->v_strides[1], true);
    return p;
}
static void start_composed(const sdpa_job *job, const gm_sdpa_args *s, int64_t sequences) {
    cuda_product_args p = scores_of(s, job->scores, sequences);
    if (!blaslt_product(&p, s->scale, job->workspace)) {
        p.add = p.add ? p.add : job->zero;
        cuda_start_product(&p);
    }
    const gm_softmax_args softmax = {job->scores, job->scores, s->type, s->keys, s->keys};
    cuda_start_softmax(&softmax, sequences * s->n_heads * s->queries);
    p = values_of(s, job->scores, sequences);
    if (!blaslt_product(&p, 1, job->workspace)) cuda_start_product(&p);
}
/* What cuBLASLt is to have for both products of so many sequences. */
static size_t workspace_of(const gm_sdpa_args *s, float *scores, int64_t sequences) {
    const cuda_product_args first = scores_of(s, scores, sequences), second = values_of(s, scores, sequences);
    const size_t a = blaslt_workspace(&first), b = blaslt_workspace(&second);
    return a > b ? a : b;
}

static void launch_sdpa(const void *args, int64_t begin, int64_t end) {
    const sdpa_job *job = args;
    const cuda_sdpa_args p = {job->s};
    gm_sdpa_args s = job->s;
    (void)begin;
    if (end > 0 && !job->scores) {
        cuda_start(CUDA_sdpa, s.batches * s.n_heads * s.queries, CUDA_THREADS, 0, &p);
        return;
    }
    for (int64_t at = 0; at < s.batches; at += job->at_once) {
        const int64_t sequences = s.batches - at < job->at_once ? s.batches - at : job->at_once;
        start_composed(job, &s, sequences);
        s.q = (const float *)s.q + sequences * s.q_strides[0];
        s.k = (const float *)s.k + sequences * s.k_strides[0];
        s.v = (const float *)s.v + sequences * s.v_strides[0];
        s.out = (float *)s.out + sequences * s.n_heads * s.queries * s.value_dim;
        if (s.mask) s.mask = (const float *)s.mask + sequences * s.mask_strides[0];
    }
}
bool cuda_sdpa(gm_recorder *r, const gm_sdpa_args *a, int64_t n) {
    static const float zero = 0;
    sdpa_job job = {.s = *a};
    const int64_t bytes = a->n_heads * a->queries * a->keys * (int64_t)sizeof(float);
    const bool plain = a->type == GM_T_F32 && !a->causal && !a->sinks && (!a->mask || a->mask_type == GM_T_F32);
    if (plain && n > 0 && a->queries >= MANY_QUERIES && bytes > 0 && bytes <= SCORE_BYTES) {
        job.at_once = SCORE_BYTES / bytes < a->batches ? SCORE_BYTES / bytes : a->batches;
        job.scores = r->workspace(r, (size_t)(job.at_once * bytes));
        job.zero = r->constant(r, &zero, sizeof zero);
        if (!job.scores || !job.zero) return false;
        const size_t given = workspace_of(a, job.scores, job.at_once);
        if (given && !(job.workspace = r->workspace(r, given))) return false;
    }
    return r->launch(r, launch_sdpa, &job, sizeof job, n, 0, 0);
}
