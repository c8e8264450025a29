/* programs.cu - what chooses among all functions while it runs: chains of elementwise steps, and functions of complex
 * numbers. */
#include "functions.cuh"

KERNEL(gm_unary_complex, cuda_unary_args, CUDA_THREADS) {
    const int64_t i = block_index() * thread_count() + thread_index();
    if (i >= a.shape.count) return;
    const c64 z = ((const c64 *)a.in)[offset_of(a.shape, a.steps, i)];
    if (gives_real_part(a.op)) ((float *)a.out)[i] = unary_complex(z, a.op).re;
    else if (gives_bool(a.op)) ((uint8_t *)a.out)[i] = test_complex(z, a.op);
    else ((c64 *)a.out)[i] = unary_complex(z, a.op);
}
KERNEL(gm_binary_complex, cuda_binary_args, CUDA_THREADS) {
    const int64_t i = block_index() * thread_count() + thread_index();
    if (i >= a.shape.count) return;
    const cuda_strides *const steps[2] = {&a.a_steps, &a.b_steps};
    const offsets<2> o = offsets_of<2>(a.shape, steps, i);
    const c64 x = ((const c64 *)a.a)[o.at[0]], y = ((const c64 *)a.b)[o.at[1]];
    if (gives_bool_2(a.op)) ((uint8_t *)a.out)[i] = compare_complex(x, y, a.op);
    else ((c64 *)a.out)[i] = binary_complex(x, y, a.op);
}

/* ---- chains ---- */
/* A register: a float as its type holds it, an integer as int64, or a complex number. */
struct value {
    uint64_t bits;
    METHOD float real() const { return float_of_bits((uint32_t)bits); }
    METHOD int64_t whole() const { return (int64_t)bits; }
    METHOD c64 complex() const { return c64(float_of_bits((uint32_t)bits), float_of_bits((uint32_t)(bits >> 32))); }
};
DEVICE value of_real(float x, int type) { return {bits_of_float(round_float(x, type))}; }
DEVICE value of_whole(int64_t x, int type) { /* cut to the type, and widened again */
    const int unused = 64 - 8 * item_size(type);
    if (type == GM_T_BOOL) return {(uint64_t)(x != 0)};
    const uint64_t top = (uint64_t)x << unused;
    return {is_signed_type(type) ? (uint64_t)((int64_t)top >> unused) : top >> unused};
}
DEVICE value of_complex(c64 z) { return {bits_of_float(z.re) | (uint64_t)bits_of_float(z.im) << 32}; }
DEVICE value load_value(const void *p, int64_t i, int type) {
    if (is_float_type(type)) return {bits_of_float(load_float(p, i, type))};
    if (type == GM_T_C64) return of_complex(((const c64 *)p)[i]);
    return {(uint64_t)load_int(p, i, type)};
}
DEVICE void store_value(void *p, int64_t i, value x, int type) {
    if (is_float_type(type)) store_float(p, i, x.real(), type);
    else if (type == GM_T_C64) ((c64 *)p)[i] = x.complex();
    else store_int(p, i, x.whole(), type);
}
DEVICE value convert_value(value x, int from, int to) {
    if (is_int_type(from) && is_int_type(to)) return of_whole(x.whole(), to);
    if (from == GM_T_C64 && to == GM_T_BOOL) return {(uint64_t)(x.complex() != c64(0.0f))};
    if (from == to) return x;
    const double y = from == GM_T_C64      ? (double)x.complex().re
                     : is_float_type(from) ? (double)x.real()
                     : from == GM_T_U64    ? (double)x.bits
                                           : (double)x.whole();
    if (to == GM_T_C64) return of_complex(c64((float)y));
    return is_float_type(to) ? of_real((float)y, to) : of_whole(int_of_double(y, to), to);
}
DEVICE value unary_step(const gm_fused_step &s, value x) {
    if (is_float_type(s.type)) {
        if (gives_bool(s.function)) return {(uint64_t)unary_test(x.real(), s.function)};
        return of_real(unary_float(x.real(), s.function, s.type), s.type);
    }
    if (s.type != GM_T_C64)
        return of_whole(unary_int(x.whole(), s.function, s.type), gives_bool(s.function) ? GM_T_BOOL : s.type);
    if (gives_bool(s.function)) return {(uint64_t)test_complex(x.complex(), s.function)};
    const c64 z = unary_complex(x.complex(), s.function);
    return gives_real_part(s.function) ? of_real(z.re, GM_T_F32) : of_complex(z);
}
DEVICE value binary_step(const gm_fused_step &s, value x, value y) {
    if (is_float_type(s.type)) {
        if (gives_bool_2(s.function)) return {(uint64_t)binary_test(x.real(), y.real(), s.function)};
        return of_real(binary_float(x.real(), y.real(), s.function), s.type);
    }
    if (s.type != GM_T_C64)
        return of_whole(binary_int(x.whole(), y.whole(), s.function, s.type),
                        gives_bool_2(s.function) ? GM_T_BOOL : s.type);
    if (gives_bool_2(s.function)) return {(uint64_t)compare_complex(x.complex(), y.complex(), s.function)};
    return of_complex(binary_complex(x.complex(), y.complex(), s.function));
}
/* Registers are in the block's memory: [register][thread]. */
KERNEL(gm_fused, cuda_fused_args, CUDA_FUSED_THREADS) {
    value *registers = (value *)block_memory() + thread_index();
    const int64_t i = block_index() * CUDA_FUSED_THREADS + thread_index();
    if (i >= a.shape.count) return;
    const auto operand = [&](int k) {
        if (k >= a.n_inputs) return registers[(k - a.n_inputs) * CUDA_FUSED_THREADS];
        const int64_t at = a.input_one[k] ? 0 : a.input_direct[k] ? i : offset_of(a.shape, a.steps[k], i);
        return load_value(a.inputs[k], at, a.input_types[k]);
    };
    value result = {0};
    for (int k = 0; k < a.n_steps; k++) {
        const gm_fused_step s = a.program[k];
        const value x = operand(s.in[0]);
        if (s.kind == GM_FUSED_UNARY) result = unary_step(s, x);
        else if (s.kind == GM_FUSED_BINARY) result = binary_step(s, x, operand(s.in[1]));
        else if (s.kind == GM_FUSED_SELECT) result = x.whole() ? operand(s.in[1]) : operand(s.in[2]);
        else result = convert_value(x, s.type, s.out_type);
        registers[s.out * CUDA_FUSED_THREADS] = result;
    }
    store_value(a.out, i, result, a.out_type);
}

/* Launches over few elements, one after another. */
KERNEL(gm_steps, cuda_steps_args, CUDA_THREADS) {
    for (int k = 0; k < a.n_steps; k++) {
        const cuda_step &own = a.steps[k];
        const gm_fused_step s = {own.kind, own.function, own.type, own.out_type};
        for (int i = thread_index(); i < own.count; i += CUDA_THREADS) {
            const auto operand = [&](int j, int type) { return load_value(own.in[j], own.one >> j & 1 ? 0 : i, type); };
            value result;
            if (s.kind == GM_FUSED_UNARY) result = unary_step(s, operand(0, s.type));
            else if (s.kind == GM_FUSED_BINARY) result = binary_step(s, operand(0, s.type), operand(1, s.type));
            else if (s.kind == GM_FUSED_SELECT) result = operand(operand(0, GM_T_BOOL).whole() ? 1 : 2, s.type);
            else result = convert_value(operand(0, s.type), s.type, s.out_type);
            store_value(own.out, i, result, s.out_type);
        }
        barrier();
    }
}

/* ---- chains of floats alone: four elements a thread, so that a step is looked up once for all of them ---- */
#define QUAD 4
typedef pack<uint32_t, QUAD> quad; /* floats as their types hold them, or truths */
DEVICE_CALL float unary_apart(float x, int op, int type) { return unary_float(x, op, type); }
DEVICE_CALL float binary_apart(float x, float y, int op) { return binary_float(x, y, op); }
DEVICE void unary_floats(float (&out)[QUAD], const float (&in)[QUAD], int op, int type) {
    const vf one = 1.0f, zero = 0.0f;
    switch (op) {
#define EACH(value)                                                                                                    \
    UNROLL for (int e = 0; e < QUAD; e++) {                                                                            \
        const float x = in[e];                                                                                         \
        out[e] = value;                                                                                                \
    }                                                                                                                  \
    return;
#define VECTOR(value) EACH(value)
#define LIBM(value) EACH(unary_apart(x, op, type))
#define SINES(cosine) EACH(unary_apart(x, op, type))
#define NO_FLOATS break;
#define UNARY_VALUE(name, doc, result, work, floats, ...)                                                              \
    case GM_U_##name: floats
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: break;
#include "unary.def"
#undef EACH
#undef VECTOR
#undef LIBM
#undef SINES
    }
    (void)one, (void)zero, (void)type;
    UNROLL for (int e = 0; e < QUAD; e++)
        out[e] = in[e];
}
DEVICE void binary_floats(float (&out)[QUAD], const float (&left)[QUAD], const float (&right)[QUAD], int op) {
    switch (op) {
#define EACH(value)                                                                                                    \
    UNROLL for (int e = 0; e < QUAD; e++) {                                                                            \
        const float a = left[e], b = right[e];                                                                         \
        out[e] = value;                                                                                                \
    }                                                                                                                  \
    return;
#define VECTOR(value) EACH(value)
#define LIBM(value) EACH(binary_apart(a, b, op))
#define BINARY_VALUE(name, doc, work, floats, ...)                                                                     \
    case GM_B_##name: floats
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: break;
#include "binary.def"
#undef EACH
#undef VECTOR
#undef LIBM
#undef NO_FLOATS
    }
    UNROLL for (int e = 0; e < QUAD; e++)
        out[e] = left[e];
}
DEVICE void floats_of_quad(float (&to)[QUAD], const quad &x) {
    UNROLL for (int e = 0; e < QUAD; e++)
        to[e] = float_of_bits(x.at[e]);
}
/* Of the types that such chains have. */
DEVICE uint32_t load_bits(const void *p, int64_t i, int type) {
    return type == GM_T_BOOL ? ((const uint8_t *)p)[i] != 0 : bits_of_float(load_float(p, i, type));
}
DEVICE quad load_line(const void *p, int64_t i, int type) { /* aligned, as i is */
    quad x;
    if (type == GM_T_F32) return *(const quad *)((const uint32_t *)p + i);
    if (type == GM_T_BOOL) {
        const pack<uint8_t, QUAD> items = *(const pack<uint8_t, QUAD> *)((const uint8_t *)p + i);
        UNROLL for (int e = 0; e < QUAD; e++)
            x.at[e] = items.at[e] != 0;
        return x;
    }
    const pack<uint16_t, QUAD> items = *(const pack<uint16_t, QUAD> *)((const uint16_t *)p + i);
    UNROLL for (int e = 0; e < QUAD; e++)
        x.at[e] = bits_of_float(type == GM_T_F16 ? widen<GM_T_F16>(items.at[e]) : widen<GM_T_BF16>(items.at[e]));
    return x;
}
DEVICE quad load_quad(const cuda_fused_args &a, int k, int64_t first, int64_t n) {
    const int type = a.input_types[k], last = a.shape.ndim - 1;
    if (a.lines) {
        const int64_t at = offset_of(a.shape, a.steps[k], first / QUAD);
        if (a.steps[k].at[last] != 0) return load_line(a.inputs[k], at, type);
        const uint32_t one = load_bits(a.inputs[k], at, type);
        return {{one, one, one, one}};
    }
    quad x;
    UNROLL for (int e = 0; e < QUAD; e++)
        x.at[e] = first + e < n ? load_bits(a.inputs[k], offset_of(a.shape, a.steps[k], first + e), type) : 0;
    return x;
}
DEVICE void store_quad(const cuda_fused_args &a, int64_t first, int64_t n, const quad &x) {
    if (a.lines && a.out_type == GM_T_F32) {
        *(quad *)((uint32_t *)a.out + first) = x;
    } else if (a.lines && a.out_type != GM_T_BOOL) {
        pack<uint16_t, QUAD> items;
        UNROLL for (int e = 0; e < QUAD; e++) {
            const float y = float_of_bits(x.at[e]);
            items.at[e] = a.out_type == GM_T_F16 ? narrow<GM_T_F16>(y) : narrow<GM_T_BF16>(y);
        }
        *(pack<uint16_t, QUAD> *)((uint16_t *)a.out + first) = items;
    } else {
        UNROLL for (int e = 0; e < QUAD; e++) {
            if (first + e >= n) continue;
            if (a.out_type == GM_T_BOOL) ((uint8_t *)a.out)[first + e] = (uint8_t)x.at[e];
            else store_float(a.out, first + e, float_of_bits(x.at[e]), a.out_type);
        }
    }
}
DEVICE quad round_quad(const float (&x)[QUAD], int type) {
    quad y;
    if (type == GM_T_F32) {
        UNROLL for (int e = 0; e < QUAD; e++)
            y.at[e] = bits_of_float(x[e]);
    } else {
        UNROLL for (int e = 0; e < QUAD; e++)
            y.at[e] = bits_of_float(round_float(x[e], type));
    }
    return y;
}
DEVICE quad convert_quad(const quad &x, int from, int to) {
    float y[QUAD];
    if (from == to) return x;
    if (to == GM_T_BOOL) {
        quad z;
        UNROLL for (int e = 0; e < QUAD; e++)
            z.at[e] = float_of_bits(x.at[e]) != 0;
        return z;
    }
    UNROLL for (int e = 0; e < QUAD; e++)
        y[e] = from == GM_T_BOOL ? (float)x.at[e] : float_of_bits(x.at[e]);
    return round_quad(y, to);
}
DEVICE quad unary_quad(const gm_fused_step &s, const quad &x) {
    float in[QUAD], out[QUAD];
    floats_of_quad(in, x);
    if (gives_bool(s.function)) {
        quad y;
        UNROLL for (int e = 0; e < QUAD; e++)
            y.at[e] = unary_test(in[e], s.function);
        return y;
    }
    unary_floats(out, in, s.function, s.type);
    return round_quad(out, s.type);
}
DEVICE quad binary_quad(const gm_fused_step &s, const quad &x, const quad &y) {
    float left[QUAD], right[QUAD], out[QUAD];
    floats_of_quad(left, x);
    floats_of_quad(right, y);
    if (gives_bool_2(s.function)) {
        quad z;
        UNROLL for (int e = 0; e < QUAD; e++)
            z.at[e] = binary_test(left[e], right[e], s.function);
        return z;
    }
    binary_floats(out, left, right, s.function);
    return round_quad(out, s.type);
}
/* What the step before gave is not read back from the block's memory. */
KERNEL(gm_fused_floats, cuda_fused_args, CUDA_FUSED_THREADS) {
    quad *registers = (quad *)block_memory() + thread_index();
    const int64_t first = (block_index() * CUDA_FUSED_THREADS + thread_index()) * QUAD;
    const int64_t n = a.lines ? a.shape.count * QUAD : a.shape.count;
    int latest = -1;
    quad result = {};
    if (first >= n) return;
    const auto operand = [&](int k) {
        if (k == latest) return result;
        if (k >= a.n_inputs) return registers[(k - a.n_inputs) * CUDA_FUSED_THREADS];
        return load_quad(a, k, first, n);
    };
    for (int k = 0; k < a.n_steps; k++) {
        const gm_fused_step &s = a.program[k];
        const quad x = operand(s.in[0]);
        if (s.kind == GM_FUSED_CONVERT) {
            result = convert_quad(x, s.type, s.out_type);
        } else if (s.kind == GM_FUSED_UNARY) {
            result = unary_quad(s, x);
        } else {
            const quad y = operand(s.in[1]);
            if (s.kind == GM_FUSED_BINARY) {
                result = binary_quad(s, x, y);
            } else {
                const quad z = operand(s.in[2]);
                UNROLL for (int e = 0; e < QUAD; e++)
                    result.at[e] = x.at[e] ? y.at[e] : z.at[e];
            }
        }
        latest = a.n_inputs + s.out;
        if (k + 1 < a.n_steps) registers[s.out * CUDA_FUSED_THREADS] = result;
    }
    store_quad(a, first, n, result);
}
