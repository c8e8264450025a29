/* complex.cuh - functions of complex64 under the names of C's library. They are computed in float64 and rounded once,
 * so that the textbook's formulas lose no digit of float32. */
#ifndef GOMLX_CUDA_COMPLEX_CUH
#define GOMLX_CUDA_COMPLEX_CUH
#include "elements.cuh"

struct c128 { double re, im; };
DEVICE c128 wide_of(c64 z) { return {(double)z.re, (double)z.im}; }
DEVICE c64 complex_of(double re, double im) { return c64((float)re, (float)im); }
DEVICE c64 narrow_of(c128 z) { return complex_of(z.re, z.im); }
DEVICE c128 wide_multiply(c128 a, c128 b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
DEVICE c128 wide_exp(c128 z) {
    const double size = exp(z.re);
    if (z.im == 0) return {size, z.im};
    if (size == 0 && !isfinite(z.im)) return {0, 0};
    return {size * cos(z.im), size * sin(z.im)};
}
DEVICE c128 wide_log(c128 z) { return {log(hypot(z.re, z.im)), atan2(z.im, z.re)}; }
DEVICE c128 wide_sqrt(c128 z) {
    if (z.re == 0 && z.im == 0) return {0, z.im};
    if (isinf(z.im)) return {(double)INFINITY, z.im};
    const double size = sqrt((fabs(z.re) + hypot(z.re, z.im)) / 2);
    if (z.re >= 0) return {size, z.im / (2 * size)};
    return {fabs(z.im) / (2 * size), copysign(size, z.im)};
}
/* The logarithm of z + sqrt(z^2 + 1), for the half where nothing cancels. */
DEVICE c128 wide_asinh(c128 z) {
    const bool turned = z.re < 0;
    const c128 w = turned ? c128{-z.re, -z.im} : z, square = wide_multiply(w, w);
    const c128 root = wide_sqrt({square.re + 1, square.im}), value = wide_log({w.re + root.re, w.im + root.im});
    /* Near zero the logarithm of almost 1 has lost digits: z - z^3 / 6 has them. */
    if (fabs(w.re) + fabs(w.im) < 1e-4) {
        const c128 cube = wide_multiply(square, w);
        return {z.re - (turned ? -cube.re : cube.re) / 6, z.im - (turned ? -cube.im : cube.im) / 6};
    }
    return turned ? c128{-value.re, -value.im} : value;
}
DEVICE c128 wide_atanh(c128 z) { /* of (1 + z) / (1 - z), half the logarithm, by parts */
    const double square = z.im * z.im, near = 1 - z.re, far = 1 + z.re;
    return {log1p(4 * z.re / (near * near + square)) / 4, atan2(2 * z.im, near * far - square) / 2};
}
DEVICE c128 wide_tanh(c128 z) {
    if (fabs(z.re) > 22) return {copysign(1.0, z.re), 0};
    const double s = sinh(z.re), c = cosh(z.re), sine = sin(z.im), cosine = cos(z.im);
    const double size = cosine * cosine + s * s;
    return {s * c / size, sine * cosine / size};
}
DEVICE c128 times_i(c128 z) { return {-z.im, z.re}; }
DEVICE c128 over_i(c128 z) { return {z.im, -z.re}; }

DEVICE float cabsf(c64 z) { return (float)hypot((double)z.re, (double)z.im); }
DEVICE c64 cexpf(c64 z) { return narrow_of(wide_exp(wide_of(z))); }
DEVICE c64 clogf(c64 z) { return narrow_of(wide_log(wide_of(z))); }
DEVICE c64 csqrtf(c64 z) { return narrow_of(wide_sqrt(wide_of(z))); }
DEVICE c64 csinhf(c64 z) {
    return complex_of(sinh((double)z.re) * cos((double)z.im), cosh((double)z.re) * sin((double)z.im));
}
DEVICE c64 ccoshf(c64 z) {
    return complex_of(cosh((double)z.re) * cos((double)z.im), sinh((double)z.re) * sin((double)z.im));
}
DEVICE c64 csinf(c64 z) {
    return complex_of(sin((double)z.re) * cosh((double)z.im), cos((double)z.re) * sinh((double)z.im));
}
DEVICE c64 ccosf(c64 z) {
    return complex_of(cos((double)z.re) * cosh((double)z.im), -sin((double)z.re) * sinh((double)z.im));
}
DEVICE c64 ctanhf(c64 z) { return narrow_of(wide_tanh(wide_of(z))); }
DEVICE c64 ctanf(c64 z) { return narrow_of(over_i(wide_tanh(times_i(wide_of(z))))); }
DEVICE c64 casinhf(c64 z) { return narrow_of(wide_asinh(wide_of(z))); }
DEVICE c64 casinf(c64 z) { return narrow_of(over_i(wide_asinh(times_i(wide_of(z))))); }
DEVICE c64 catanhf(c64 z) { return narrow_of(wide_atanh(wide_of(z))); }
DEVICE c64 catanf(c64 z) { return narrow_of(over_i(wide_atanh(times_i(wide_of(z))))); }
/* As Kahan has them, of square roots of z - 1 and z + 1, or of 1 - z and 1 + z. */
DEVICE c64 cacoshf(c64 z) {
    const c128 low = wide_sqrt({(double)z.re - 1, (double)z.im}), high = wide_sqrt({(double)z.re + 1, (double)z.im});
    return complex_of(asinh(low.re * high.re + low.im * high.im), 2 * atan2(low.im, high.re));
}
DEVICE c64 cacosf(c64 z) {
    const c128 low = wide_sqrt({1 - (double)z.re, -(double)z.im}), high = wide_sqrt({1 + (double)z.re, (double)z.im});
    return complex_of(2 * atan2(low.re, high.re), asinh(high.re * low.im - high.im * low.re));
}
DEVICE c64 cpowf(c64 a, c64 b) { return narrow_of(wide_exp(wide_multiply(wide_of(b), wide_log(wide_of(a))))); }

DEVICE c64 log1p_complex(c64 z) {
    const double re = (double)z.re, im = (double)z.im;
    return complex_of(log1p(re * (2 + re) + im * im) / 2, atan2(im, 1 + re));
}
/* Lexicographic, as in NumPy. */
DEVICE bool less_complex(c64 a, c64 b) { return a.re < b.re || (a.re == b.re && a.im < b.im); }
DEVICE bool nan_complex(c64 z) { return z.re != z.re || z.im != z.im; }
DEVICE c64 logaddexp_complex(c64 a, c64 b) {
    const c64 top = less_complex(a, b) ? b : a, low = less_complex(a, b) ? a : b;
    return top + log1p_complex(cexpf(low - top));
}
DEVICE c64 power_of_zero(c64 b) {
    return b.re > 0 ? c64(0.0f) : complex_of(b.re < 0 ? (double)INFINITY : (double)NAN, (double)NAN);
}
DEVICE c64 power_complex(c64 a, c64 b) { return b == 0 ? c64(1.0f) : a == 0 ? power_of_zero(b) : cpowf(a, b); }
#endif
