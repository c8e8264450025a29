/* ops_linalg.c - the Python functions of gomlx.core.linalg. */
#include "py/bind.h"
#include <math.h>

/* The outputs as a tuple; first is NULL after a failure. */
static PyObject *finish_outputs(call *c, gm_array *first, gm_array *const *outs, int count) {
    return call_finish_many(c, first ? GM_OK : GM_ESTATE, outs, count, false);
}

FUNCTION_OF(norm) {
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

FUNCTION_OF(cross) {
    gm_array *a, *b;
    int axis = -1;
    BIND(cross, "AAi", &a, &b, &axis);
    return call_finish(&c, gm_cross(c.scope, a, b, axis));
}

/* The `count` factors of a matrix. */
static PyObject *wrap_factors(const invocation *in, gm_array *(*fn)(gm_scope *, gm_array *, gm_array **), int count) {
    gm_array *x, *outs[3];
    BIND_IN(in, "A", &x);
    return finish_outputs(&c, fn(c.scope, x, outs), outs, count);
}
WRAPPED(lu, wrap_factors, gm_lu, 3)
WRAPPED(lu_factor, wrap_factors, gm_lu_factor, 2)
WRAPPED(qr, wrap_factors, gm_qr, 2)

WRAPPED(cholesky, wrap_flag, gm_cholesky)

WRAPPED(cholesky_inv, wrap_flag, gm_cholesky_inv)

WRAPPED(inv, wrap_array, gm_inv)

WRAPPED(tri_inv, wrap_flag, gm_tri_inv)

WRAPPED(pinv, wrap_array, gm_pinv)

WRAPPED(solve, wrap_arrays, gm_solve)

FUNCTION_OF(solve_triangular) {
    gm_array *a, *b;
    bool upper = false;
    BIND(solve_triangular, "AAb", &a, &b, &upper);
    return call_finish(&c, gm_solve_triangular(c.scope, a, b, upper));
}

WRAPPED(det, wrap_array, gm_det)

WRAPPED(slogdet, wrap_factors, gm_slogdet, 2)

FUNCTION_OF(svd) {
    gm_array *x, *outs[3];
    bool vectors = true;
    BIND(svd, "Ab", &x, &vectors);
    gm_array *first = gm_svd(c.scope, x, vectors, outs);
    return vectors ? finish_outputs(&c, first, outs, 3) : call_finish(&c, first);
}

/* As LAPACK's: 'L' is the lower triangle, anything else the upper one. */
static bool is_upper(const char *triangle) { return triangle[0] != 'L' || triangle[1]; }

FUNCTION_OF(eigh) {
    gm_array *x, *outs[2];
    const char *triangle = "L";
    BIND(eigh, "At", &x, &triangle);
    return finish_outputs(&c, gm_eigh(c.scope, x, is_upper(triangle), outs), outs, 2);
}

FUNCTION_OF(eigvalsh) {
    gm_array *x;
    const char *triangle = "L";
    BIND(eigvalsh, "At", &x, &triangle);
    return call_finish(&c, gm_eigvalsh(c.scope, x, is_upper(triangle)));
}

WRAPPED(eig, wrap_factors, gm_eig, 2)

WRAPPED(eigvals, wrap_array, gm_eigvals)
