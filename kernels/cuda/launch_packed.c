/* launch_packed.c - packed matrices: rows into them and out of them, and their products. */
#include "cuda/launch.h"

#define IN_ROWS "matrices in files"
#define INT8_ROWS "int8 activations"

static int64_t by_threads(int64_t n) { return blocks_of(n, CUDA_THREADS); }
static int dense_type(int format) {
    return format == GM_QUANT_f16 ? GM_T_F16 : format == GM_QUANT_bf16 ? GM_T_BF16 : GM_T_F32;
}
/* scale_type of dense formats: the type of their values. */
static cuda_format format_of(int format) {
    const gm_quant_info *f = &gm_quants[format];
    const int type = f->bits ? dense_type(f->scale) : format <= GM_QUANT_bf16 ? dense_type(format) : 0;
    return (cuda_format){.format = format, .values = f->values, .bytes = f->bytes, .bits = f->bits, .scale_type = type};
}

static void launch_pack(const void *args, int64_t begin, int64_t end) {
    const gm_pack_args *a = args;
    cuda_pack_args p = {.pack = *a, .format = format_of(a->format)};
    (void)begin;
    p.pack.rows = end;
    p.row_bytes = a->k / p.format.values * p.format.bytes;
    p.item = !a->scales && p.row_bytes % 16 == 0 && is_aligned(a->in, 16) && is_aligned(a->out, 16) ? 16 : 1;
    cuda_start(CUDA_pack, by_threads(end * (p.row_bytes / p.item)), CUDA_THREADS, 0, &p);
}
bool cuda_pack(gm_recorder *r, const gm_pack_args *a, int64_t n) {
    gm_pack_args args = *a;
    if (a->row_map && !(args.row_map = r->constant(r, a->row_map, (size_t)n * sizeof *a->row_map))) return false;
    return r->launch(r, launch_pack, &args, sizeof args, n, 0, 0);
}

static void start_rows_out(const cuda_rows_out_args *p) {
    cuda_start(CUDA_rows_out, by_threads(p->rows * blocks_of(p->k, 8)), CUDA_THREADS, 0, p);
}
static void launch_dequantize(const void *args, int64_t begin, int64_t end) {
    const gm_dequantize_args *a = args;
    (void)begin;
    start_rows_out(&(cuda_rows_out_args){.out = a->out,
                                         .weight = a->in,
                                         .format = format_of(a->format),
                                         .rows = end,
                                         .k = a->k,
                                         .out_type = GM_T_F32,
                                         .scale = 1});
}
CUDA_CONTRACT(dequantize)
void cuda_start_rounded_rows(void *out, const gm_matrix *w, int64_t first, int64_t rows) {
    start_rows_out(&(cuda_rows_out_args){.out = out,
                                         .weight = w->data,
                                         .format = format_of(w->format),
                                         .first = first,
                                         .rows = rows,
                                         .k = w->k,
                                         .out_type = GM_T_BF16,
                                         .scale = 1});
}
static void launch_embed(const void *args, int64_t begin, int64_t end) {
    const gm_embed_args *a = args;
    (void)begin;
    start_rows_out(&(cuda_rows_out_args){.out = a->out,
                                         .weight = a->weight,
                                         .tokens = a->tokens,
                                         .format = format_of(a->format),
                                         .rows = end,
                                         .k = a->k,
                                         .out_type = GM_T_F32,
                                         .scale = a->scale});
}
bool cuda_embed(gm_recorder *r, const gm_embed_args *a, int64_t n) {
    if (a->in_rows) return r->lack(r, IN_ROWS);
    return r->launch(r, launch_embed, a, sizeof *a, n, 0, 0);
}

/* ---- products ---- */
static void start_product(const cuda_packed_args *p) {
    const int64_t blocks[3] = {blocks_of(p->rows, CUDA_THREADS / 32), blocks_of(p->tokens, CUDA_TOKENS), 1};
    cuda_start_grid(CUDA_packed_product, blocks, CUDA_THREADS, 0, p);
}
static int form_type(gm_row_form form) { return form == GM_FORM_BF16 ? GM_T_BF16 : GM_T_F32; }
static void launch_packed_matmul(const void *args, int64_t begin, int64_t end) {
    const gm_packed_matmul_args *a = args;
    const gm_matrix *w = &a->weight;
    (void)begin;
    start_product(&(cuda_packed_args){.out = a->out,
                                      .x = a->x,
                                      .residual = a->residual,
                                      .weight = {w->data, a->bias, format_of(w->format)},
                                      .tokens = end,
                                      .rows = w->rows,
                                      .k = w->k,
                                      .x_type = form_type(a->form),
                                      .glu = CUDA_NO_GLU,
                                      .out_type = GM_T_F32});
}
bool cuda_packed_matmul(gm_recorder *r, const gm_packed_matmul_args *a, int64_t n) {
    if (a->form == GM_FORM_INT8) return r->lack(r, INT8_ROWS);
    if (a->weight.in_rows) return r->lack(r, IN_ROWS);
    if (a->prompt && prompt_takes(&a->weight)) return cuda_prompt_matmul(r, a, n);
    return r->launch(r, launch_packed_matmul, a, sizeof *a, n, 0, 0);
}
static void launch_packed_glu(const void *args, int64_t begin, int64_t end) {
    const gm_packed_glu_args *a = args;
    (void)begin;
    start_product(&(cuda_packed_args){.out = a->out,
                                      .x = a->x,
                                      .weight = {a->gate.data, NULL, format_of(a->gate.format)},
                                      .up = {a->up.data, NULL, format_of(a->up.format)},
                                      .tokens = end,
                                      .rows = a->gate.rows,
                                      .k = a->gate.k,
                                      .x_type = form_type(a->form),
                                      .glu = (int32_t)a->kind,
                                      .out_type = form_type(a->out_form)});
}
bool cuda_packed_glu(gm_recorder *r, const gm_packed_glu_args *a, int64_t n) {
    if (a->form == GM_FORM_INT8 || a->out_form == GM_FORM_INT8) return r->lack(r, INT8_ROWS);
    if (a->gate.in_rows || a->up.in_rows) return r->lack(r, IN_ROWS);
    if (a->prompt && prompt_takes(&a->gate) && prompt_takes(&a->up)) return cuda_prompt_glu(r, a, n);
    return r->launch(r, launch_packed_glu, a, sizeof *a, n, 0, 0);
}

/* ---- mixtures of experts ---- */
static cuda_matrix stack_of(const gm_matrix_stack *w) { return (cuda_matrix){w->data, w->bias, format_of(w->format)}; }
static void launch_experts(const void *args, int64_t begin, int64_t end) {
    const cuda_experts_args *p = args;
    const int64_t warps = CUDA_THREADS / 32;
    (void)begin;
    cuda_start(CUDA_expert_units, end * p->top_k * blocks_of(p->inner, warps), CUDA_THREADS, 0, p);
    cuda_start(CUDA_expert_sums, end * blocks_of(p->out_dim, warps), CUDA_THREADS, 0, p);
}
bool cuda_experts(gm_recorder *r, const gm_experts_args *a, int64_t n) {
    cuda_experts_args p = {.out = a->out,
                           .x = a->x,
                           .weights = a->weights,
                           .ids = a->ids,
                           .gate = stack_of(&a->gate),
                           .up = stack_of(&a->up),
                           .down = stack_of(&a->down),
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
    return p.units && r->launch(r, launch_experts, &p, sizeof p, n, 0, 0);
}
