/* ops_elementwise.c - Python functions of elementwise ops, comparisons and statistics that are HAND rows. */
#include "py/bind.h"

FUNCTION_OF(round) {
    gm_array *x;
    int decimals = 0;
    BIND(round, "Vi", &x, &decimals);
    return call_finish(&c, gm_round(c.scope, x, decimals));
}

/* A number that may be None: NULL then. False with an exception. */
static bool read_optional(PyObject *value, const char *what, double *number, const double **out) {
    *out = value && value != Py_None ? number : NULL;
    return !*out || read_float(value, what, number);
}

FUNCTION_OF(nan_to_num) {
    gm_array *x;
    double nan = 0, above, below;
    const double *posinf, *neginf;
    PyObject *high, *low;
    BIND(nan_to_num, "Vfpp", &x, &nan, &high, &low);
    bool ok = read_optional(high, "posinf", &above, &posinf) && read_optional(low, "neginf", &below, &neginf);
    return call_finish(&c, ok ? gm_nan_to_num(c.scope, x, nan, posinf, neginf) : NULL);
}

/* Bounds that are scalars are weak to the array. */
FUNCTION_OF(clip) {
    gm_array *x, *bounds[2] = {GM_NONE, GM_NONE};
    PyObject *values[2];
    BIND(clip, "App", &x, &values[0], &values[1]);
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        if (values[i] != Py_None)
            ok = (bounds[i] = node_from_operand(c.state, c.scope, values[i], gm_array_dtype(x))) != NULL;
    return call_finish(&c, ok ? gm_clip(c.scope, x, bounds[0], bounds[1]) : NULL);
}

FUNCTION_OF(divmod) {
    gm_array *a, *b, *both[2];
    BIND(divmod, "W", &a, &b);
    both[0] = gm_divmod(c.scope, a, b, &both[1]);
    return call_finish_many(&c, both[0] && both[1] ? GM_OK : GM_EVALUE, both, 2, true);
}

static PyObject *wrap_close(const invocation *in,
                            gm_array *(*fn)(gm_scope *, gm_array *, gm_array *, double, double, bool)) {
    gm_array *a, *b;
    double rtol = 1e-5, atol = 1e-8;
    bool equal_nan = false;
    BIND_IN(in, "AAffb", &a, &b, &rtol, &atol, &equal_nan);
    return call_finish(&c, fn(c.scope, a, b, rtol, atol, equal_nan));
}
WRAPPED(isclose, wrap_close, gm_isclose)
WRAPPED(allclose, wrap_close, gm_allclose)

FUNCTION_OF(array_equal) {
    gm_array *a, *b;
    bool equal_nan = false;
    BIND(array_equal, "Wb", &a, &b, &equal_nan);
    return call_finish(&c, gm_array_equal(c.scope, a, b, equal_nan));
}

static PyObject *wrap_spread(const invocation *in,
                             gm_array *(*fn)(gm_scope *, gm_array *, int, const int *, bool, int)) {
    gm_array *x;
    int n_axes = -1, axes[GM_MAX_NDIM], ddof = 0;
    bool keepdims = false;
    BIND_IN(in, "Axbii", &x, &n_axes, axes, &keepdims, &ddof, &ddof);      /* correction: its other name */
    return call_finish(&c, fn(c.scope, x, n_axes, axes, keepdims, ddof));
}
WRAPPED(var, wrap_spread, gm_var)
WRAPPED(std, wrap_spread, gm_std)

WRAPPED(count_nonzero, wrap_reduction, gm_count_nonzero)

FUNCTION_OF(minmax) {
    gm_array *x, *both[2];
    int n_axes = -1, axes[GM_MAX_NDIM];
    bool keepdims = false;
    BIND(minmax, "Axb", &x, &n_axes, axes, &keepdims);
    both[0] = gm_minmax(c.scope, x, n_axes, axes, keepdims, &both[1]);
    return call_finish_many(&c, both[0] ? GM_OK : GM_ESTATE, both, 2, false);
}

FUNCTION_OF(softmax) {
    gm_array *x;
    int n_axes = -1, axes[GM_MAX_NDIM];
    bool precise = false;              /* sums are in float32 in any case */
    BIND(softmax, "Axb", &x, &n_axes, axes, &precise);
    return call_finish(&c, gm_softmax(c.scope, x, n_axes, axes));
}
