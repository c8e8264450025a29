/* element_checks.h - checks of copies, casts and elementwise work. */
#ifndef GOMLX_TESTS_ELEMENT_CHECKS_H
#define GOMLX_TESTS_ELEMENT_CHECKS_H
#include "device_check.h"

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
#endif
