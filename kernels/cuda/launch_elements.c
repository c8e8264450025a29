/* launch_elements.c - copies, elementwise work, arange, pad. */
#include <string.h>
#include "cuda/launch.h"
#include "cuda/results.h"

static const void *at(const void *p, int64_t elements, int64_t bytes) { return (const char *)p + elements * bytes; }
static void *at_out(void *p, int64_t elements, int64_t bytes) { return (char *)p + elements * bytes; }

/* Blocks of a kernel of which a thread takes 16 bytes `vectors` times, or CUDA_EACH elements. */
static int64_t element_blocks(bool direct, int64_t n, int64_t widest, int vectors) {
    return blocks_of(n, direct ? CUDA_THREADS * (16 / widest) * vectors : CUDA_THREADS * CUDA_EACH);
}

/* An operand whose elements have `item` bytes. */
typedef struct {
    const void *at;
    cuda_strides *steps;
    int64_t item;
} line_operand;
/* Makes groups of `each` elements of the last dimension, where args.h says that they may be made. */
static bool make_lines(cuda_shape *shape, int64_t each, int operands, const line_operand *o) {
    const int last = shape->ndim - 1;
    if (each < 2 || shape->shape[last] % each) return false;
    for (int k = 0; k < operands; k++) {
        if (o[k].steps->at[last] == 0) continue;
        if (o[k].steps->at[last] != 1 || !is_aligned(o[k].at, (size_t)(each * o[k].item))) return false;
        for (int d = 0; d < last; d++)
            if (o[k].steps->at[d] % each) return false;
    }
    shape->shape[last] /= each;
    shape->count /= each;
    for (int k = 0; k < operands; k++) o[k].steps->at[last] *= each;
    return true;
}

/* ---- launches over few elements ---- */
/* Whether a launch can be a step: its kernel is one block, what it walks over is side by side or one value. */
static bool is_step(const cuda_walk *w, int operands, int type) {
    if (type == GM_T_C64 || w->outer != 1 || w->shape.count > CUDA_STEP_ELEMENTS) return false;
    for (int k = 0; k < operands; k++)
        if (!walk_is_line(w, k) && !walk_is_one(w, k)) return false;
    return true;
}
/* Of elements of which the bits alone matter. */
static int bits_type(int64_t bytes) {
    static const int8_t types[] = {GM_T_U8, GM_T_U16, GM_T_U32, GM_T_U64};
    return types[size_index(bytes)];
}
static int32_t which_are_one(const cuda_walk *w, int operands) {
    int32_t one = 0;
    for (int k = 0; k < operands; k++) one |= walk_is_one(w, k) << k;
    return one;
}
/* Elements that one thread of a function's kernel takes, as maps.cuh has it. */
static int64_t function_each(int type) {
    const int64_t item = type_bytes(type);
    if (type == GM_T_C64) return 1;
    return is_float_type(type) ? CUDA_FLOAT_EACH(item) : CUDA_INT_EACH(item);
}
/* Which of a function's four kernels: kernels.def. */
static int function_index(int type) { return type == GM_T_F32 ? 0 : type == GM_T_F16 ? 1 : type == GM_T_BF16 ? 2 : 3; }

/* ---- copies ---- */
/* One of the dimensions but the last is the one along which `in` is side by side: the copy turns matrices of these two.
 * False where they are too small to gain by it. */
static bool launch_turn(const gm_copy_args *a, const cuda_walk *w, void *out, const void *in) {
    const cuda_shape *s = &w->shape;
    const int last = s->ndim - 1;
    int row = -1;
    if (last < 1 || w->steps[0].at[last] != 1 || w->steps[1].at[last] == 1 || w->outer_ndim) return false;
    for (int d = 0; d < last; d++)
        if (w->steps[1].at[d] == 1) row = d;
    if (row < 0 || s->shape[row] < 16 || s->shape[last] < 16) return false;
    cuda_turn_args p = {.out = out,
                        .in = in,
                        .rows = s->shape[row],
                        .columns = s->shape[last],
                        .out_row = w->steps[0].at[row],
                        .in_column = w->steps[1].at[last]};
    int64_t blocks = blocks_of(p.rows, 32) * blocks_of(p.columns, 32);
    for (int d = 0; d < last; d++) {
        if (d == row) continue;
        p.out_steps.at[p.ndim] = w->steps[0].at[d];
        p.in_steps.at[p.ndim] = w->steps[1].at[d];
        blocks *= p.shape[p.ndim++] = s->shape[d];
    }
    cuda_start((cuda_kernel)(CUDA_turn_1 + size_index(type_bytes(a->in_type))), blocks, CUDA_THREADS, 0, &p);
    return true;
}

static cuda_kernel cast_kernel(int out, int in) {
    if (in == GM_T_F32 && out == GM_T_F16) return CUDA_cast_f32_f16;
    if (in == GM_T_F32 && out == GM_T_BF16) return CUDA_cast_f32_bf16;
    if (in == GM_T_F16 && out == GM_T_F32) return CUDA_cast_f16_f32;
    if (in == GM_T_BF16 && out == GM_T_F32) return CUDA_cast_bf16_f32;
    return CUDA_cast_any;
}

/* Types between which steps convert as copies do. */
static bool is_float_or_bool(int type) { return type == GM_T_BOOL || is_float_type(type); }
static bool converts_in_steps(const gm_copy_args *a) {
    return is_float_or_bool(a->in_type) && is_float_or_bool(a->out_type);
}

static void copy_walk(const gm_copy_args *a, const cuda_walk *w, void *out, const void *in) {
    const int64_t out_item = type_bytes(a->out_type), in_item = type_bytes(a->in_type);
    const bool same = a->out_type == a->in_type;
    cuda_copy_args p = {out, in, a->out_type, a->in_type, false, w->shape, w->steps[0], w->steps[1]};
    if (same && launch_turn(a, w, out, in)) return;
    p.direct = walk_is_line(w, 0) && walk_is_line(w, 1) && is_aligned(out, 16) && is_aligned(in, 16);
    cuda_kernel kernel = (cuda_kernel)(CUDA_copy_1 + size_index(in_item));
    for (int64_t bytes = 16; same && !p.direct && bytes > in_item; bytes /= 2) { /* as items of more bytes */
        const line_operand both[2] = {{out, &p.out_steps, in_item}, {in, &p.in_steps, in_item}};
        const int64_t each = bytes / in_item;
        const int last = p.shape.ndim - 1;
        if (p.out_steps.at[last] != 1 || p.in_steps.at[last] != 1 || !make_lines(&p.shape, each, 2, both)) continue;
        for (int d = 0; d <= last; d++) {
            p.out_steps.at[d] /= each;
            p.in_steps.at[d] /= each;
        }
        kernel = bytes == 16 ? CUDA_copy_16 : (cuda_kernel)(CUDA_copy_1 + size_index(bytes));
        break;
    }
    if (!same) kernel = p.direct ? cast_kernel(a->out_type, a->in_type) : CUDA_cast_any;
    const bool direct = p.direct && kernel != CUDA_cast_any;
    const int64_t widest = out_item > in_item ? out_item : in_item;
    const int64_t blocks = element_blocks(direct, p.shape.count, widest, 2);
    if (blocks > 1 || !is_step(w, 2, a->in_type) || !(same || converts_in_steps(a))) {
        cuda_start(kernel, blocks, CUDA_THREADS, 0, &p);
        return;
    }
    const cuda_step step = {.out = out,
                            .in = {in},
                            .kind = GM_FUSED_CONVERT,
                            .type = (int16_t)(same ? bits_type(in_item) : a->in_type),
                            .out_type = (int16_t)(same ? bits_type(in_item) : a->out_type),
                            .count = (int32_t)w->shape.count,
                            .one = which_are_one(w, 2) >> 1};
    cuda_start_step(&step, kernel, &p, sizeof p);
}

void cuda_start_copy(const gm_copy_args *a, int64_t n) {
    const int64_t *const strides[2] = {a->out_strides, a->in_strides};
    cuda_walk w;
    if (n == 0 || !walk_of(&w, a->ndim, a->shape, 2, strides)) return;
    for (int64_t i = 0; i < w.outer; i++) {
        int64_t offset[2];
        walk_outer(&w, 2, i, offset);
        copy_walk(a, &w, at_out(a->out, offset[0], type_bytes(a->out_type)),
                  at(a->in, offset[1], type_bytes(a->in_type)));
    }
}
static void launch_copy(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start_copy(args, end);
}
CUDA_CONTRACT(copy)

static void launch_copy_parts(const void *args, int64_t begin, int64_t end) {
    const gm_copy_parts_args *a = args;
    for (int k = 0; a->starts[k] < end; k++) launch_copy(&a->parts[k], begin, a->starts[k + 1] - a->starts[k]);
}
CUDA_CONTRACT(copy_parts)

static void launch_copy_at(const void *args, int64_t begin, int64_t end) {
    const gm_copy_at_args *a = args;
    const gm_copy_args *c = &a->copy;
    const int64_t *const strides[2] = {c->out_strides, c->in_strides};
    cuda_walk w;
    (void)begin;
    if (end == 0 || !walk_of(&w, c->ndim, c->shape, 2, strides)) return;
    cuda_copy_at_args p = {.on_out = a->on_out,
                           .n_starts = a->n_starts,
                           .start_type = a->start_type,
                           .start = a->start,
                           .start_step = a->start_step};
    memcpy(p.steps, a->steps, (size_t)a->n_starts * sizeof *p.steps);
    memcpy(p.limits, a->limits, (size_t)a->n_starts * sizeof *p.limits);
    for (int64_t i = 0; i < w.outer; i++) {
        int64_t offset[2];
        walk_outer(&w, 2, i, offset);
        p.copy = (cuda_copy_args){at_out(c->out, offset[0], type_bytes(c->out_type)),
                                  at(c->in, offset[1], type_bytes(c->in_type)),
                                  c->out_type,
                                  c->in_type,
                                  false,
                                  w.shape,
                                  w.steps[0],
                                  w.steps[1]};
        cuda_start(CUDA_copy_at, element_blocks(false, w.shape.count, 0, 0), CUDA_THREADS, 0, &p);
    }
}
CUDA_CONTRACT_OF(copy_at, a->n_starts)

/* ---- functions of elements ---- */
static void launch_unary(const void *args, int64_t begin, int64_t end) {
    const gm_unary_args *a = args;
    cuda_walk w;
    (void)begin;
    if (end == 0 || !walk_of(&w, a->ndim, a->shape, 1, &a->strides)) return;
    const bool complex = a->type == GM_T_C64;
    const int64_t item = type_bytes(a->type);
    const int64_t out_item = gives_bool((int)a->op) ? 1 : complex && gives_real_part((int)a->op) ? 4 : item;
    const cuda_kernel kernel = complex ? CUDA_unary_complex
                                       : (cuda_kernel)(CUDA_unary_abs_f32 + 4 * (int)a->op + function_index(a->type));
    const int64_t each = function_each(a->type);
    for (int64_t i = 0; i < w.outer; i++) {
        int64_t offset;
        walk_outer(&w, 1, i, &offset);
        cuda_unary_args p = {at_out(a->out, i * w.shape.count, out_item),
                             at(a->in, offset, item),
                             (int32_t)a->op,
                             a->type,
                             false,
                             false,
                             w.shape,
                             w.steps[0]};
        const line_operand in = {p.in, &p.steps, item};
        p.direct = !complex && walk_is_line(&w, 0) && is_aligned(p.out, 16) && is_aligned(p.in, 16);
        p.lines = !p.direct && is_aligned(p.out, 16) && make_lines(&p.shape, each, 1, &in);
        const int64_t blocks = blocks_of(w.shape.count, CUDA_THREADS * each);
        if (blocks > 1 || !is_step(&w, 1, a->type)) {
            cuda_start(kernel, blocks, CUDA_THREADS, 0, &p);
            continue;
        }
        const int out_type = gives_bool((int)a->op) ? GM_T_BOOL : a->type;
        const cuda_step step = {.out = p.out,
                                .in = {p.in},
                                .kind = GM_FUSED_UNARY,
                                .function = (int16_t)a->op,
                                .type = (int16_t)a->type,
                                .out_type = (int16_t)out_type,
                                .count = (int32_t)w.shape.count,
                                .one = which_are_one(&w, 1)};
        cuda_start_step(&step, kernel, &p, sizeof p);
    }
}
CUDA_CONTRACT(unary)

static void launch_binary(const void *args, int64_t begin, int64_t end) {
    const gm_binary_args *a = args;
    const int64_t *const strides[2] = {a->a_strides, a->b_strides};
    cuda_walk w;
    (void)begin;
    if (end == 0 || !walk_of(&w, a->ndim, a->shape, 2, strides)) return;
    const bool complex = a->type == GM_T_C64, one_a = walk_is_one(&w, 0), one_b = walk_is_one(&w, 1);
    const int64_t item = type_bytes(a->type), out_item = gives_bool_2((int)a->op) ? 1 : item;
    const cuda_kernel kernel = complex ? CUDA_binary_complex
                                       : (cuda_kernel)(CUDA_binary_add_f32 + 4 * (int)a->op + function_index(a->type));
    const int64_t each = function_each(a->type);
    for (int64_t i = 0; i < w.outer; i++) {
        int64_t offset[2];
        walk_outer(&w, 2, i, offset);
        cuda_binary_args p = {at_out(a->out, i * w.shape.count, out_item),
                              at(a->a, offset[0], item),
                              at(a->b, offset[1], item),
                              (int32_t)a->op,
                              a->type,
                              false,
                              false,
                              one_a,
                              one_b,
                              w.shape,
                              w.steps[0],
                              w.steps[1]};
        const bool line_a = one_a || (walk_is_line(&w, 0) && is_aligned(p.a, 16));
        const bool line_b = one_b || (walk_is_line(&w, 1) && is_aligned(p.b, 16));
        p.direct = !complex && line_a && line_b && is_aligned(p.out, 16);
        const line_operand in[2] = {{p.a, &p.a_steps, item}, {p.b, &p.b_steps, item}};
        p.lines = !p.direct && is_aligned(p.out, 16) && make_lines(&p.shape, each, 2, in);
        const int64_t blocks = blocks_of(w.shape.count, CUDA_THREADS * each);
        if (blocks > 1 || !is_step(&w, 2, a->type)) {
            cuda_start(kernel, blocks, CUDA_THREADS, 0, &p);
            continue;
        }
        const int out_type = gives_bool_2((int)a->op) ? GM_T_BOOL : a->type;
        const cuda_step step = {.out = p.out,
                                .in = {p.a, p.b},
                                .kind = GM_FUSED_BINARY,
                                .function = (int16_t)a->op,
                                .type = (int16_t)a->type,
                                .out_type = (int16_t)out_type,
                                .count = (int32_t)w.shape.count,
                                .one = which_are_one(&w, 2)};
        cuda_start_step(&step, kernel, &p, sizeof p);
    }
}
CUDA_CONTRACT(binary)

static void launch_select(const void *args, int64_t begin, int64_t end) {
    const gm_select_args *a = args;
    const int64_t *const strides[3] = {a->cond_strides, a->a_strides, a->b_strides};
    cuda_walk w;
    (void)begin;
    if (end == 0 || !walk_of(&w, a->ndim, a->shape, 3, strides)) return;
    const int64_t item = a->item_bytes;
    for (int64_t i = 0; i < w.outer; i++) {
        int64_t offset[3];
        walk_outer(&w, 3, i, offset);
        cuda_select_args p = {at_out(a->out, i * w.shape.count, item),
                              a->cond + offset[0],
                              at(a->a, offset[1], item),
                              at(a->b, offset[2], item),
                              a->item_bytes,
                              false,
                              w.shape,
                              w.steps[0],
                              w.steps[1],
                              w.steps[2]};
        p.direct = is_aligned(p.out, 16) && is_aligned(p.cond, 16) && is_aligned(p.a, 16) && is_aligned(p.b, 16);
        for (int k = 0; k < 3; k++) p.direct = p.direct && walk_is_line(&w, k);
        const cuda_kernel kernel = (cuda_kernel)(CUDA_select_1 + size_index(item));
        const int64_t blocks = element_blocks(p.direct, w.shape.count, item, 1);
        if (blocks > 1 || !is_step(&w, 3, bits_type(item))) {
            cuda_start(kernel, blocks, CUDA_THREADS, 0, &p);
            continue;
        }
        const cuda_step step = {.out = p.out,
                                .in = {p.cond, p.a, p.b},
                                .kind = GM_FUSED_SELECT,
                                .type = (int16_t)bits_type(item),
                                .out_type = (int16_t)bits_type(item),
                                .count = (int32_t)w.shape.count,
                                .one = which_are_one(&w, 3)};
        cuda_start_step(&step, kernel, &p, sizeof p);
    }
}
CUDA_CONTRACT(select)

static bool is_float_chain(const gm_fused_args *a) {
    for (int k = 0; k < a->n_inputs; k++)
        if (!is_float_or_bool(a->input_types[k])) return false;
    for (int k = 0; k < a->n_steps; k++) {
        const gm_fused_step *s = &a->steps[k];
        const bool computes = s->kind == GM_FUSED_UNARY || s->kind == GM_FUSED_BINARY;
        if (computes ? !is_float_type(s->type) : !is_float_or_bool(s->type) || !is_float_or_bool(s->out_type))
            return false;
    }
    return is_float_or_bool(a->out_type);
}
static void start_float_chain(const gm_fused_args *a, cuda_fused_args *p) {
    line_operand in[GM_FUSED_INPUTS];
    int registers = 1;
    for (int k = 0; k + 1 < a->n_steps; k++) registers = a->steps[k].out >= registers ? a->steps[k].out + 1 : registers;
    for (int k = 0; k < a->n_inputs; k++)
        in[k] = (line_operand){p->inputs[k], &p->steps[k], type_bytes(p->input_types[k])};
    const int64_t blocks = blocks_of(p->shape.count, CUDA_FUSED_THREADS * 4);
    p->lines = is_aligned(p->out, 16) && make_lines(&p->shape, 4, a->n_inputs, in);
    cuda_start(CUDA_fused_floats, blocks, CUDA_FUSED_THREADS, (size_t)registers * CUDA_FUSED_THREADS * 16, p);
}
/* A fused chain's dimensions are few and merged already: inputs of it are up to 16, more than a walk takes. */
static void launch_fused(const void *args, int64_t begin, int64_t end) {
    const gm_fused_args *a = args;
    (void)begin;
    if (end == 0) return;
    cuda_fused_args p = {.out = a->out, .n_inputs = a->n_inputs, .n_steps = a->n_steps, .out_type = a->out_type};
    p.shape.count = end;
    p.shape.ndim = a->ndim ? a->ndim : 1;
    p.shape.shape[0] = 1;
    if (a->ndim) memcpy(p.shape.shape, a->shape, (size_t)a->ndim * sizeof *a->shape);
    for (int k = 0; k < a->n_inputs; k++) {
        p.inputs[k] = a->inputs[k];
        p.input_types[k] = a->input_types[k];
        p.input_one[k] = true;
        for (int d = 0; d < a->ndim; d++) {
            p.steps[k].at[d] = a->strides[k][d];
            p.input_one[k] = p.input_one[k] && (a->strides[k][d] == 0 || a->shape[d] == 1);
        }
        p.input_direct[k] = a->ndim == 1 && a->strides[k][0] == 1;
    }
    memcpy(p.program, a->steps, (size_t)a->n_steps * sizeof *a->steps);
    if (is_float_chain(a)) {
        start_float_chain(a, &p);
        return;
    }
    int registers = 1;
    for (int k = 0; k < a->n_steps; k++) registers = a->steps[k].out >= registers ? a->steps[k].out + 1 : registers;
    cuda_start(CUDA_fused, blocks_of(end, CUDA_FUSED_THREADS), CUDA_FUSED_THREADS,
               (size_t)registers * CUDA_FUSED_THREADS * 8, &p);
}
CUDA_CONTRACT_OF(fused, a->ndim)

static void launch_arange(const void *args, int64_t begin, int64_t end) {
    const gm_arange_args *a = args;
    const cuda_arange_args p = {a->out, a->type, end, a->start, a->step};
    (void)begin;
    cuda_start(CUDA_arange, element_blocks(false, end, 0, 0), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(arange)

static void launch_pad(const void *args, int64_t begin, int64_t end) {
    const gm_pad_args *a = args;
    (void)begin;
    if (end == 0) return;
    cuda_pad_args p = {.out = a->out, .in = a->in, .value = a->value, .item_bytes = a->item_bytes};
    p.shape.ndim = a->ndim;
    p.shape.count = 1;
    for (int d = 0; d < a->ndim; d++) {
        p.shape.count *= p.shape.shape[d] = a->shape[d];
        p.in_shape[d] = a->in_shape[d];
        p.low[d] = a->low[d];
        p.in_steps.at[d] = a->in_strides[d];
    }
    cuda_start((cuda_kernel)(CUDA_pad_1 + size_index(a->item_bytes)), element_blocks(false, p.shape.count, 0, 0),
               CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT_OF(pad, a->ndim)
