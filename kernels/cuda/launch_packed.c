/* launch_packed.c - products of packed matrices. */
#include <string.h>
#include "cuda/launch.h"
#include "made_rows.h"

#define INT8_ROWS "int8 activations"

static void start_in_rows(const cuda_packed_args *p) {
    const int64_t blocks[3] = {blocks_of(p->rows, CUDA_THREADS / 32), blocks_of(p->tokens, CUDA_TOKENS), 1};
    cuda_start_grid(CUDA_packed_product, blocks, CUDA_THREADS, 0, p);
}
static void start_product(cuda_packed_args *p) {
    if (p->tokens > 0 && !cuda_start_tiled(p)) start_in_rows(p);
}
static int form_type(gm_row_form form) { return form == GM_FORM_BF16 ? GM_T_BF16 : GM_T_F32; }
static void launch_product(const void *args, int64_t begin, int64_t end) {
    cuda_packed_args p = *(const cuda_packed_args *)args;
    (void)begin;
    p.tokens = end;
    start_product(&p);
}
static bool record_product(gm_recorder *r, cuda_packed_args p) {
    return cuda_several_memory(r, &p) && r->launch(r, launch_product, &p, sizeof p, p.tokens, 0, 0);
}
static cuda_packed_args matmul_args(const gm_packed_matmul_args *a, int64_t tokens) {
    const gm_matrix *w = &a->weight;
    return (cuda_packed_args){.out = a->out,
                              .x = a->x,
                              .residual = a->residual,
                              .weight = {w->data, a->bias, cuda_format_of(w->format, w->rows, w->k)},
                              .tokens = tokens,
                              .rows = w->rows,
                              .k = w->k,
                              .x_type = form_type(a->form),
                              .glu = CUDA_NO_GLU,
                              .out_type = GM_T_F32};
}
bool cuda_packed_matmul(gm_recorder *r, const gm_packed_matmul_args *a, int64_t n) {
    if (a->form == GM_FORM_INT8) return r->lack(r, INT8_ROWS);
    if (a->weight.in_rows) return r->lack(r, IN_ROWS);
    if (a->prompt && prompt_takes(&a->weight)) return cuda_prompt_matmul(r, a, n);
    return record_product(r, matmul_args(a, n));
}
static cuda_packed_args glu_args(const gm_packed_glu_args *a, int64_t tokens) {
    return (cuda_packed_args){.out = a->out,
                              .x = a->x,
                              .weight = {a->gate.data, NULL, cuda_format_of(a->gate.format, a->gate.rows, a->gate.k)},
                              .up = {a->up.data, NULL, cuda_format_of(a->up.format, a->up.rows, a->up.k)},
                              .tokens = tokens,
                              .rows = a->gate.rows,
                              .k = a->gate.k,
                              .x_type = form_type(a->form),
                              .glu = (int32_t)a->kind,
                              .out_type = form_type(a->out_form)};
}
bool cuda_packed_glu(gm_recorder *r, const gm_packed_glu_args *a, int64_t n) {
    if (a->form == GM_FORM_INT8 || a->out_form == GM_FORM_INT8) return r->lack(r, INT8_ROWS);
    if (a->gate.in_rows || a->up.in_rows) return r->lack(r, IN_ROWS);
    if (a->prompt && prompt_takes(&a->gate) && prompt_takes(&a->up)) return cuda_prompt_glu(r, a, n);
    return record_product(r, glu_args(a, n));
}

/* ---- products of rows that are normed as they are read ---- */
typedef struct { /* what is made where a product does not read rows so, and for one of many tokens */
    gm_made_rows rows;
    float *normed;
    void *rounded, *several;
} made_memory;
/* format: of a matrix in tiles, if there is one. */
static bool made_workspace(gm_recorder *r, made_memory *m, const gm_made_rows *rows, int format, int64_t n, int64_t k) {
    cuda_packed_args p = {
        .weight.format.format = format, .tokens = n, .k = k, .x_type = GM_T_F32, .rounds = rows->form == GM_FORM_BF16};
    if (!cuda_several_memory(r, &p)) return false;
    m->several = p.made;
    m->rows = *rows;
    m->normed = rows->norm ? r->workspace(r, (size_t)(n * k) * sizeof(float) + 1) : NULL;
    if (rows->norm && !m->normed) return false;
    m->rounded = rows->form == GM_FORM_BF16 ? r->workspace(r, (size_t)(n * k) * 2 + 1) : NULL;
    return m->rounded || rows->form != GM_FORM_BF16;
}
/* The same of prompts' rows, rounded by the kernel that norms them. A product of such would round float32 rows for
 * itself: they are for all that read them, but where those are float16 (`halves`). */
static void launch_rounded_norm(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start_rounded_norm(args, end);
}
static const void *record_prompt_rows(gm_recorder *r, gm_made_rows *rows, int64_t n, int64_t k, bool halves) {
    if (halves) return record_made_rows(r, rows, n, k);
    void *out = r->workspace(r, (size_t)(n * k) * 2 + 1);
    rows->form = GM_FORM_BF16;
    if (!rows->norm) return out && cuda_rounded_rows(r, out, rows->x, n, k) ? out : NULL;
    const gm_rms_norm_args norm = {
        .out = out, .x = rows->x, .weight = rows->norm, .type = GM_T_F32, .x_stride = k, .dim = k, .eps = rows->eps};
    if (!out || !r->launch(r, launch_rounded_norm, &norm, sizeof norm, n, 0, 0)) return NULL;
    r->fence(r);
    return out;
}
/* Starts kernels that make them. */
static const void *start_made_rows(const made_memory *m, int64_t n, int64_t k) {
    const int64_t count = n * k, one = 1;
    const float *x = m->rows.norm ? m->normed : m->rows.x;
    if (m->rows.norm)
        cuda_start_rms_norm(&(gm_rms_norm_args){.out = m->normed,
                                                .x = m->rows.x,
                                                .weight = m->rows.norm,
                                                .type = GM_T_F32,
                                                .x_stride = k,
                                                .dim = k,
                                                .eps = m->rows.eps},
                            n);
    if (!m->rounded) return x;
    cuda_start_copy(&(gm_copy_args){.out = m->rounded,
                                    .in = x,
                                    .out_type = GM_T_BF16,
                                    .in_type = GM_T_F32,
                                    .ndim = 1,
                                    .shape = &count,
                                    .out_strides = &one,
                                    .in_strides = &one},
                    count);
    return m->rounded;
}
/* p, whose x is what m's rows become, as rows are read where tiles are. */
static cuda_packed_args made_in_tiles(cuda_packed_args p, const made_memory *m) {
    p.x = m->rows.x;
    p.x_type = GM_T_F32;
    p.norm = m->rows.norm;
    p.eps = m->rows.eps;
    p.rounds = m->rows.form == GM_FORM_BF16;
    p.made = m->several;
    return p;
}
static bool start_made_tiled(const cuda_packed_args *p, const made_memory *m) {
    cuda_packed_args own = made_in_tiles(*p, m);
    return cuda_start_tiled(&own);
}
static bool start_made_two(const cuda_packed_args *p, const made_memory *m) {
    const cuda_packed_args first = made_in_tiles(p[0], m), second = made_in_tiles(p[1], m);
    return cuda_start_two(&first, &second);
}
typedef struct {
    gm_packed_products_args products;
    made_memory made;
} products_job;
static void add_part(cuda_packed_args *p, const gm_product_part *part) {
    const gm_matrix *w = &part->weight;
    const cuda_matrix matrix = {w->data, part->bias, cuda_format_of(w->format, w->rows, w->k)};
    cuda_more *more = p->more[0].rows ? &p->more[1] : &p->more[0];
    if (p->rows) {
        *more = (cuda_more){part->out, matrix, w->rows};
        return;
    }
    p->out = part->out;
    p->weight = matrix;
    p->rows = w->rows;
}
/* One after another, of rows that are made. */
static void start_apart(cuda_packed_args p) {
    cuda_more more[CUDA_MORE];
    memcpy(more, p.more, sizeof more);
    memset(p.more, 0, sizeof p.more);
    start_product(&p);
    for (int i = 0; i < CUDA_MORE && more[i].rows; i++) {
        p.out = more[i].out;
        p.weight = more[i].weight;
        p.rows = more[i].rows;
        start_product(&p);
    }
}
static bool is_tiled(const gm_matrix *w) {
    return cuda_makes_tiles(&(cuda_matrix){w->data, NULL, cuda_format_of(w->format, w->rows, w->k)}, w->rows, w->k);
}
/* Those of one format that are in tiles go together, into groups. How many there are. */
static int groups_of(cuda_packed_args *groups, const gm_packed_products_args *a, int64_t tokens) {
    bool taken[GM_PRODUCTS] = {false};
    int count = 0;
    for (int first = 0; first < a->count; first++) {
        const gm_matrix *w = &a->parts[first].weight;
        cuda_packed_args *p = &groups[count];
        if (taken[first]) continue;
        *p = (cuda_packed_args){.residual = first ? NULL : a->residual,
                                .tokens = tokens,
                                .k = w->k,
                                .x_type = form_type(a->rows.form),
                                .glu = CUDA_NO_GLU,
                                .out_type = GM_T_F32};
        add_part(p, &a->parts[first]);
        for (int i = first + 1; i < a->count && is_tiled(w) && !p->residual; i++)
            if (!taken[i] && a->parts[i].weight.format == w->format && is_tiled(&a->parts[i].weight)) {
                add_part(p, &a->parts[i]);
                taken[i] = true;
            }
        count++;
    }
    return count;
}
static void launch_packed_products(const void *args, int64_t begin, int64_t end) {
    const products_job *job = args;
    cuda_packed_args groups[GM_PRODUCTS];
    const int count = groups_of(groups, &job->products, end);
    const void *x = NULL;
    (void)begin;
    if (count == 2 && start_made_two(groups, &job->made)) return;
    for (int i = 0; i < count; i++) {
        cuda_packed_args *p = &groups[i];
        if (start_made_tiled(p, &job->made)) continue;
        p->x = x ? x : (x = start_made_rows(&job->made, end, p->k));
        p->made = job->made.several;
        start_apart(*p);
    }
}
bool cuda_packed_products(gm_recorder *r, const gm_packed_products_args *a, int64_t n) {
    products_job job = {.products = *a};
    gm_packed_products_args *own = &job.products;
    const int64_t k = a->parts->weight.k;
    int format = a->parts->weight.format;
    bool prompt = a->prompt, halves = false;
    if (a->rows.form == GM_FORM_INT8) return r->lack(r, INT8_ROWS);
    for (int i = 0; i < a->count; i++) {
        if (a->parts[i].weight.in_rows) return r->lack(r, IN_ROWS);
        prompt = prompt && prompt_takes(&a->parts[i].weight);
        halves |= a->parts[i].weight.format == GM_QUANT_f16;
        if (is_tiled(&a->parts[i].weight)) format = a->parts[i].weight.format;
    }
    if (prompt) return record_products_of(r, own, record_prompt_rows(r, &own->rows, n, k, halves), n);
    return made_workspace(r, &job.made, &a->rows, format, n, k) &&
           r->launch(r, launch_packed_products, &job, sizeof job, n, 0, 0);
}
typedef struct {
    gm_packed_glu_args glu;
    made_memory made;
} made_glu_job;
static void launch_made_glu(const void *args, int64_t begin, int64_t end) {
    const made_glu_job *job = args;
    (void)begin;
    cuda_packed_args p = glu_args(&job->glu, end);
    if (start_made_tiled(&p, &job->made)) return;
    p.x = start_made_rows(&job->made, end, p.k);
    start_product(&p);
}
bool cuda_made_glu(gm_recorder *r, const gm_made_glu_args *a, int64_t n) {
    made_glu_job job = {.glu = a->glu};
    job.glu.form = a->rows.form;
    if (job.glu.form == GM_FORM_INT8 || a->glu.out_form == GM_FORM_INT8) return r->lack(r, INT8_ROWS);
    if (a->glu.gate.in_rows || a->glu.up.in_rows) return r->lack(r, IN_ROWS);
    if (a->glu.prompt && prompt_takes(&a->glu.gate) && prompt_takes(&a->glu.up)) {
        const bool halves = a->glu.gate.format == GM_QUANT_f16 || a->glu.up.format == GM_QUANT_f16;
        gm_made_glu_args own = *a;
        return record_glu_of(r, &own, record_prompt_rows(r, &own.rows, n, own.glu.gate.k, halves), n);
    }
    return made_workspace(r, &job.made, &a->rows, a->glu.gate.format, n, a->glu.gate.k) &&
           r->launch(r, launch_made_glu, &job, sizeof job, n, 0, 0);
}

/* ---- mixtures of experts ---- */
static cuda_matrix stack_of(const gm_matrix_stack *w, int64_t rows, int64_t k) {
    return (cuda_matrix){w->data, w->bias, cuda_format_of(w->format, rows, k)};
}
/* By the tensor cores, where all three are in tiles and a row of x fits a block's memory. */
static bool start_experts_in_tiles(const cuda_experts_args *p, int64_t tokens) {
    const int64_t pairs = tokens * p->top_k;
    cuda_packed_args units = {.out = p->units,
                              .x = p->x,
                              .weight = p->gate,
                              .up = p->up,
                              .tokens = pairs,
                              .rows = p->inner,
                              .k = p->dim,
                              .x_type = GM_T_F32,
                              .glu = p->glu,
                              .out_type = GM_T_F32,
                              .alpha = p->alpha,
                              .limit = p->limit,
                              .ids = p->ids,
                              .experts = p->experts,
                              .top_k = p->top_k},
                     down = {.out = p->made,
                             .x = p->units,
                             .weight = p->down,
                             .tokens = pairs,
                             .rows = p->out_dim,
                             .k = p->inner,
                             .x_type = GM_T_F32,
                             .glu = CUDA_NO_GLU,
                             .out_type = GM_T_F32,
                             .ids = p->ids,
                             .experts = p->experts,
                             .top_k = 1};
    if (pairs == 0 || !p->made || !cuda_fits_experts(&units) || !cuda_fits_experts(&down)) return false;
    cuda_start_tiled_experts(&units);
    cuda_start_tiled_experts(&down);
    cuda_start(CUDA_expert_join, blocks_of(tokens * p->out_dim, CUDA_THREADS), CUDA_THREADS, 0, p);
    return true;
}
static void launch_experts(const void *args, int64_t begin, int64_t end) {
    const cuda_experts_args *p = args;
    const int64_t warps = CUDA_THREADS / 32;
    (void)begin;
    if (start_experts_in_tiles(p, end)) return;
    cuda_start(CUDA_expert_units, end * p->top_k * blocks_of(p->inner, warps), CUDA_THREADS, 0, p);
    cuda_start(CUDA_expert_sums, end * blocks_of(p->out_dim, warps), CUDA_THREADS, 0, p);
}
bool cuda_experts(gm_recorder *r, const gm_experts_args *a, int64_t n) {
    cuda_experts_args p = {.out = a->out,
                           .x = a->x,
                           .weights = a->weights,
                           .ids = a->ids,
                           .gate = stack_of(&a->gate, a->inner, a->dim),
                           .up = stack_of(&a->up, a->inner, a->dim),
                           .down = stack_of(&a->down, a->out_dim, a->inner),
                           .tokens = n,
                           .top_k = a->top_k,
                           .experts = a->experts,
                           .dim = a->dim,
                           .inner = a->inner,
                           .out_dim = a->out_dim,
                           .glu = (int32_t)a->act,
                           .alpha = a->alpha,
                           .limit = a->limit,
                           .round_gate = a->gate.form == GM_FORM_BF16,
                           .round_up = a->up.form == GM_FORM_BF16,
                           .round_down = a->down.form == GM_FORM_BF16};
    if (a->gate.form == GM_FORM_INT8 || a->up.form == GM_FORM_INT8 || a->down.form == GM_FORM_INT8)
        return r->lack(r, INT8_ROWS);
    p.units = r->workspace(r, (size_t)(n * a->top_k * a->inner) * sizeof(float));
    if (p.units && p.down.format.tile) {
        p.made = r->workspace(r, (size_t)(n * a->top_k * a->out_dim) * sizeof(float));
        if (!p.made) return false;
    }
    return p.units && r->launch(r, launch_experts, &p, sizeof p, n, 0, 0);
}
