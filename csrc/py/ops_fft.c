/* ops_fft.c - the Python functions of gomlx.core.fft. */
#include "py/bind.h"
#include <limits.h>

typedef gm_array *(*transform)(gm_scope *, gm_array *, int, const int64_t *, int, const int *, const char *);

/* Along one axis. */
static PyObject *wrap_axis(const invocation *in, transform fn) {
    gm_array *x;
    int length = INT_MIN, axis = -1;
    const char *norm = "backward";
    BIND_IN(in, "Aiit", &x, &length, &axis, &norm);
    return call_finish(&c, fn(c.scope, x, length == INT_MIN ? -1 : 1, &(int64_t){length}, 1, &axis, norm));
}
WRAPPED(fft, wrap_axis, gm_fft)
WRAPPED(ifft, wrap_axis, gm_ifft)
WRAPPED(rfft, wrap_axis, gm_rfft)
WRAPPED(irfft, wrap_axis, gm_irfft)

/* Along several: the last n_default ones unless they are given, -1: all. Sizes that are one int count as a list of
 * one. */
static PyObject *wrap_several(const invocation *in, transform fn, int n_default) {
    gm_array *x;
    int n_sizes = INT_MIN, n_axes = n_default, axes[GM_MAX_NDIM] = {-2, -1};
    int64_t sizes[BIND_INTS];
    const char *norm = "backward";
    BIND_IN(in, "Anxt", &x, &n_sizes, sizes, &n_axes, axes, &norm);
    n_sizes = n_sizes == INT_MIN ? -1 : n_sizes < 0 ? 1 : n_sizes;
    return call_finish(&c, fn(c.scope, x, n_sizes, sizes, n_axes, axes, norm));
}
WRAPPED(fft2, wrap_several, gm_fft2, 2)
WRAPPED(ifft2, wrap_several, gm_ifft2, 2)
WRAPPED(rfft2, wrap_several, gm_rfft2, 2)
WRAPPED(irfft2, wrap_several, gm_irfft2, 2)
WRAPPED(fftn, wrap_several, gm_fftn, -1)
WRAPPED(ifftn, wrap_several, gm_ifftn, -1)
WRAPPED(rfftn, wrap_several, gm_rfftn, -1)
WRAPPED(irfftn, wrap_several, gm_irfftn, -1)

static PyObject *wrap_frequencies(const invocation *in, gm_array *(*fn)(gm_scope *, int, double)) {
    int count = 0;
    double d = 1;
    BIND_IN(in, "if", &count, &d);
    return call_finish(&c, fn(c.scope, count, d));
}
WRAPPED(fftfreq, wrap_frequencies, gm_fftfreq)
WRAPPED(rfftfreq, wrap_frequencies, gm_rfftfreq)

WRAPPED(fftshift, wrap_axes, gm_fftshift)
WRAPPED(ifftshift, wrap_axes, gm_ifftshift)
