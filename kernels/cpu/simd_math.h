/* simd_math.h - exp, log, tanh, ... over the vector vocabulary: the same for every instruction set.
 * A lane's result depends on that lane alone, so an element's bits never depend on where a range was cut. NaN: NaN.
 * Errors are against the exact value, in units in the last place of a float32, largest found over the stated domain.
 * Polynomials are least-maximum fits made for these ranges, with coefficients rounded to float32 one after another. */
#ifndef GOMLX_SIMD_MATH_H
#define GOMLX_SIMD_MATH_H
#include <float.h>
#include <math.h>

ALWAYS_INLINE vf vf_abs(vf a) { return vf_and(a, vf_of_bits(vi_set1(0x7fffffff))); }
ALWAYS_INLINE vf vf_neg(vf a) { return vf_xor(a, vf_set1(-0.0f)); }
ALWAYS_INLINE vf vf_copysign(vf magnitude, vf sign) {
    vf top = vf_set1(-0.0f);
    return vf_or(vf_abs(magnitude), vf_and(sign, top));
}
/* True in the first n lanes. */
ALWAYS_INLINE vm vm_below(int64_t n) {
    static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vf_lt(vf_load(lane), vf_set1((float)n));
}
/* c0 + x * (c1 + x * (...)) */
ALWAYS_INLINE vf vf_poly(vf x, const float *c, int n) {
    vf sum = vf_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--) sum = vf_fma(sum, x, vf_set1(c[i]));
    return sum;
}

/* r in [-ln2/2, ln2/2] and *n with x = n ln2 + r. */
ALWAYS_INLINE vf exp_reduce(vf x, vf *n) {
    *n = vf_rint(vf_mul(x, vf_set1(0x1.715476p+0f)));
    return vf_fnma(*n, vf_set1(0x1.7f7d1cp-20f), vf_fnma(*n, vf_set1(0x1.62e4p-1f), x));
}
/* (e**r - 1 - r) / r**2 */
ALWAYS_INLINE vf exp_series(vf r) {
    static const float c[6] = {0.5f, 0x1.555554p-3f, 0x1.5554e4p-5f, 0x1.11130cp-7f, 0x1.6d527cp-10f, 0x1.9e091ep-13f};
    return vf_poly(r, c, 6);
}
/* e**x; 1 ulp. Below -104 zero, above 88.73 infinity. */
ALWAYS_INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-105.0f), x));
    vf n, r = exp_reduce(x, &n);
    vf p = vf_fma(vf_mul(r, r), exp_series(r), r);
    return vf_scale2(vf_add(p, vf_set1(1.0f)), n);
}
/* e**x - 1; 2 ulp. */
ALWAYS_INLINE vf vf_expm1(vf x) {
    vf limited = vf_min(vf_set1(89.0f), vf_max(vf_set1(-25.0f), x));
    vf n, r = exp_reduce(limited, &n);
    vf p = vf_fma(vf_mul(r, r), exp_series(r), r);
    vf power = vf_scale2(vf_set1(1.0f), vf_min(vf_set1(127.0f), n));
    vf value = vf_fma(power, p, vf_sub(power, vf_set1(1.0f)));
    vf doubled = vf_scale2(vf_add(p, vf_set1(1.0f)), n); /* n = 128: 2^n alone is infinite */
    value = vf_select(vf_lt(vf_set1(88.0f), limited), doubled, value);
    return vf_select(vf_eq(x, vf_zero()), x, value); /* keeps -0 */
}

/* ln(m * 2^e) for m in [sqrt(1/2), sqrt(2)); f = m - 1. */
ALWAYS_INLINE vf log_series(vf f, vf e) {
    static const float c[8] = {0x1.555554p-2f, -0x1.000226p-2f, 0x1.99a01cp-3f, -0x1.547288p-3f,
                               0x1.22d924p-3f, -0x1.0d8252p-3f, 0x1.055f54p-3f, -0x1.38cb40p-4f};
    vf square = vf_mul(f, f);
    vf tail = vf_mul(vf_mul(square, f), vf_poly(f, c, 8));
    tail = vf_fma(e, vf_set1(0x1.7f7d1cp-20f), tail);
    tail = vf_fnma(vf_set1(0.5f), square, tail);
    return vf_fma(e, vf_set1(0x1.62e4p-1f), vf_add(f, tail));
}
/* Splits positive finite x: returns m - 1, *e the exponent. */
ALWAYS_INLINE vf log_split(vf x, vf *e) {
    vm tiny = vf_lt(x, vf_set1(FLT_MIN));
    x = vf_select(tiny, vf_mul(x, vf_set1(0x1p24f)), x);
    vi bits = vi_sub(vf_bits(x), vi_set1(0x3f3504f3)); /* sqrt(1/2) */
    vf exponent = vf_from_vi(vi_shr(bits, 23));
    *e = vf_select(tiny, vf_sub(exponent, vf_set1(24.0f)), exponent);
    vf m = vf_of_bits(vi_add(vi_and(bits, vi_set1(0x007fffff)), vi_set1(0x3f3504f3)));
    return vf_sub(m, vf_set1(1.0f));
}
ALWAYS_INLINE vf log_special(vf x, vf value) {
    value = vf_select(vf_eq(x, vf_set1(INFINITY)), x, value);
    value = vf_select(vf_eq(x, vf_zero()), vf_set1(-INFINITY), value);
    value = vf_select(vf_lt(x, vf_zero()), vf_set1(NAN), value);
    return vf_select(vf_ne(x, x), x, value);
}
/* ln x; 1 ulp. */
ALWAYS_INLINE vf vf_log(vf x) {
    vf e, f = log_split(x, &e);
    return log_special(x, log_series(f, e));
}
/* ln(1 + x); 2 ulp. What the sum u = 1 + x lost in rounding comes back as a first-order correction. */
ALWAYS_INLINE vf vf_log1p(vf x) {
    vf one = vf_set1(1.0f), u = vf_add(one, x);
    vf lost = vf_select(vf_lt(x, one), vf_sub(x, vf_sub(u, one)), vf_sub(one, vf_sub(u, x)));
    vf e, f = log_split(u, &e);
    vf value = vf_add(log_series(f, e), vf_div(lost, u));
    value = vf_select(vf_lt(vf_abs(x), vf_set1(0x1p-24f)), x, value);
    return log_special(u, vf_select(vf_eq(u, vf_set1(INFINITY)), u, value));
}

/* tanh x; 2 ulp. */
ALWAYS_INLINE vf vf_tanh(vf x) {
    vf n, twice = vf_max(vf_set1(-20.0f), vf_mul(vf_abs(x), vf_set1(-2.0f))), r = exp_reduce(twice, &n);
    vf p = vf_fma(vf_mul(r, r), exp_series(r), r), power = vf_scale2(vf_set1(1.0f), n);
    vf rest = vf_fma(power, p, vf_sub(power, vf_set1(1.0f))); /* e**-2|x| - 1 */
    return vf_copysign(vf_div(rest, vf_add(rest, vf_set1(2.0f))), x);
}
/* 1 / (1 + e**-x); 2 ulp. */
ALWAYS_INLINE vf vf_sigmoid(vf x) {
    vf one = vf_set1(1.0f), z = vf_exp(vf_neg(vf_abs(x)));
    return vf_div(vf_select(vf_lt(x, vf_zero()), z, one), vf_add(one, z));
}
/* erf x; 2 ulp: an odd polynomial near zero, 1 - e**q(|x|) beyond. */
ALWAYS_INLINE vf vf_erf(vf x) {
    static const float near[7] = {0x1.06eba8p-3f, -0x1.812740p-2f,  0x1.ce2d64p-4f, -0x1.b8013ap-6f,
                                  0x1.544d1cp-8f, -0x1.a6373ep-11f, 0x1.503c66p-14f};
    static const float far[8] = {0x1.63bca0p-13f, -0x1.21264cp+0f, -0x1.444c7ep-1f, -0x1.bb4b0ep-4f,
                                 0x1.9afafep-6f,  -0x1.107982p-8f, 0x1.c4a2eep-12f, -0x1.5dd056p-16f};
    vf magnitude = vf_abs(x), square = vf_mul(x, x);
    vf small = vf_fma(x, vf_poly(square, near, 7), x);
    vf limited = vf_min(vf_set1(4.0f), magnitude);
    vf big = vf_sub(vf_set1(1.0f), vf_exp(vf_poly(limited, far, 8)));
    return vf_select(vf_lt(magnitude, vf_set1(0.92f)), small, vf_copysign(big, x));
}

/* erf x within 2**-16 of its size, for results that are rounded to 16 bits: a quotient that reaches 1 at 3.2. */
ALWAYS_INLINE vf vf_erf_16(vf x) {
    static const float over[4] = {0x1.20de0ep+0f, 0x1.3b575ep-3f, 0x1.629008p-5f, 0x1.8b57dcp-11f};
    static const float under[4] = {1.0f, 0x1.e11a88p-2f, 0x1.845ee2p-4f, 0x1.31b016p-7f};
    vf inside = vf_max(vf_set1(-3.2f), vf_min(vf_set1(3.2f), x)), square = vf_mul(inside, inside);
    vf value = vf_div(vf_mul(inside, vf_poly(square, over, 4)), vf_poly(square, under, 4));
    return vf_max(vf_set1(-1.0f), vf_min(vf_set1(1.0f), value));
}

/* The inverse of erf; 3 ulp. x times a polynomial in w = -ln(1 - x**2), or in sqrt(w) towards the ends, as M. Giles
 * has it (Approximating the erfinv function, 2010). 1 gives infinity, beyond 1 NaN. */
ALWAYS_INLINE vf vf_erfinv(vf x) {
    static const float middle[10] = {0x1.805c5ep+0f,  0x1.f91e8ap-3f,   -0x1.11c994p-8f,  -0x1.4866f8p-10f,
                                     0x1.ca61ccp-13f, -0x1.4bca9ap-18f, -0x1.d8cdbap-19f, 0x1.ee0c88p-22f,
                                     0x1.e2dc84p-26f, -0x1.1b80b4p-27f};
    static const float ends[10] = {0x1.6a9efcp+1f,   0x1.006dc8p+0f,  0x1.357f96p-7f,  -0x1.f49d94p-8f,
                                   0x1.74bcacp-8f,   -0x1.d6f96ep-9f, 0x1.84f868p-10f, -0x1.fe32c6p-15f,
                                   -0x1.435130p-12f, 0x1.e8e5e4p-14f};
    vf one = vf_set1(1.0f), magnitude = vf_abs(x);
    vf w = vf_neg(vf_log(vf_mul(vf_sub(one, magnitude), vf_add(one, magnitude))));
    vf root = vf_sub(vf_sqrt(w), vf_set1(3.0f));
    vm inner = vf_lt(w, vf_set1(5.0f));
    vf value = vf_mul(x, vf_poly(vf_select(inner, vf_sub(w, vf_set1(2.5f)), vf_zero()), middle, 10));
    value = vf_select(inner, value, vf_mul(x, vf_poly(root, ends, 10)));
    value = vf_select(vf_eq(magnitude, one), vf_mul(x, vf_set1(INFINITY)), value);
    return vf_select(vf_lt(one, magnitude), vf_set1(NAN), value);
}

/* sin and cos for |x| <= V_SINCOS_LIMIT, 1-2 ulp there; callers take libm beyond. */
#define V_SINCOS_LIMIT 32768.0f
ALWAYS_INLINE void vf_sincos(vf x, vf *sine, vf *cosine) {
    static const float s[4] = {-0x1.555556p-3f, 0x1.111172p-7f, -0x1.a056a2p-13f, 0x1.7b584ep-19f};
    static const float c[3] = {0x1.55554ap-5f, -0x1.6c0bbep-10f, 0x1.99b68ap-16f};
    vf n = vf_rint(vf_mul(x, vf_set1(0x1.45f306p-1f))); /* quarter turns */
    vf r = vf_fnma(n, vf_set1(0x1.92p+0f), x);          /* pi/2 in four parts, n * part exact */
    r = vf_fnma(n, vf_set1(0x1.fbp-12f), r);
    r = vf_fnma(n, vf_set1(0x1.51p-22f), r);
    r = vf_fnma(n, vf_set1(0x1.0b4612p-34f), r);
    vf square = vf_mul(r, r);
    vf sin_r = vf_fma(vf_mul(r, square), vf_poly(square, s, 4), r);
    vf cos_r = vf_fma(vf_mul(square, square), vf_poly(square, c, 3), vf_fnma(vf_set1(0.5f), square, vf_set1(1.0f)));
    vi quarter = vf_to_vi(n);
    vm odd = vi_eq(vi_and(quarter, vi_set1(1)), vi_set1(1));
    vf sin_sign = vf_of_bits(vi_shl(vi_and(quarter, vi_set1(2)), 30));
    vf cos_sign = vf_of_bits(vi_shl(vi_and(vi_add(quarter, vi_set1(1)), vi_set1(2)), 30));
    *sine = vf_xor(vf_select(odd, cos_r, sin_r), sin_sign);
    *cosine = vf_xor(vf_select(odd, sin_r, cos_r), cos_sign);
}
#endif
