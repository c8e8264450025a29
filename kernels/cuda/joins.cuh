/* joins.cuh - what reductions and running sums join, one struct for each: `acc`, of at most 16 bytes, its start, an
 * element taken into it, two of them joined in order, and the result stored. */
#ifndef GOMLX_CUDA_JOINS_CUH
#define GOMLX_CUDA_JOINS_CUH
#include "functions.cuh"

template <int TYPE> struct floats_of {
    static METHOD float load(const void *p, int64_t i, int) {
        return widen<TYPE>(((const typename float_item<TYPE>::raw *)p)[i]);
    }
    typedef typename float_item<TYPE>::raw raw;
    static METHOD float of(raw x) { return widen<TYPE>(x); }
};
/* Results of floats: as float32, then as the type that is asked for. */
DEVICE void store_result(void *out, int64_t i, double x, int type) {
    if (is_float_type(type)) store_float(out, i, (float)x, type);
    else store_double(out, i, (double)(float)x, type);
}
struct join_sum {
    typedef double acc;
    static METHOD acc start(int, int) { return 0; }
    static METHOD acc take(acc a, float x, int, int) { return a + (double)x; }
    static METHOD acc join(acc a, acc b, int, int) { return a + b; }
    static METHOD void store(void *out, int64_t i, acc a, int type, int, int) { store_result(out, i, a, type); }
};
/* A number times a power of two: only what is infinite, or no number, among the elements is so on the way. A zero that
 * comes before large numbers stays zero, in whatever order threads take them. */
struct join_prod {
    static constexpr int FAR = 400; /* 2^FAR times an element, and times itself, is a number of full precision */
    struct acc {
        double part; /* of a magnitude from 2^-FAR to 2^(FAR + 1), zero, or not finite */
        int64_t exponent;
    };
    static METHOD acc start(int, int) { return {1, 0}; }
    static METHOD acc near(double part, int64_t exponent) {
        uint64_t bits;
        memcpy(&bits, &part, sizeof bits);
        const int own = (int)(bits >> 52 & 2047) - 1023;
        if (own >= -FAR && own <= FAR) return {part, exponent};
        if (part == 0 || own == 1024) return {part, 0};
        return {scalbn(part, -own), exponent + own};
    }
    static METHOD acc take(acc a, float x, int, int) { return near(a.part * (double)x, a.exponent); }
    static METHOD acc join(acc a, acc b, int, int) { return near(a.part * b.part, a.exponent + b.exponent); }
    static METHOD void store(void *out, int64_t i, acc a, int type, int, int) {
        const int most = 4 * FAR; /* from there on all is infinite, or zero */
        const int exponent = a.exponent > most ? most : a.exponent < -most ? -most : (int)a.exponent;
        store_result(out, i, exponent ? scalbn(a.part, exponent) : a.part, type);
    }
};
struct join_max {
    typedef float acc;
    static METHOD acc start(int, int) { return -INFINITY; }
    static METHOD acc take(acc a, float x, int, int) { return x != x || x > a ? x : a; }
    static METHOD acc join(acc a, acc b, int, int) { return take(a, b, 0, 0); }
    static METHOD void store(void *out, int64_t i, acc a, int type, int, int) { store_result(out, i, (double)a, type); }
};
struct join_min {
    typedef float acc;
    static METHOD acc start(int, int) { return INFINITY; }
    static METHOD acc take(acc a, float x, int, int) { return x != x || x < a ? x : a; }
    static METHOD acc join(acc a, acc b, int, int) { return take(a, b, 0, 0); }
    static METHOD void store(void *out, int64_t i, acc a, int type, int, int) { store_result(out, i, (double)a, type); }
};
/* The sum of exp(x - top). */
struct join_logsumexp {
    struct acc {
        float top, unused;
        double sum;
    };
    static METHOD acc start(int, int) { return {-INFINITY, 0, 0}; }
    static METHOD acc take(acc a, float x, int, int) { return join(a, {x, 0, 1}, 0, 0); }
    static METHOD acc join(acc a, acc b, int, int) {
        const float top = join_max::take(a.top, b.top, 0, 0);
        if (top != top || isinf(top)) return {top, 0, 1};
        return {top, 0, a.sum * (double)vf_exp(a.top - top) + b.sum * (double)vf_exp(b.top - top)};
    }
    static METHOD void store(void *out, int64_t i, acc a, int type, int, int) {
        const bool plain = a.top != a.top || isinf(a.top);
        store_result(out, i, (double)(plain ? a.top : a.top + vf_log((float)a.sum)), type);
    }
};
struct join_int {
    typedef int64_t acc;
    static METHOD bool less(int64_t a, int64_t b, int type) {
        return is_signed_type(type) ? a < b : (uint64_t)a < (uint64_t)b;
    }
    static METHOD acc start(int op, int type) {
        if (op == GM_R_SUM || op == GM_R_PROD) return op == GM_R_PROD;
        const bool top = op == GM_R_MIN;
        return is_signed_type(type) ? (top ? INT64_MAX : INT64_MIN) : (top ? -1 : 0);
    }
    static METHOD acc take(acc a, int64_t x, int op, int type) {
        switch (op) {
        case GM_R_SUM: return (int64_t)((uint64_t)a + (uint64_t)x);
        case GM_R_PROD: return (int64_t)((uint64_t)a * (uint64_t)x);
        case GM_R_MAX: return less(a, x, type) ? x : a;
        default: return less(x, a, type) ? x : a;
        }
    }
    static METHOD acc join(acc a, acc b, int op, int type) { return take(a, b, op, type); }
    static METHOD void store(void *out, int64_t i, acc a, int type, int, int in_type) {
        if (is_int_type(type)) store_int(out, i, a, type);
        else store_double(out, i, in_type == GM_T_U64 ? (double)(uint64_t)a : (double)a, type);
    }
};
struct any_ints {
    static METHOD int64_t load(const void *p, int64_t i, int type) { return load_int(p, i, type); }
};
struct join_truth { /* all, any */
    typedef int32_t acc;
    static METHOD acc start(int op, int) { return op == GM_R_ALL; }
    static METHOD acc take(acc a, bool x, int op, int) { return op == GM_R_ALL ? a && x : a || x; }
    static METHOD acc join(acc a, acc b, int op, int) { return take(a, b != 0, op, 0); }
    static METHOD void store(void *out, int64_t i, acc a, int, int, int) { ((uint8_t *)out)[i] = a != 0; }
};
struct any_truths {
    static METHOD bool load(const void *p, int64_t i, int type) {
        if (type == GM_T_C64) return ((const c64 *)p)[i] != c64(0.0f);
        return is_float_type(type) ? load_float(p, i, type) != 0 : load_int(p, i, type) != 0;
    }
};
/* Extremes in lexicographic order, NaN first; the logarithm of the sum of exponentials over the greatest. */
struct join_complex {
    struct acc { double re, im; };
    static METHOD acc start(int op, int) {
        if (op == GM_R_LOGSUMEXP || op == GM_R_MAX) return {-(double)INFINITY, -(double)INFINITY};
        if (op == GM_R_MIN) return {(double)INFINITY, (double)INFINITY};
        return {op == GM_R_PROD ? 1.0 : 0.0, 0};
    }
    static METHOD acc take(acc a, c64 x, int op, int type) { return join(a, {(double)x.re, (double)x.im}, op, type); }
    static METHOD acc join(acc a, acc b, int op, int) {
        if (op == GM_R_SUM) return {a.re + b.re, a.im + b.im};
        if (op == GM_R_PROD) return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
        if (op == GM_R_LOGSUMEXP) return log_sum(a, b);
        if (a.re != a.re || a.im != a.im) return a;
        if (b.re != b.re || b.im != b.im) return b;
        const bool less = a.re < b.re || (a.re == b.re && a.im < b.im);
        return (op == GM_R_MAX) == less ? b : a;
    }
    static METHOD acc log_sum(acc a, acc b) {
        const bool less = a.re < b.re || (a.re == b.re && a.im < b.im);
        const acc top = less ? b : a, low = less ? a : b;
        if (low.re == -(double)INFINITY) return top;
        const c128 power = wide_exp({low.re - top.re, low.im - top.im}), log = wide_log({1 + power.re, power.im});
        return {top.re + log.re, top.im + log.im};
    }
    static METHOD void store(void *out, int64_t i, acc a, int, int, int) { ((c64 *)out)[i] = complex_of(a.re, a.im); }
};
struct any_complex {
    static METHOD c64 load(const void *p, int64_t i, int) { return ((const c64 *)p)[i]; }
};
struct any_floats {
    static METHOD float load(const void *p, int64_t i, int type) { return load_float(p, i, type); }
};
#endif
