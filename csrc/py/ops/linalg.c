/* linalg.c - the Python functions of gomlx.core.linalg. */
#include "py/ops/bind.h"
#include <math.h>

/* The outputs as a tuple; first is NULL after a failure. */
static PyObject *finish_outputs(call *c, gm_array *first, gm_array *const *outs, int count) {
    return call_finish_many(c, first ? GM_OK : GM_ESTATE, outs, count, false);
}

FUNCTION_OF(norm)
{
    gm_array *x;
    PyObject *order;
    const char *name = NULL;
    double p = (double)NAN;
    int n_axes = -1, axes[GM_MAX_NDIM];
    bool keepdims = false;
    BIND(norm, "Apxb", &x, &order, &n_axes, axes, &keepdims);
    if (order && PyUnicode_Check(order))
        name = PyUnicode_AsUTF8AndSize(order, NULL);
    else if (order && order != Py_None)
        read_float(order, "norm: ord", &p);
    return call_finish(&c, PyErr_Occurred() ? NULL : gm_norm(c.scope, x, name, p, n_axes, axes, keepdims));
}

FUNCTION_OF(svd)
{
    gm_array *x, *outs[3];
    bool vectors = true;
    BIND(svd, "Ab", &x, &vectors);
    gm_array *first = gm_svd(c.scope, x, vectors, outs);
    return vectors ? finish_outputs(&c, first, outs, 3) : call_finish(&c, first);
}

/* As LAPACK's: 'L' is the lower triangle, anything else the upper one. */
static bool is_upper(const char *triangle) { return triangle[0] != 'L' || triangle[1]; }

FUNCTION_OF(eigh)
{
    gm_array *x, *outs[2];
    const char *triangle = "L";
    BIND(eigh, "At", &x, &triangle);
    return finish_outputs(&c, gm_eigh(c.scope, x, is_upper(triangle), outs), outs, 2);
}

FUNCTION_OF(eigvalsh)
{
    gm_array *x;
    const char *triangle = "L";
    BIND(eigvalsh, "At", &x, &triangle);
    return call_finish(&c, gm_eigvalsh(c.scope, x, is_upper(triangle)));
}
