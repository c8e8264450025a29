/* ops_fft.c - the Python functions of gomlx.core.fft. */
#include "py/bind.h"
#include <limits.h>

typedef gm_array *(*transform)(gm_scope *, gm_array *, int, const int64_t *, int, const int *, const char *);

/* Sizes that are one int count as a list of one. */
static PyObject *finish_transform(call *c, transform fn, gm_array *x, int n_sizes, const int64_t *sizes, bool is_given,
                                  int n_axes, const int *axes, const char *norm) {
    if (is_given && n_sizes < 0)
        n_sizes = 1;
    return call_finish(c, fn(c->scope, x, is_given ? n_sizes : -1, sizes, n_axes, axes, norm));
}

/* Along one axis. */
#define ONE_AXIS(name) \
    FUNCTION_OF(name) { \
        gm_array *x; \
        int length = INT_MIN, axis = -1; \
        const char *norm = "backward"; \
        BIND(name, "Aiit", &x, &length, &axis, &norm); \
        return finish_transform(&c, gm_##name, x, 1, &(int64_t){length}, length != INT_MIN, 1, &axis, norm); \
    }
/* Along several, unless given those in default_axes. */
#define AXES(name, n_default, ...) \
    FUNCTION_OF(name) { \
        gm_array *x; \
        int n_sizes = INT_MIN, n_axes = n_default, axes[GM_MAX_NDIM] = {__VA_ARGS__}; \
        int64_t sizes[BIND_INTS]; \
        const char *norm = "backward"; \
        BIND(name, "Anxt", &x, &n_sizes, sizes, &n_axes, axes, &norm); \
        return finish_transform(&c, gm_##name, x, n_sizes, sizes, n_sizes != INT_MIN, n_axes, axes, norm); \
    }
ONE_AXIS(fft)
ONE_AXIS(ifft)
ONE_AXIS(rfft)
ONE_AXIS(irfft)
AXES(fft2, 2, -2, -1)
AXES(ifft2, 2, -2, -1)
AXES(rfft2, 2, -2, -1)
AXES(irfft2, 2, -2, -1)
AXES(fftn, -1, 0)
AXES(ifftn, -1, 0)
AXES(rfftn, -1, 0)
AXES(irfftn, -1, 0)

FUNCTION_OF(fftfreq) {
    int count = 0;
    double d = 1;
    BIND(fftfreq, "if", &count, &d);
    return call_finish(&c, gm_fftfreq(c.scope, count, d));
}

FUNCTION_OF(rfftfreq) {
    int count = 0;
    double d = 1;
    BIND(rfftfreq, "if", &count, &d);
    return call_finish(&c, gm_rfftfreq(c.scope, count, d));
}

FUNCTION_OF(fftshift) {
    gm_array *x;
    int n_axes = -1, axes[GM_MAX_NDIM];
    BIND(fftshift, "Ax", &x, &n_axes, axes);
    return call_finish(&c, gm_fftshift(c.scope, x, n_axes, axes));
}

FUNCTION_OF(ifftshift) {
    gm_array *x;
    int n_axes = -1, axes[GM_MAX_NDIM];
    BIND(ifftshift, "Ax", &x, &n_axes, axes);
    return call_finish(&c, gm_ifftshift(c.scope, x, n_axes, axes));
}
