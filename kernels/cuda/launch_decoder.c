/* launch_decoder.c - parts of decoders: gated units, soft caps, routes, rotary positions, attention over caches, layers
 * with a state. */
#include "cuda/launch.h"

static int64_t by_threads(int64_t n) { return blocks_of(n, CUDA_THREADS); }
static int64_t by_warps(int64_t n) { return blocks_of(n, CUDA_THREADS / 32); }

static void launch_glu(const void *args, int64_t begin, int64_t end) {
    const cuda_glu_args p = {*(const gm_glu_args *)args, end};
    (void)begin;
    cuda_start(CUDA_glu, by_threads(end * p.glu.dim), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(glu)
static void launch_softcap(const void *args, int64_t begin, int64_t end) {
    const cuda_softcap_args p = {*(const gm_softcap_args *)args, end};
    (void)begin;
    cuda_start(CUDA_softcap, by_threads(end), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(softcap)
static void launch_route(const void *args, int64_t begin, int64_t end) {
    const cuda_route_args p = {*(const gm_route_args *)args, end};
    (void)begin;
    cuda_start(CUDA_route, by_warps(end), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(route)

static void launch_rope_angles(const void *args, int64_t begin, int64_t end) {
    const cuda_rope_angles_args p = {*(const gm_rope_angles_args *)args, end};
    (void)begin;
    cuda_start(CUDA_rope_angles, by_threads(end * p.angles.half), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(rope_angles)
static void start_turn(const gm_rope_cache_args *a, int64_t rows) {
    const int64_t heads = a->n_heads + (a->k ? 2 * a->n_kv_heads : 0);
    const int64_t blocks[3] = {blocks_of(rows, CUDA_TURN_ROWS), heads, 1};
    const bool steps = (a->head_dim | a->half | a->q_stride | a->k_stride | a->v_stride) % 4 == 0;
    const bool fours = steps && is_aligned(a->q, 16) && is_aligned(a->q_out, 16) && is_aligned(a->angles, 16) &&
                       is_aligned(a->k, 16) && is_aligned(a->v, 16);
    const cuda_rope_cache_args p = {*a, rows, fours};
    cuda_start_grid(CUDA_rope_cache, blocks, CUDA_THREADS, 0, &p);
}
static void launch_rope_cache(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    start_turn(args, end);
}
CUDA_CONTRACT(rope_cache)

/* ---- attention over caches ---- */
#define WIDE_HEADS "heads of more than 512 dimensions"

/* Caches and heads that attention.cu has: of each type, 64, 128 and 256 dimensions, the kernels of one. */
#define ATTENTION_DIMS 3
#define ATTENTION_KERNELS 6
enum { ATTENTION_TILE, ATTENTION_BLOCK };
static const int halves_dims[ATTENTION_DIMS] = {64, 128, 256};
#define HEADS_AT_ONCE 16
#define MOST_AT_ONCE 5 /* blocks of rows that decode, by their registers */
#define FEW_HEADS 5    /* of keys, of all rows, where processors are so many times as many */
#define MOST_WAVES 8
#define TILE_SHARED(dim) ((size_t)2 * 2 * ((dim) > 128 ? 32 : 64) * (size_t)(dim) * 2) /* two tiles of both */

/* Which of halves_dims; -1: the kernels of decoder.cu. */
static int halves_dim(const gm_attention_args *a) {
    const int unit = a->kv_type == GM_T_KV_Q8_0 ? 32 : 16;
    if (a->kv_type == GM_T_F32 || a->head_dim % unit != 0) return -1;
    for (int i = 0; i < ATTENTION_DIMS; i++)
        if (a->head_dim <= halves_dims[i]) return i;
    return -1;
}
static cuda_kernel halves_kernel(const gm_attention_args *a, int dim, int which) {
    const int type = a->kv_type == GM_T_F16 ? 0 : a->kv_type == GM_T_BF16 ? 1 : 2;
    return (cuda_kernel)(CUDA_attention_tile_f16_64 + dim * ATTENTION_KERNELS + 2 * type + which);
}
/* Prompts' rows by the tensor cores of sm_90a; false: it is for the other kernels, whatever the number of tiles. */
static bool start_prompt(const gm_attention_args *a, int dim, int64_t tiles) {
    const int64_t units = tiles * (a->n_heads / a->n_kv_heads), warps = CUDA_THREADS / 32;
    const int64_t blocks[3] = {a->n_kv_heads, blocks_of(units, warps), 1};
    const int type = a->kv_type == GM_T_F16 ? 0 : a->kv_type == GM_T_BF16 ? 1 : 2;
    const cuda_prompt_attention_args p = {*a, tiles};
    if (halves_dims[dim] > 128 || a->softcap != 0 || !cuda_has_wgmma()) return false;
    cuda_start_grid((cuda_kernel)(CUDA_prompt_attention_f16_64 + 3 * dim + type), blocks, CUDA_THREADS,
                    (size_t)CUDA_PROMPT_MEMORY(halves_dims[dim]), &p);
    return true;
}
static void start_tiles(const gm_attention_args *a, int dim, int64_t tiles) {
    if (start_prompt(a, dim, tiles)) return;
    const int64_t group = a->n_heads / a->n_kv_heads, warps = group < CUDA_THREADS / 32 ? group : CUDA_THREADS / 32;
    const int64_t blocks[3] = {tiles, a->n_kv_heads * blocks_of(group, warps), 1};
    cuda_start_grid(halves_kernel(a, dim, ATTENTION_TILE), blocks, (int)warps * 32, TILE_SHARED(halves_dims[dim]), a);
}
/* Blocks of each of `rows` rows and kv heads: in time, a block costs as much as two more shares, and all that are on
 * the card at once cost what one does. Of a few rows all shares are under way sooner with one a block; and how many
 * there are may be far less than there is room for. */
static int64_t blocks_across(int64_t shares, int64_t rows, int dim) {
    const int64_t memory = CUDA_DECODE_MEMORY(halves_dims[dim]) + CUDA_SHARE_MEMORY(halves_dims[dim]);
    const int64_t fit = (int64_t)cuda_whole_memory() / memory, processors = cuda_processors();
    const int64_t at_once = processors * (fit < MOST_AT_ONCE ? fit : MOST_AT_ONCE);
    int64_t best = shares, least = blocks_of(shares * rows, processors * MOST_AT_ONCE) * 3;
    if (!CUDA_HAS_SEVERAL(halves_dims[dim]) || rows * FEW_HEADS < processors) return shares;
    for (int64_t waves = 1; waves <= MOST_WAVES; waves++) {
        const int64_t most = waves * at_once / rows, across = most < 1 ? 1 : most;
        const int64_t cost = blocks_of(rows * across, at_once) * (blocks_of(shares, across) + 2);
        if (across < shares && cost < least) best = across, least = cost;
    }
    return best;
}
static void start_blocks(const gm_turned_attention_args *row, bool turns, int dim, int64_t rows) {
    const gm_attention_args *a = &row->attention;
    const int64_t group = a->n_heads / a->n_kv_heads, cuts = blocks_of(group, HEADS_AT_ONCE);
    const int64_t shares = a->max_blocks * CUDA_SHARES,
                  across = blocks_across(shares, rows * a->n_kv_heads * cuts, dim);
    const int64_t blocks[3] = {rows * a->n_kv_heads * cuts, across, 1};
    const bool merges = shares <= CUDA_MERGED && blocks[0] <= CUDA_TICKETS;
    const cuda_decode_args p = {*row, turns, merges, (int32_t)group, (int32_t)cuts, (int32_t)across};
    const int memory = CUDA_DECODE_MEMORY(halves_dims[dim]) +
                       (across < shares ? CUDA_SHARE_MEMORY(halves_dims[dim]) : 0);
    cuda_start_grid(halves_kernel(a, dim, ATTENTION_BLOCK), blocks, CUDA_DECODE_THREADS, (size_t)memory, &p);
    if (!merges)
        cuda_start_grid(CUDA_attention_shares, (int64_t[]){rows * a->n_heads, blocks_of(a->head_dim, CUDA_SLICE), 1},
                        CUDA_THREADS, 0, a);
}

static void launch_attention(const void *args, int64_t begin, int64_t end) {
    const gm_attention_args *a = args;
    const int dim = halves_dim(a);
    (void)begin;
    if (dim >= 0) {
        start_tiles(a, dim, end);
        return;
    }
    const int64_t blocks[3] = {end * GM_QUERY_TILE, a->n_heads, 1};
    cuda_start_grid(CUDA_attention, blocks, CUDA_THREADS, 0, a);
}
bool cuda_attention(gm_recorder *r, const gm_attention_args *a, int64_t n) {
    if (a->head_dim > CUDA_ATTENTION_DIM) return r->lack(r, WIDE_HEADS);
    return r->launch(r, launch_attention, a, sizeof *a, n, 0, 0);
}
static void start_rows(const gm_attention_args *a, int64_t rows) {
    const int64_t blocks[3] = {rows * a->n_heads, a->max_blocks, 1};
    cuda_start_grid(CUDA_attention_split, blocks, CUDA_THREADS, 0, a);
    cuda_start(CUDA_attention_merge, rows * a->n_heads, CUDA_THREADS, 0, a);
}
static void launch_attention_rows(const void *args, int64_t begin, int64_t end) {
    const gm_attention_args *a = args;
    const int dim = halves_dim(a);
    (void)begin;
    if (dim < 0) start_rows(a, end);
    else start_blocks(&(gm_turned_attention_args){.attention = *a}, false, dim, end);
}
/* Room for shares of all blocks that a row may see: of those of attention.cu, which are more than decoder.cu's. */
static bool rows_workspace(gm_recorder *r, gm_attention_args *a, int64_t n) {
    const int64_t window_blocks = a->window / GM_KV_BLOCK + 2;
    if (a->window > 0 && window_blocks < a->max_blocks) a->max_blocks = window_blocks;
    const int64_t shares = n * a->n_heads * a->max_blocks * CUDA_SHARES;
    a->partial = r->workspace(r, (size_t)(shares * (a->head_dim + CUDA_SHARE_EXTRA)) * sizeof(float));
    return a->partial != NULL;
}
bool cuda_attention_rows(gm_recorder *r, const gm_attention_rows_args *a, int64_t n) {
    gm_attention_args rows = *a;
    if (a->head_dim > CUDA_ATTENTION_DIM) return r->lack(r, WIDE_HEADS);
    return rows_workspace(r, &rows, n) && r->launch(r, launch_attention_rows, &rows, sizeof rows, n, 0, 0);
}
typedef struct {
    gm_turned_attention_args row;
    float *q, *k; /* normed heads, where a kernel of its own makes them; or NULL */
} turned_job;
static const float *start_head_norms(const gm_turned_attention_args *a, float *out, const float *x, const float *weight,
                                     int64_t heads) {
    if (!out) return x;
    const int64_t dim = a->turn.head_dim;
    cuda_start_rms_norm(
        &(gm_rms_norm_args){
            .out = out, .x = x, .weight = weight, .type = GM_T_F32, .x_stride = dim, .dim = dim, .eps = a->eps},
        heads);
    return out;
}
static void launch_turned_attention(const void *args, int64_t begin, int64_t end) {
    const turned_job *job = args;
    gm_turned_attention_args a = job->row;
    const int dim = halves_dim(&a.attention);
    (void)begin;
    if (dim >= 0) {
        start_blocks(&a, true, dim, end);
        return;
    }
    a.turn.q = start_head_norms(&a, job->q, a.turn.q, a.q_norm, end * a.turn.n_heads);
    a.turn.k = start_head_norms(&a, job->k, a.turn.k, a.k_norm, end * a.turn.n_kv_heads);
    start_turn(&a.turn, end);
    start_rows(&a.attention, end);
}
bool cuda_turned_attention(gm_recorder *r, const gm_turned_attention_args *a, int64_t n) {
    turned_job job = {.row = *a};
    const size_t head = (size_t)(n * a->turn.head_dim) * sizeof(float);
    const bool norms_k = a->k_norm && a->turn.k;
    if (a->attention.head_dim > CUDA_ATTENTION_DIM) return r->lack(r, WIDE_HEADS);
    if (a->q_norm && !(job.q = r->workspace(r, head * (size_t)a->turn.n_heads + 1))) return false;
    if (norms_k && !(job.k = r->workspace(r, head * (size_t)a->turn.n_kv_heads + 1))) return false;
    return rows_workspace(r, &job.row.attention, n) && r->launch(r, launch_turned_attention, &job, sizeof job, n, 0, 0);
}

/* ---- layers with a state ---- */
static void launch_recurrent_conv(const void *args, int64_t begin, int64_t end) {
    const gm_recurrent_conv_args *a = args;
    const cuda_recurrent_conv_args p = {a->layer, a->sequences};
    (void)begin, (void)end;
    cuda_start(CUDA_recurrent_conv, by_threads(a->sequences * a->layer.channels), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(recurrent_conv)
static void launch_recurrent_delta(const void *args, int64_t begin, int64_t end) {
    const gm_recurrent_delta_args *a = args;
    const cuda_recurrent_delta_args p = {a->layer, a->sequences};
    (void)begin, (void)end;
    cuda_start(CUDA_recurrent_delta, by_warps(a->sequences * a->layer.n_heads * a->layer.n_values), CUDA_THREADS, 0,
               &p);
}
CUDA_CONTRACT(recurrent_delta)
