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
    METHOD c64 complex() const {
        return c64(float_of_bits((uint32_t)bits), float_of_bits((uint32_t)(bits >> 32)));
    }
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
