/* test_kernels.c - every contract of the GPU against the processor's on random shapes, strides, types and sizes: equal
 * bits where that is promised, a tolerance in units in the last place elsewhere. GOMLX_CUDA_DRIVER and
 * GOMLX_CUDA_KERNELS choose the card, or the fake one. test_kernels [cases [contract ...]]; prints 'N passed, M
 * failed'. */
#include "layer_checks.h"

static int64_t most_elements = 3000;

/* ---- copies ---- */
static void check_copy(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const shape_of_case s = random_shape(most_elements);
        const int in_type = random_type(true), out_type = below(2) ? in_type : random_type(true);
        int64_t in_strides[DIMS], out_strides[DIMS];
        char what[96];
        operand in = strided(&s, in_type, in_strides, true, SPECIAL), out = operand_of((size_t)s.count * 8 + 8);
        dense_strides(&s, out_strides);
        if (below(4) == 0 && s.ndim > 1) { /* out of other order */
            const int64_t first = s.shape[0], rest = s.count / (first ? first : 1);
            out_strides[0] = 1;
            int64_t step = first;
            for (int d = s.ndim - 1; d > 0; d--)
                out_strides[d] = step, step *= s.shape[d];
            (void)rest;
        }
        gm_copy_args h = {out.host, in.host, out_type, in_type, s.ndim, s.shape, out_strides, in_strides}, d = h;
        d.out = out.device;
        d.in = in.device;
        RUN_BOTH(copy, h, d, s.count, out, (size_t)(s.count * bytes_of(out_type)));
        snprintf(what, sizeof what, "%s to %s, %d dimensions", type_names[in_type], type_names[out_type], s.ndim);
        compare_out(what, out, s.count, out_type, 0.25, 0);
    }
    const int64_t turned[][2] = {{31, 33}, {64, 64}, {100, 257}, {16, 1000}, {33, 2}};
    for (int k = 0; k < 5; k++)
        for (int t = 0; t < 4; t++, free_memory()) { /* matrices turned, in batches of 3 */
            static const int types[] = {GM_T_U8, GM_T_BF16, GM_T_F32, GM_T_C64};
            const int64_t rows = turned[k][0], columns = turned[k][1], n = 3 * rows * columns;
            const int64_t shape[3] = {3, rows, columns}, in_strides[3] = {rows * columns, 1, rows};
            const int64_t out_strides[3] = {rows * columns, columns, 1};
            operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
            fill_random(in.host, n, types[t], PLAIN);
            upload(in);
            gm_copy_args h = {out.host, in.host, types[t], types[t], 3, shape, out_strides, in_strides}, d = h;
            d.out = out.device;
            d.in = in.device;
            RUN_BOTH(copy, h, d, n, out, (size_t)(n * bytes_of(types[t])));
            compare_out("a matrix turned", out, n, types[t], 0, 0);
        }
}

static void check_copy_parts(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        gm_copy_args h[3], d[3];
        int64_t starts[4] = {0}, strides[3][DIMS], out_strides[3][DIMS];
        shape_of_case s[3];
        const int type = random_type(true);
        operand out = operand_of((size_t)most_elements * 3 * 8 + 8);
        for (int k = 0; k < 3; k++) {
            s[k] = random_shape(most_elements);
            const operand in = strided(&s[k], type, strides[k], true, PLAIN);
            dense_strides(&s[k], out_strides[k]);
            h[k] = (gm_copy_args){out.host + starts[k] * bytes_of(type),
                                  in.host,
                                  type,
                                  type,
                                  s[k].ndim,
                                  s[k].shape,
                                  out_strides[k],
                                  strides[k]};
            d[k] = h[k];
            d[k].out = out.device + starts[k] * bytes_of(type);
            d[k].in = in.device;
            starts[k + 1] = starts[k] + s[k].count;
        }
        const gm_copy_parts_args all = {h, starts}, all_d = {d, starts};
        RUN_BOTH(copy_parts, all, all_d, starts[3], out, (size_t)(starts[3] * bytes_of(type)));
        compare_out("parts", out, starts[3], type, 0, 0);
    }
}

static void check_copy_at(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int type = random_type(true), start_type = below(2) ? GM_T_I32 : GM_T_I64;
        const int64_t big[2] = {20 + below(40), 20 + below(40)}, shape[2] = {1 + below(20), 1 + below(20)};
        const int64_t big_strides[2] = {big[1], 1}, small_strides[2] = {shape[1], 1};
        const int64_t limits[2] = {big[0] - shape[0], big[1] - shape[1]};
        const bool on_out = below(2);
        const int64_t n = shape[0] * shape[1], out_n = on_out ? big[0] * big[1] : n;
        operand in = operand_of((size_t)(big[0] * big[1]) * 8), out = operand_of((size_t)(big[0] * big[1]) * 8);
        operand start = operand_of(16);
        fill_random(in.host, big[0] * big[1], type, PLAIN);
        upload(in);
        for (int k = 0; k < 2; k++) {
            const int64_t at = below(80) - 10;
            memcpy(start.host + k * bytes_of(start_type), &at, (size_t)bytes_of(start_type));
        }
        upload(start);
        gm_copy_at_args h = {{out.host, in.host, type, type, 2, shape, on_out ? big_strides : small_strides,
                              on_out ? small_strides : big_strides},
                             on_out,
                             2,
                             start_type,
                             start.host,
                             1,
                             big_strides,
                             limits},
                        d = h;
        d.copy.out = out.device;
        d.copy.in = in.device;
        d.start = start.device;
        memset(out.host, 0xa5, (size_t)(out_n * bytes_of(type)));
        RUN_BOTH(copy_at, h, d, n, out, (size_t)(out_n * bytes_of(type)));
        compare_out("at a start", out, out_n, type, 0, 0);
    }
}

/* ---- functions of elements ---- */
/* Units in the last place: none where the row has the processor's own form, else what two libraries differ by. */
static double unary_ulps(gm_unary_op op, int type) {
    switch (op) {
#define VECTOR(value) return 0;
#define LIBM(value) return type == GM_T_F32 ? 8 : 1;
#define SINES(cosine) return type == GM_T_F32 ? 2 : 1;
#define NO_FLOATS return 0;
#define UNARY_VALUE(name, doc, result, work, floats, ...)                                                              \
    case GM_U_##name: floats
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return 0;
#include "unary.def"
#undef VECTOR
#undef LIBM
#undef SINES
#undef NO_FLOATS
    }
    return 0;
}
static double binary_ulps(gm_binary_op op, int type) {
    switch (op) {
#define VECTOR(value) return 0;
#define LIBM(value) return op == GM_B_remainder ? 0 : type == GM_T_F32 ? 8 : 1;
#define NO_FLOATS return 0;
#define BINARY_VALUE(name, doc, work, floats, ...)                                                                     \
    case GM_B_##name: floats
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return 0;
#include "binary.def"
#undef VECTOR
#undef LIBM
#undef NO_FLOATS
    }
    return 0;
}
enum { HAS_FLOATS = 1, HAS_INTEGERS = 2, HAS_COMPLEX = 4, GIVES_BOOL = 8, GIVES_REAL = 16 };
static int unary_has(gm_unary_op op) {
    switch (op) {
#define VECTOR(...) HAS_FLOATS
#define LIBM(...) HAS_FLOATS
#define SINES(...) HAS_FLOATS
#define NO_FLOATS 0
#define AS_FLOATS 0
#define INTEGERS(...) HAS_INTEGERS
#define NO_BOOL(...) HAS_INTEGERS
#define ONLY_INTEGERS(...) HAS_INTEGERS
#define SHIFTS(...) HAS_INTEGERS
#define AS_BOOL(...) 0
#define COMPLEX(...) HAS_COMPLEX
#define REAL_ONLY 0
#define SAME 0
#define MODULUS 0
#define REAL_PART GIVES_REAL
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, complexes, ...)                                \
    case GM_U_##name: return floats | integers | complexes | result;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return HAS_FLOATS | HAS_INTEGERS | HAS_COMPLEX | GIVES_BOOL;
#include "unary.def"
    }
    return 0;
}
static int binary_has(gm_binary_op op) {
    switch (op) {
#define BINARY_VALUE(name, doc, work, floats, doubles, integers, complexes, ...)                                       \
    case GM_B_##name: return floats | integers | complexes;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return HAS_FLOATS | HAS_INTEGERS | HAS_COMPLEX | GIVES_BOOL;
#include "binary.def"
    }
    return 0;
}
static const char *const unary_names[] = {
#define UNARY_VALUE(name, ...) #name,
#define UNARY_TEST UNARY_VALUE
#include "unary.def"
};
static const char *const binary_names[] = {
#define BINARY_VALUE(name, ...) #name,
#define BINARY_TEST BINARY_VALUE
#include "binary.def"
};
static bool takes(int has, int type) {
    return (has & (type == GM_T_C64 ? HAS_COMPLEX : is_float(type) ? HAS_FLOATS : HAS_INTEGERS)) != 0;
}

static void unary_case(gm_unary_op op, int type) {
    const int has = unary_has(op);
    const int64_t strange[] = {type == GM_T_C64};
    const shape_of_case s = random_shape(most_elements);
    const int out_type = has & GIVES_BOOL ? GM_T_BOOL : type == GM_T_C64 && has & GIVES_REAL ? GM_T_F32 : type;
    int64_t strides[DIMS];
    char what[96];
    operand in = strided(&s, type, strides, true, strange[0] ? PLAIN : SPECIAL),
            out = operand_of((size_t)s.count * 8 + 8);
    gm_unary_args h = {out.host, in.host, op, type, s.ndim, s.shape, strides}, d = h;
    d.out = out.device;
    d.in = in.device;
    RUN_BOTH(unary, h, d, s.count, out, (size_t)(s.count * bytes_of(out_type)));
    snprintf(what, sizeof what, "%s of %s", unary_names[op], type_names[type]);
    compare_out(what, out, s.count, out_type, type == GM_T_C64 ? 64 : unary_ulps(op, type), 0);
}
static void check_unary(void) {
    for (int op = 0; op < GM_U_COUNT; op++)
        for (int type = 0; type < GM_T_COUNT; type++) {
            if (type == GM_T_F64 || !takes(unary_has((gm_unary_op)op), type))
                continue;
            for (int c = 0; c < (is_float(type) ? 4 : 1); c++, free_memory())
                unary_case((gm_unary_op)op, type);
        }
}

static void binary_case(gm_binary_op op, int type) {
    const int has = binary_has(op);
    const shape_of_case s = random_shape(most_elements);
    const int out_type = has & GIVES_BOOL ? GM_T_BOOL : type;
    const values kind = type == GM_T_C64 ? PLAIN : SPECIAL;
    int64_t a_strides[DIMS], b_strides[DIMS];
    char what[96];
    operand a = strided(&s, type, a_strides, true, kind), b = strided(&s, type, b_strides, true, kind);
    operand out = operand_of((size_t)s.count * 8 + 8);
    if (below(4) == 0)
        memset(below(2) ? a_strides : b_strides, 0, sizeof a_strides); /* one value */
    gm_binary_args h = {out.host, a.host, b.host, op, type, s.ndim, s.shape, a_strides, b_strides}, d = h;
    d.out = out.device;
    d.a = a.device;
    d.b = b.device;
    RUN_BOTH(binary, h, d, s.count, out, (size_t)(s.count * bytes_of(out_type)));
    snprintf(what, sizeof what, "%s of %s", binary_names[op], type_names[type]);
    compare_out(what, out, s.count, out_type, type == GM_T_C64 ? 256 : binary_ulps(op, type), 0);
}
static void check_binary(void) {
    for (int op = 0; op < GM_B_COUNT; op++)
        for (int type = 0; type < GM_T_COUNT; type++) {
            if (type == GM_T_F64 || !takes(binary_has((gm_binary_op)op), type))
                continue;
            for (int c = 0; c < (is_float(type) ? 6 : 2); c++, free_memory())
                binary_case((gm_binary_op)op, type);
        }
}

static void check_select(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const shape_of_case s = random_shape(most_elements);
        const int type = random_type(true);
        int64_t strides[3][DIMS];
        operand cond = strided(&s, GM_T_BOOL, strides[0], true, PLAIN),
                a = strided(&s, type, strides[1], true, SPECIAL);
        operand b = strided(&s, type, strides[2], true, SPECIAL), out = operand_of((size_t)s.count * 8 + 8);
        gm_select_args h = {out.host, (uint8_t *)cond.host, a.host,     b.host,    (int)bytes_of(type), s.ndim,
                            s.shape,  strides[0],           strides[1], strides[2]},
                       d = h;
        d.out = out.device;
        d.cond = (uint8_t *)cond.device;
        d.a = a.device;
        d.b = b.device;
        RUN_BOTH(select, h, d, s.count, out, (size_t)(s.count * bytes_of(type)));
        compare_out("select", out, s.count, type, 0, 0);
    }
}

/* Chains that are the processor's bits: (a + b) * c, as half floats, where(a < b, |c|, a), integers between. */
static void check_fused(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const shape_of_case s = random_shape(most_elements);
        const int type = random_float_type(), whole = below(2) ? GM_T_I32 : GM_T_U8;
        int64_t strides[3][DIMS];
        operand in[3], out = operand_of((size_t)s.count * 8 + 8);
        const gm_fused_step steps[] = {
            {GM_FUSED_BINARY, GM_B_add, (int16_t)type, (int16_t)type, {0, 1, 0}, 0},
            {GM_FUSED_BINARY, GM_B_multiply, (int16_t)type, (int16_t)type, {3, 2, 0}, 1},
            {GM_FUSED_UNARY, GM_U_exp, (int16_t)type, (int16_t)type, {4, 0, 0}, 2},
            {GM_FUSED_BINARY, GM_B_less, (int16_t)type, GM_T_BOOL, {0, 1, 0}, 0},
            {GM_FUSED_SELECT, 0, (int16_t)type, (int16_t)type, {3, 5, 4}, 3},
            {GM_FUSED_CONVERT, 0, (int16_t)type, (int16_t)whole, {6, 0, 0}, 1},
            {GM_FUSED_BINARY, GM_B_multiply, (int16_t)whole, (int16_t)whole, {4, 4, 0}, 1},
            {GM_FUSED_CONVERT, 0, (int16_t)whole, (int16_t)type, {4, 0, 0}, 2},
            {GM_FUSED_UNARY, GM_U_abs, (int16_t)type, (int16_t)type, {5, 0, 0}, 0},
        };
        const int n_steps = 1 + (int)below(9);
        const int out_type = steps[n_steps - 1].out_type;
        for (int k = 0; k < 3; k++)
            in[k] = strided(&s, type, strides[k], true, SPECIAL);
        gm_fused_args h = {.out = out.host,
                           .n_inputs = 3,
                           .n_steps = n_steps,
                           .out_type = out_type,
                           .ndim = s.ndim,
                           .shape = s.shape,
                           .steps = steps},
                      d;
        for (int k = 0; k < 3; k++) {
            h.inputs[k] = in[k].host;
            h.input_types[k] = (int16_t)type;
            h.strides[k] = strides[k];
        }
        d = h;
        d.out = out.device;
        for (int k = 0; k < 3; k++)
            d.inputs[k] = in[k].device;
        RUN_BOTH(fused, h, d, s.count, out, (size_t)(s.count * bytes_of(out_type)));
        compare_out("a chain", out, s.count, out_type, 0.25, 0);
    }
}

static void check_arange(void) {
    static const int64_t sizes[] = {0, 1, 7, 1023, 1024, 1025, 2500};
    for (int type = 0; type < GM_T_COUNT; type++)
        for (int k = 0; k < 7 && type != GM_T_F64; k++, free_memory()) {
            operand out = operand_of((size_t)sizes[k] * 8 + 8);
            gm_arange_args h = {out.host, type, below(2) ? -3 : 0.5, below(2) ? 2 : 0.25}, d = h;
            d.out = out.device;
            RUN_BOTH(arange, h, d, sizes[k], out, (size_t)(sizes[k] * bytes_of(type)));
            compare_out(type_names[type], out, sizes[k], type, 0, 0);
        }
}

static void check_pad(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int type = random_type(true), item = (int)bytes_of(type);
        shape_of_case s = random_shape(800);
        int64_t shape[DIMS], low[DIMS], strides[DIMS], n = 1, rows = 1;
        if (s.ndim == 0)
            s.ndim = 1, s.shape[0] = s.count;
        operand in = strided(&s, type, strides, true, PLAIN), value = operand_of(8);
        for (int d = 0; d < s.ndim; d++) {
            low[d] = below(3);
            shape[d] = s.shape[d] + low[d] + below(3);
            n *= shape[d];
            if (d < s.ndim - 1)
                rows *= shape[d];
        }
        fill_random(value.host, 1, type, PLAIN);
        upload(value);
        operand out = operand_of((size_t)n * 8 + 8);
        gm_pad_args h = {out.host, in.host, value.host, item, s.ndim, shape, s.shape, low, strides}, d = h;
        d.out = out.device;
        d.in = in.device;
        d.value = value.device;
        RUN_BOTH(pad, h, d, rows, out, (size_t)(n * item));
        compare_out("pad", out, n, type, 0, 0);
    }
}

/* ---- reductions ---- */
static int reduced_type(int op, int type) {
    if (op == GM_R_ALL || op == GM_R_ANY)
        return GM_T_BOOL;
    if ((op == GM_R_SUM || op == GM_R_PROD) && type < GM_T_F16 && bytes_of(type) < 4)
        return GM_T_I32;
    return type;
}
/* Logarithms of one number differ by turns. */
static void compare_logarithms(const char *what, operand out, int64_t n, double ulps) {
    const double turn = 6.283185307179586;
    const float *want = floats_of(out.host);
    float *got = host_memory((size_t)n * 8 + 1);
    copy_bytes(got, out.device, (size_t)n * 8);
    for (int64_t i = 1; i < 2 * n; i += 2) {
        const double turns = rint(((double)got[i] - (double)want[i]) / turn);
        if (isfinite(turns))
            got[i] = (float)((double)got[i] - turns * turn);
    }
    compare(what, want, got, n, GM_T_C64, ulps, 0);
}
/* A shape whose last axes, or first ones, are reduced. */
static void reduce_case(int op, int type, shape_of_case s, int n_kept, bool first, values kind) {
    int64_t strides[DIMS], outputs = 1;
    char what[128];
    operand in = strided(&s, type, strides, false, kind);
    const int out_type = reduced_type(op, type), n_reduced = s.ndim - n_kept;
    const int64_t *kept = first ? s.shape + n_reduced : s.shape, *kept_steps = first ? strides + n_reduced : strides;
    const int64_t *reduced = first ? s.shape : s.shape + n_kept, *steps = first ? strides : strides + n_kept;
    for (int d = 0; d < n_kept; d++)
        outputs *= kept[d];
    operand out = operand_of((size_t)outputs * 8 + 8);
    gm_reduce_args h = {out.host, in.host,    (gm_reduce_op)op, type,    out_type, n_kept,
                        kept,     kept_steps, n_reduced,        reduced, steps},
                   d = h;
    d.out = out.device;
    d.in = in.device;
    RUN_BOTH(reduce, h, d, outputs, out, (size_t)(outputs * bytes_of(out_type)));
    const int64_t length = outputs ? s.count / outputs : 0;
    static const char *const names[] = {"sum", "prod", "max", "min", "all", "any", "logsumexp"};
    snprintf(what, sizeof what, "%s of %s, %lld of %lld elements", names[op], type_names[type], (long long)outputs,
             (long long)length);
    const bool sums = op == GM_R_SUM || op == GM_R_PROD || op == GM_R_LOGSUMEXP;
    /* Sums of both signs are wrong by their terms' last places: 4 is the size of a term. */
    const double ulps = !sums ? 0.25 : type == GM_T_F32 ? (op == GM_R_PROD ? 256 : 64) : type == GM_T_C64 ? 4096 : 1;
    const double floor = op == GM_R_SUM ? 4 * sqrt((double)length) : 0;
    if (op == GM_R_LOGSUMEXP && type == GM_T_C64)
        compare_logarithms(what, out, outputs, ulps);
    else
        compare_out(what, out, outputs, out_type, ulps, floor);
}
static void check_reduce(void) {
    for (int op = 0; op < GM_R_COUNT; op++)
        for (int c = 0; c < cases; c++, free_memory()) {
            int type = random_type(true);
            if (op == GM_R_LOGSUMEXP && type != GM_T_C64)
                type = random_float_type();
            shape_of_case s = random_shape(most_elements);
            const bool empty = s.count == 0 && op != GM_R_SUM && op != GM_R_PROD && op != GM_R_ALL && op != GM_R_ANY;
            if (empty || (type == GM_T_C64 && (op == GM_R_PROD)))
                continue;
            reduce_case(op, type, s, (int)below(s.ndim + 1), below(2),
                        op == GM_R_SUM || op == GM_R_PROD ? SMALL : PLAIN);
        }
    for (int op = 0; op < GM_R_COUNT; op++) /* long ones, which are cut into parts */
        for (int c = 0; c < 6; c++, free_memory()) {
            static const int64_t lengths[] = {1024, 1025, 4097, 12289, 70001, 140000};
            const int64_t width = op == GM_R_PROD ? 1 : 1 + c % 3 * 20;
            shape_of_case s = {2, {width, lengths[c]}, width * lengths[c]};
            const int type = op == GM_R_PROD ? GM_T_I32 : c % 2 ? GM_T_F32 : GM_T_BF16;
            if (op == GM_R_ALL || op == GM_R_ANY || s.count < 900000)
                reduce_case(op, type, s, 1, false, SMALL);
            free_memory();
            s = (shape_of_case){2, {lengths[c], width}, width * lengths[c]};
            reduce_case(op, type, s, 1, true, SMALL);
        }
}

static void check_arg_reduce(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        const int type = random_type(true);
        shape_of_case s = random_shape(c % 8 ? most_elements : 60000);
        int64_t strides[DIMS], outputs = 1;
        char what[96];
        if (s.count == 0 || s.ndim == 0)
            continue;
        if (c % 8 == 0)
            s = (shape_of_case){2, {3, 20011}, 60033};
        operand in = strided(&s, type, strides, false, SPECIAL);
        const bool first = below(2);
        const int64_t *kept = first ? s.shape + 1 : s.shape, *kept_steps = first ? strides + 1 : strides;
        const int64_t axis = first ? 0 : s.ndim - 1;
        for (int d = 0; d < s.ndim - 1; d++)
            outputs *= kept[d];
        operand out = operand_of((size_t)outputs * 4 + 8);
        gm_arg_reduce_args h = {(uint32_t *)out.host, in.host,       below(2),     type, s.ndim - 1, kept,
                                kept_steps,           s.shape[axis], strides[axis]},
                           d = h;
        d.out = (uint32_t *)out.device;
        d.in = in.device;
        RUN_BOTH(arg_reduce, h, d, outputs, out, (size_t)outputs * 4);
        snprintf(what, sizeof what, "arg%s of %s", h.max ? "max" : "min", type_names[type]);
        compare_out(what, out, outputs, GM_T_U32, 0, 0);
    }
}

/* ---- rows ---- */
static const int64_t row_sizes[] = {1,   2,   3,    4,    5,    31,   32,   33,    64,    127,   255,
                                    256, 257, 1000, 1024, 1025, 4096, 8200, 12288, 40000, 100001};
#define ROW_SIZES (int)(sizeof row_sizes / sizeof *row_sizes)
static void check_softmax(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int type = random_float_type();
        const int64_t dim = row_sizes[c % ROW_SIZES], rows = 1 + below(dim < 500 ? 20 : 3),
                      stride = dim + (below(2) ? below(9) : 0);
        operand in = operand_of((size_t)(rows * stride) * 4), out = operand_of((size_t)(rows * dim) * 4);
        fill_random(in.host, rows * stride, type, PLAIN);
        upload(in);
        gm_softmax_args h = {out.host, in.host, type, dim, stride}, d = h;
        d.out = out.device;
        d.in = in.device;
        RUN_BOTH(softmax, h, d, rows, out, (size_t)(rows * dim * bytes_of(type)));
        compare_out(type_names[type], out, rows * dim, type, type == GM_T_F32 ? 32 : 1, 0);
        if (stride == dim) {
            RUN_IN_PLACE(softmax, d, in, rows, out, in, rows * dim * bytes_of(type));
            compare_out("in place", out, rows * dim, type, type == GM_T_F32 ? 32 : 1, 0);
        }
    }
}
static void norm_case(int c, bool layer) {
    const int type = random_float_type();
    const int64_t dim = row_sizes[c % ROW_SIZES], rows = 1 + below(dim < 500 ? 20 : 3),
                  stride = dim + (below(2) ? below(9) : 0);
    operand x = operand_of((size_t)(rows * stride) * 4), weight = operand_of((size_t)dim * 4);
    operand bias = operand_of((size_t)dim * 4), out = operand_of((size_t)(rows * dim) * 4);
    fill_random(x.host, rows * stride, type, PLAIN);
    fill_random(weight.host, dim, type, PLAIN);
    fill_random(bias.host, dim, type, PLAIN);
    upload(x);
    upload(weight);
    upload(bias);
    const bool has_weight = below(4) > 0, has_bias = below(2);
    const double ulps = type == GM_T_F32 ? 64 : 1;
    if (layer) {
        gm_layer_norm_args
            h = {out.host, x.host, has_weight ? weight.host : NULL, has_bias ? bias.host : NULL, type, stride,
                 dim,      1e-5f},
            d = h;
        d.out = out.device;
        d.x = x.device;
        d.weight = has_weight ? weight.device : NULL;
        d.bias = has_bias ? bias.device : NULL;
        RUN_BOTH(layer_norm, h, d, rows, out, (size_t)(rows * dim * bytes_of(type)));
        compare_out(type_names[type], out, rows * dim, type, ulps, 4);
        if (stride == dim) {
            RUN_IN_PLACE(layer_norm, d, x, rows, out, x, rows * dim * bytes_of(type));
            compare_out("in place", out, rows * dim, type, ulps, 4);
        }
    } else {
        gm_rms_norm_args h = {out.host, x.host, has_weight ? weight.host : NULL, type, stride, dim, 1e-5f}, d = h;
        d.out = out.device;
        d.x = x.device;
        d.weight = has_weight ? weight.device : NULL;
        RUN_BOTH(rms_norm, h, d, rows, out, (size_t)(rows * dim * bytes_of(type)));
        compare_out(type_names[type], out, rows * dim, type, ulps, 0);
        if (stride == dim) {
            RUN_IN_PLACE(rms_norm, d, x, rows, out, x, rows * dim * bytes_of(type));
            compare_out("in place", out, rows * dim, type, ulps, 0);
        }
    }
}
static void check_rms_norm(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory())
        norm_case(c, false);
}
static void check_layer_norm(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory())
        norm_case(c, true);
}
static void check_glu(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t dim = row_sizes[c % 15], rows = 1 + below(4), gate_stride = dim + below(3),
                      up_stride = dim + below(3);
        operand gate = operand_of((size_t)(rows * gate_stride) * 4), up = operand_of((size_t)(rows * up_stride) * 4);
        operand out = operand_of((size_t)(rows * dim) * 4);
        fill_random(gate.host, rows * gate_stride, GM_T_F32, SPECIAL);
        fill_random(up.host, rows * up_stride, GM_T_F32, SPECIAL);
        upload(gate);
        upload(up);
        gm_glu_args h = {(float *)out.host, (float *)gate.host,   (float *)up.host, dim, gate_stride,
                         up_stride,         (gm_glu_kind)(c % 3), 1.702f,           7.0f},
                    d = h;
        d.out = (float *)out.device;
        d.gate = (float *)gate.device;
        d.up = (float *)up.device;
        RUN_BOTH(glu, h, d, rows, out, (size_t)(rows * dim) * 4);
        compare_out("glu", out, rows * dim, GM_T_F32, 0.25, 0);
    }
}
static void check_softcap(void) {
    for (int c = 0; c < 19; c++, free_memory()) {
        const int64_t n = row_sizes[c];
        operand x = operand_of((size_t)n * 4), out = operand_of((size_t)n * 4);
        fill_random(x.host, n, GM_T_F32, SPECIAL);
        upload(x);
        gm_softcap_args h = {(float *)out.host, (float *)x.host, 30.0f}, d = h;
        d.out = (float *)out.device;
        d.x = (float *)x.device;
        RUN_BOTH(softcap, h, d, n, out, (size_t)n * 4);
        compare_out("softcap", out, n, GM_T_F32, 0, 0);
    }
}

/* ---- orders and running sums ---- */
static void scan_case(int op, int type, int64_t rows, int64_t length, int64_t inner) {
    const int64_t n = rows * length * inner;
    const bool reverse = below(2), exclusive = below(2);
    char what[128];
    operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
    fill_random(in.host, n, type, op == GM_R_PROD ? POSITIVE : PLAIN);
    if (op == GM_R_PROD && is_float(type)) /* products stay within the type */
        for (int64_t i = 0; i < n; i++)
            put_float(in.host, i, (float)(0.97 + 0.06 * unit()), type);
    upload(in);
    gm_scan_args h = {out.host, in.host, op, type, reverse, exclusive, length, inner, NULL}, d = h;
    d.out = out.device;
    d.in = in.device;
    RUN_BOTH(scan, h, d, rows, out, (size_t)(n * bytes_of(type)));
    snprintf(what, sizeof what, "%d of %s, %lld x %lld x %lld%s%s", op, type_names[type], (long long)rows,
             (long long)length, (long long)inner, reverse ? ", reversed" : "", exclusive ? ", exclusive" : "");
    const bool extremes = op == GM_R_MAX || op == GM_R_MIN;
    const double ulps = extremes ? 0.25 : type == GM_T_C64 ? 1e6 : type == GM_T_F32 ? (op == GM_R_PROD ? 8192 : 64) : 2;
    const double floor = op == GM_R_SUM ? 4 * sqrt((double)length) : op == GM_R_LOGSUMEXP ? 4 : 0;
    compare_out(what, out, n, type, ulps, floor);
    RUN_IN_PLACE(scan, d, in, rows, out, in, n * bytes_of(type));
    compare_out("in place", out, n, type, ulps, floor);
}
static void check_scan(void) {
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 300, 1025, 4096, 4097, 9000};
    static const int ops[] = {GM_R_SUM, GM_R_PROD, GM_R_MAX, GM_R_MIN, GM_R_LOGSUMEXP};
    for (int op = 0; op < 5; op++)
        for (int c = 0; c < cases; c++, free_memory()) {
            const int64_t length = lengths[below(10)], inner = below(2) ? 1 : 1 + below(40);
            const int type = ops[op] == GM_R_LOGSUMEXP ? random_float_type() : random_type(ops[op] != GM_R_PROD);
            if (length * inner < 40000)
                scan_case(ops[op], type, 1 + below(3), length, inner);
        }
}

static void check_sort(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        const int64_t lengths[] = {1, 2, 3, 31, 64, 65, 1000, 2048, 2049, 4096, 5001, 12289};
        const int64_t length = lengths[c % 12], rows = 1 + below(3), n = rows * length;
        const int type = random_type(true);
        const bool indices = below(2);
        char what[96];
        operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
        fill_random(in.host, n, type, SPECIAL);
        upload(in);
        gm_sort_args h = {out.host, in.host, host_memory((size_t)n * 16), type, indices, length}, d = h;
        d.out = out.device;
        d.in = in.device;
        const int out_type = indices ? GM_T_U32 : type;
        RUN_BOTH(sort, h, d, rows, out, (size_t)(n * bytes_of(out_type)));
        snprintf(what, sizeof what, "%s of %s, rows of %lld", indices ? "indices" : "values", type_names[type],
                 (long long)length);
        compare_out(what, out, n, out_type, 0, 0);
        if (!indices) {
            RUN_IN_PLACE(sort, d, in, rows, out, in, n * bytes_of(type));
            compare_out("in place", out, n, type, 0, 0);
        }
    }
}
static void check_partition(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int64_t lengths[] = {1, 2, 3, 31, 65, 1000, 2048, 2049, 5001};
        const int64_t length = lengths[c % 9], rows = 1 + below(3), n = rows * length;
        int type = random_type(false);
        if (bytes_of(type) == 8)
            type = GM_T_F32;
        const bool indices = below(2);
        operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
        fill_random(in.host, n, type, SPECIAL);
        upload(in);
        gm_partition_args h = {out.host, in.host, type, indices, length, below(length)}, d = h;
        d.out = out.device;
        d.in = in.device;
        const int out_type = indices ? GM_T_U32 : type;
        RUN_BOTH(partition, h, d, rows, out, (size_t)(n * bytes_of(out_type)));
        compare_out(type_names[type], out, n, out_type, 0, 0);
    }
}
static void check_topk(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t lengths[] = {1, 3, 65, 1000, 2049, 5001};
        const int64_t length = lengths[c % 6], rows = 1 + below(3), most = length < 1024 ? length : 1024,
                      k = 1 + below(most);
        const int type = random_float_type();
        operand in = operand_of((size_t)(rows * length) * 4), out = operand_of((size_t)(rows * k) * 4);
        fill_random(in.host, rows * length, type, SPECIAL);
        upload(in);
        gm_topk_args h = {out.host, in.host, type, length, k}, d = h;
        d.out = out.device;
        d.in = in.device;
        RUN_BOTH(topk, h, d, rows, out, (size_t)(rows * k * bytes_of(type)));
        compare_out(type_names[type], out, rows * k, type, 0.25, 0); /* of equal zeros either */
    }
}
static void check_search(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t length = below(400), n = 1 + below(500);
        const int type = random_type(true);
        operand in = operand_of((size_t)length * 8 + 8), sorted = operand_of((size_t)length * 8 + 8);
        operand values = operand_of((size_t)n * 8), out = operand_of((size_t)n * 4);
        fill_random(in.host, length, type, SPECIAL);
        fill_random(values.host, n, type, SPECIAL);
        gm_sort_args order = {sorted.host, in.host, host_memory((size_t)length * 16 + 16), type, false, length};
        if (length)
            contracts_cpu.sort(&host_recorder, &order, 1);
        upload(sorted);
        upload(values);
        gm_search_args h = {(uint32_t *)out.host, sorted.host, values.host, type, below(2), length}, d = h;
        d.out = (uint32_t *)out.device;
        d.sorted = sorted.device;
        d.values = values.device;
        RUN_BOTH(search, h, d, n, out, (size_t)n * 4);
        compare_out(type_names[type], out, n, GM_T_U32, 0, 0);
    }
}
static void check_word_order(void) {
    for (int c = 0; c < 12; c++, free_memory()) {
        const int64_t lengths[] = {1, 7, 2048, 2049, 6000, 100};
        const int64_t n = lengths[c % 6], lines = 1 + below(3);
        operand in = operand_of((size_t)(lines * n) * 4), out = operand_of((size_t)(lines * n) * 4);
        for (int64_t i = 0; i < lines * n; i++)
            ((uint32_t *)in.host)[i] = (uint32_t)(c % 2 ? next_random() : next_random() % 50);
        upload(in);
        gm_word_order_args h = {(uint32_t *)out.host, (uint32_t *)in.host, NULL, n}, d = h;
        d.out = (uint32_t *)out.device;
        d.in = (uint32_t *)in.device;
        RUN_BOTH(word_order, h, d, lines, out, (size_t)(lines * n) * 4);
        compare_out("words", out, lines * n, GM_T_U32, 0, 0);
    }
}
static void check_threefry(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t keys = 1 + below(3), words = 1 + below(700);
        const gm_random_kind kind = (gm_random_kind)(c % 4);
        const int type = kind == GM_RANDOM_BITS ? GM_T_U32 : random_float_type();
        operand key = operand_of((size_t)keys * 8), out = operand_of((size_t)(keys * words) * 4);
        fill_random(key.host, 2 * keys, GM_T_U32, PLAIN);
        upload(key);
        gm_threefry_args h = {out.host, (uint32_t *)key.host, kind, type, words, 2.5f, -0.75f}, d = h;
        d.out = out.device;
        d.keys = (uint32_t *)key.device;
        RUN_BOTH(threefry, h, d, keys * ((words + 1) / 2), out, (size_t)(keys * words * bytes_of(type)));
        compare_out(type_names[type], out, keys * words, type, 0.25, 0);
    }
}

/* ---- indices ---- */
static gm_index_fault *fault_words(void) { /* of the host and the device */
    static gm_index_fault *words;
    if (!words)
        words = device_cuda.pinned(2 * sizeof *words);
    if (!words)
        die("pinned memory");
    memset(words, 0, 2 * sizeof *words);
    return words;
}
static void check_faults(const char *what, const gm_index_fault *words) {
    wait_for_device();
    if (words[0].raised == words[1].raised)
        passed++;
    else
        failed++, printf("  FAILED %s: a fault is %d, not %d\n", what, words[1].raised, words[0].raised);
}
static void random_indices(operand o, int64_t n, int type, int64_t size, bool may_fail) {
    for (int64_t i = 0; i < n; i++) {
        const bool is_signed = type == GM_T_I32 || type == GM_T_I64;
        int64_t x = may_fail && below(40) == 0 ? size + 3 : below(size);
        if (is_signed && below(3) == 0)
            x -= size;
        memcpy(o.host + i * bytes_of(type), &x, (size_t)bytes_of(type));
    }
    upload(o);
}
static void check_positions(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const shape_of_case s = random_shape(most_elements);
        gm_index_fault *words = fault_words();
        gm_positions_index h_index[2], d_index[2];
        int64_t strides[2][DIMS];
        operand out = operand_of((size_t)s.count * 8 + 8);
        for (int k = 0; k < 2; k++) {
            const int type = below(2) ? GM_T_I32 : GM_T_I64;
            const int64_t size = 1 + below(50);
            operand in = strided(&s, type, strides[k], false, PLAIN);
            for (size_t i = 0; i < in.bytes / (size_t)bytes_of(type); i++) {
                const int64_t x = below(20) == 0 && c % 2 ? 60 : below(2 * size) - size;
                memcpy(in.host - in.before + i * (size_t)bytes_of(type), &x, (size_t)bytes_of(type));
            }
            upload(in);
            h_index[k] = (gm_positions_index){in.host, type, size, k ? 1 : 100, strides[k], &words[0]};
            d_index[k] = h_index[k];
            d_index[k].data = in.device;
            d_index[k].fault = &words[1];
        }
        gm_positions_args h = {(int64_t *)out.host, 2, s.ndim, h_index, s.shape}, d = h;
        d.out = (int64_t *)out.device;
        d.indices = d_index;
        RUN_BOTH(positions, h, d, s.count, out, (size_t)s.count * 8);
        compare_out("positions", out, s.count, GM_T_I64, 0, 0);
        check_faults("positions", words);
    }
}
/* Rows of `run` of [lead, size, run] by an index of `count` for each lead; by_element: an index for each element. */
static void check_take(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        static const int index_types[] = {GM_T_I32, GM_T_U32, GM_T_I64, GM_T_U64};
        const int type = random_type(true), index_type = index_types[below(4)];
        const int64_t lead = 1 + below(3), size = 1 + below(40), run = 1 + below(70), count = 1 + below(60);
        const bool by_element = below(3) == 0, shared_index = below(2);
        gm_index_fault *words = fault_words();
        const int64_t index_lead = shared_index ? 0 : by_element ? count * run : count;
        const int64_t sparse = size * run, dense = count * run, n = lead * count * run;
        operand in = operand_of((size_t)(lead * size * run) * 8), out = operand_of((size_t)n * 8);
        operand index = operand_of((size_t)(lead * count * run) * 8);
        fill_random(in.host, lead * size * run, type, PLAIN);
        upload(in);
        random_indices(index, lead * count * run, index_type, size, c % 3 == 0);
        gm_take_args h = {.out = out.host,
                          .in = in.host,
                          .index = index.host,
                          .type = type,
                          .in_type = type,
                          .index_type = index_type,
                          .size = size,
                          .step = run,
                          .fault = &words[0],
                          .ndim = 1,
                          .shape = &lead,
                          .sparse_strides = &sparse,
                          .dense_strides = &dense,
                          .index_strides = &index_lead,
                          .count = count,
                          .dense_step = run,
                          .index_step = by_element ? run : 1,
                          .run = run,
                          .sparse_run = 1,
                          .dense_run = 1,
                          .index_run = by_element},
                     d = h;
        d.out = out.device;
        d.in = in.device;
        d.index = index.device;
        d.fault = &words[1];
        RUN_BOTH(take, h, d, lead * count, out, (size_t)(n * bytes_of(type)));
        compare_out(type_names[type], out, n, type, 0, 0);
        check_faults("take", words);
    }
}
static void check_scatter(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        static const int index_types[] = {GM_T_I32, GM_T_U32, GM_T_I64, GM_T_U64};
        const int type = random_type(true), index_type = index_types[below(4)], mode = (int)below(GM_S_COUNT);
        const int in_type = type == GM_T_F32 && mode != GM_S_UPDATE && below(3) == 0 ? GM_T_BF16 : type;
        const int64_t lead = 1 + below(3), size = 1 + below(40), run = c % 5 ? 1 + below(40) : 1;
        const int64_t count = c % 6 ? 1 + below(60) : 2500;
        const bool by_element = below(3) == 0, shared_index = below(2);
        gm_index_fault *words = fault_words();
        const int64_t index_lead = shared_index ? 0 : by_element ? count * run : count;
        const int64_t sparse = size * run, dense = count * run, n = lead * size * run;
        operand in = operand_of((size_t)(lead * count * run) * 8), out = operand_of((size_t)n * 8);
        operand index = operand_of((size_t)(lead * count * run) * 8);
        char *before = host_memory((size_t)n * 8), *got = host_memory((size_t)n * 8), what[96];
        fill_random(in.host, lead * count * run, in_type, PLAIN);
        fill_random(before, n, type, PLAIN);
        memcpy(out.host, before, (size_t)n * 8);
        upload(in);
        upload(out);
        random_indices(index, lead * count * run, index_type, size, c % 3 == 0);
        gm_scatter_args h = {.out = out.host,
                             .in = in.host,
                             .index = index.host,
                             .type = type,
                             .in_type = in_type,
                             .index_type = index_type,
                             .mode = mode,
                             .size = size,
                             .step = run,
                             .fault = &words[0],
                             .ndim = 1,
                             .shape = &lead,
                             .sparse_strides = &sparse,
                             .dense_strides = &dense,
                             .index_strides = &index_lead,
                             .count = count,
                             .dense_step = run,
                             .index_step = by_element ? run : 1,
                             .run = run,
                             .sparse_run = 1,
                             .dense_run = 1,
                             .index_run = by_element,
                             .span = size * run},
                        d = h;
        d.out = out.device;
        d.in = in.device;
        d.index = index.device;
        d.fault = &words[1];
        contracts_cpu.scatter(&host_recorder, &h, lead * run);
        if (!device_cuda.contracts->scatter(&device_recorder, &d, lead * run))
            failed++;
        copy_bytes(got, out.device, (size_t)(n * bytes_of(type)));
        snprintf(what, sizeof what, "%s of %s by %s, %lld to %lld",
                 (const char *[]){"update", "add", "multiply", "max", "min"}[mode], type_names[type],
                 by_element ? "elements" : "rows", (long long)count, (long long)size);
        compare(what, out.host, got, n, type, type == GM_T_C64 ? 64 : 0, 0);
        check_faults("scatter", words);
    }
}

/* Sums of many float32, which are made bucket by bucket. */
static void check_scatter_sums(void) {
    static const int64_t sizes[] = {1, 200, 256, 1000, 65536};
    for (int c = 0; c < 5; c++, free_memory()) {
        const int64_t count = ((int64_t)1 << 18) + below(9000), size = sizes[c], none = 0;
        gm_index_fault *words = fault_words();
        operand in = operand_of((size_t)count * 4), out = operand_of((size_t)size * 4),
                index = operand_of((size_t)count * 4);
        char *got = host_memory((size_t)size * 4);
        fill_random(in.host, count, GM_T_F32, PLAIN);
        fill_random(out.host, size, GM_T_F32, PLAIN);
        random_indices(index, count, GM_T_I32, size, c == 3);
        upload(in);
        upload(out);
        gm_scatter_args h = {.out = out.host,
                             .in = in.host,
                             .index = index.host,
                             .type = GM_T_F32,
                             .in_type = GM_T_F32,
                             .index_type = GM_T_I32,
                             .mode = GM_S_ADD,
                             .size = size,
                             .step = 1,
                             .fault = &words[0],
                             .ndim = 0,
                             .shape = &none,
                             .count = count,
                             .dense_step = 1,
                             .index_step = 1,
                             .run = 1,
                             .sparse_run = 1,
                             .dense_run = 1,
                             .span = size},
                        d = h;
        d.out = out.device;
        d.in = in.device;
        d.index = index.device;
        d.fault = &words[1];
        contracts_cpu.scatter(&host_recorder, &h, 1);
        if (!device_cuda.contracts->scatter(&device_recorder, &d, 1))
            failed++;
        copy_bytes(got, out.device, (size_t)size * 4);
        compare("many sums", out.host, got, size, GM_T_F32, 0, 0);
        check_faults("scatter", words);
    }
}

/* ---- products ---- */
static int64_t product_size(void) {
    static const int64_t sizes[] = {1, 2, 7, 8, 16, 24, 31, 33, 64, 65, 127, 128, 130, 136, 200};
    return sizes[below(15)];
}
static void check_product(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        static const int types[] = {GM_T_F16, GM_T_BF16, GM_T_F32, GM_T_C64};
        const int type = types[c % 4];
        const bool is_long = c % 8 == 2; /* a sum that is cut, but where something is added */
        const int64_t rows = product_size(), columns = product_size();
        const int64_t k = is_long     ? 512 + below(1500)
                          : below(20) ? product_size()
                                      : 0,
                      batch = is_long ? 1 : 1 + below(3);
        const bool turned_x = below(4) == 0, turned_w = below(2), has_add = type != GM_T_C64 && below(3) == 0;
        const bool one_w = below(3) == 0; /* the same matrix for the whole batch */
        operand x = operand_of((size_t)(batch * rows * k) * 8 + 8),
                w = operand_of((size_t)(batch * columns * k) * 8 + 8);
        operand add = operand_of((size_t)(batch * rows * columns) * 8),
                out = operand_of((size_t)(batch * rows * columns) * 8);
        fill_random(x.host, batch * rows * k, type, PLAIN);
        fill_random(w.host, batch * columns * k, type, PLAIN);
        fill_random(add.host, batch * rows * columns, type, PLAIN);
        upload(x);
        upload(w);
        upload(add);
        const int64_t out_step = rows * columns, x_step = rows * k, w_step = one_w ? 0 : columns * k, add_step = 0;
        gm_product_args h = {.out = out.host,
                             .x = x.host,
                             .w = w.host,
                             .add = has_add ? add.host : NULL,
                             .type = type,
                             .rows = rows,
                             .columns = columns,
                             .k = k,
                             .out_row = columns,
                             .out_column = 1,
                             .x_row = turned_x ? 1 : k,
                             .x_k = turned_x ? rows : 1,
                             .w_k = turned_w ? 1 : columns,
                             .w_column = turned_w ? k : 1,
                             .add_row = below(2) ? columns : 0,
                             .add_column = 1,
                             .ndim = 1,
                             .shape = &batch,
                             .out_strides = &out_step,
                             .x_strides = &x_step,
                             .w_strides = &w_step,
                             .add_strides = &add_step,
                             .alpha = has_add ? 0.5f : 1,
                             .beta = 2},
                        d = h;
        char what[96];
        d.out = out.device;
        d.x = x.device;
        d.w = w.device;
        d.add = has_add ? add.device : NULL;
        RUN_BOTH(product, h, d, batch, out, (size_t)(batch * rows * columns * bytes_of(type)));
        snprintf(what, sizeof what, "%s %lld x %lld x %lld%s", type_names[type], (long long)rows, (long long)columns,
                 (long long)k, turned_w ? ", w along k" : "");
        /* Terms are up to 16 and of both signs. */
        compare_out(what, out, batch * rows * columns, type,
                    type == GM_T_F32   ? 32
                    : type == GM_T_C64 ? 1e7
                                       : 2,
                    16 * sqrt((double)k + 1));
    }
}
static void check_gather_product(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        static const int types[] = {GM_T_F16, GM_T_BF16, GM_T_F32};
        const int type = types[c % 3];
        const int64_t rows = 1 + below(4), columns = product_size(), k = product_size(), items = 1 + below(6);
        operand x = operand_of((size_t)(3 * rows * k) * 4), w = operand_of((size_t)(4 * columns * k) * 4);
        operand xi = operand_of((size_t)items * 4), wi = operand_of((size_t)items * 4);
        operand out = operand_of((size_t)(items * rows * columns) * 4);
        fill_random(x.host, 3 * rows * k, type, PLAIN);
        fill_random(w.host, 4 * columns * k, type, PLAIN);
        for (int64_t i = 0; i < items; i++) {
            ((int32_t *)xi.host)[i] = (int32_t)below(5) - 1;
            ((int32_t *)wi.host)[i] = (int32_t)below(6) - 1;
        }
        upload(x);
        upload(w);
        upload(xi);
        upload(wi);
        gm_gather_product_args h = {{.out = out.host,
                                     .x = x.host,
                                     .w = w.host,
                                     .type = type,
                                     .rows = rows,
                                     .columns = columns,
                                     .k = k,
                                     .out_row = columns,
                                     .out_column = 1,
                                     .x_row = k,
                                     .x_k = 1,
                                     .w_k = 1,
                                     .w_column = k,
                                     .alpha = 1},
                                    (int32_t *)xi.host,
                                    (int32_t *)wi.host,
                                    3,
                                    4,
                                    rows * k,
                                    columns * k},
                               d = h;
        d.product.out = out.device;
        d.product.x = x.device;
        d.product.w = w.device;
        d.x_index = (int32_t *)xi.device;
        d.w_index = (int32_t *)wi.device;
        RUN_BOTH(gather_product, h, d, items, out, (size_t)(items * rows * columns * bytes_of(type)));
        compare_out(type_names[type], out, items * rows * columns, type, type == GM_T_F32 ? 32 : 2,
                    16 * sqrt((double)k));
    }
}

static const struct {
    const char *name;
    void (*check)(void);
    const char *promise;
} checks[] = {
    {"copy", check_copy, "equal bits"},
    {"copy_parts", check_copy_parts, "equal bits"},
    {"copy_at", check_copy_at, "equal bits"},
    {"unary", check_unary, "equal bits where the row is a vector form, else 8 ulp; complex 64"},
    {"binary", check_binary, "equal bits where the row is a vector form, else 8 ulp; complex 256"},
    {"select", check_select, "equal bits"},
    {"fused", check_fused, "equal bits"},
    {"arange", check_arange, "equal bits"},
    {"pad", check_pad, "equal bits"},
    {"reduce", check_reduce, "integers and extremes equal; sums within 64 ulp of their terms"},
    {"arg_reduce", check_arg_reduce, "equal"},
    {"softmax", check_softmax, "32 ulp, halves 1"},
    {"rms_norm", check_rms_norm, "64 ulp, halves 1"},
    {"layer_norm", check_layer_norm, "64 ulp of 4, halves 1"},
    {"glu", check_glu, "equal bits"},
    {"softcap", check_softcap, "equal bits"},
    {"scan", check_scan, "integers and extremes equal; sums within 64 ulp of their terms"},
    {"sort", check_sort, "equal"},
    {"partition", check_partition, "equal"},
    {"topk", check_topk, "equal, but for the sign of zeros"},
    {"search", check_search, "equal"},
    {"word_order", check_word_order, "equal"},
    {"threefry", check_threefry, "equal bits"},
    {"positions", check_positions, "equal"},
    {"take", check_take, "equal"},
    {"scatter", check_scatter, "equal bits, in the order of i"},
    {"scatter_sums", check_scatter_sums, "equal bits, in the order of i"},
    {"product", check_product, "32 ulp of a sum's size, halves 2"},
    {"gather_product", check_gather_product, "as product"},
    {"fp8_encode", check_fp8_encode, "equal"},
    {"fp8_decode", check_fp8_decode, "equal bits"},
    {"group_quantize", check_group_quantize, "equal bits"},
    {"group_dequantize", check_group_dequantize, "equal bits"},
    {"quantized_matmul", check_quantized_matmul, "64 ulp of the largest, halves 1"},
    {"quantized_matmul_columns", check_quantized_matmul_columns, "64 ulp of the largest, halves 1"},
    {"rope_angles", check_rope_angles, "4 ulp"},
    {"rope_table", check_rope_table, "4 ulp"},
    {"rope", check_rope, "equal bits"},
    {"glu_grad", check_glu_grad, "equal bits"},
    {"rms_norm_grad", check_rms_norm_grad, "256 ulp of the largest"},
    {"row_loss", check_row_loss, "64 ulp of 1"},
    {"gated_delta", check_gated_delta, "256 ulp of the largest"},
    {"recurrent_delta", check_recurrent_delta, "256 ulp of the largest"},
    {"recurrent_conv", check_recurrent_conv, "256 ulp of the largest"},
    {"convolution", check_convolution, "32 ulp of a sum's size, halves 2"},
    {"sdpa", check_sdpa, "128 ulp of 1, halves 1"},
};

int main(int argc, char **argv) {
    char why[DEVICE_WHY] = "";
    const char *unknown = NULL;
    gm_device_facts facts;
    if (argc > 1)
        cases = atoi(argv[1]);
    host_recorder.kernels = device_recorder.kernels = kernels_select(&unknown);
    device_recorder.contracts = device_cuda.contracts;
    if (device_cuda.open(0, &device, why) != DEVICE_OK) {
        printf("no device: %s\n", why);
        return 2;
    }
    device_cuda.facts(device, &facts);
    printf("%s, %s, driver %s, %s; the processor's table: %s\n", facts.name, facts.architecture, facts.driver,
           facts.kernels, kernels_isa(host_recorder.kernels));
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        bool wanted = argc < 3;
        for (int k = 2; k < argc; k++)
            wanted = wanted || strcmp(argv[k], checks[i].name) == 0;
        if (!wanted)
            continue;
        begin_contract();
        checks[i].check();
        end_contract(checks[i].name, checks[i].promise);
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed > 0;
}
