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

FUNCTION_OF(lu) {
    gm_array *x, *outs[3];
    BIND(lu, "A", &x);
    return finish_outputs(&c, gm_lu(c.scope, x, outs), outs, 3);
}

FUNCTION_OF(lu_factor) {
    gm_array *x, *outs[2];
    BIND(lu_factor, "A", &x);
    return finish_outputs(&c, gm_lu_factor(c.scope, x, outs), outs, 2);
}

FUNCTION_OF(qr) {
    gm_array *x, *outs[2];
    BIND(qr, "A", &x);
    return finish_outputs(&c, gm_qr(c.scope, x, outs), outs, 2);
}

FUNCTION_OF(cholesky) {
    gm_array *x;
    bool upper = false;
    BIND(cholesky, "Ab", &x, &upper);
    return call_finish(&c, gm_cholesky(c.scope, x, upper));
}

FUNCTION_OF(cholesky_inv) {
    gm_array *x;
    bool upper = false;
    BIND(cholesky_inv, "Ab", &x, &upper);
    return call_finish(&c, gm_cholesky_inv(c.scope, x, upper));
}

FUNCTION_OF(inv) {
    gm_array *x;
    BIND(inv, "A", &x);
    return call_finish(&c, gm_inv(c.scope, x));
}

FUNCTION_OF(tri_inv) {
    gm_array *x;
    bool upper = false;
    BIND(tri_inv, "Ab", &x, &upper);
    return call_finish(&c, gm_tri_inv(c.scope, x, upper));
}

FUNCTION_OF(pinv) {
    gm_array *x;
    BIND(pinv, "A", &x);
    return call_finish(&c, gm_pinv(c.scope, x));
}

FUNCTION_OF(solve) {
    gm_array *a, *b;
    BIND(solve, "AA", &a, &b);
    return call_finish(&c, gm_solve(c.scope, a, b));
}

FUNCTION_OF(solve_triangular) {
    gm_array *a, *b;
    bool upper = false;
    BIND(solve_triangular, "AAb", &a, &b, &upper);
    return call_finish(&c, gm_solve_triangular(c.scope, a, b, upper));
}

FUNCTION_OF(det) {
    gm_array *x;
    BIND(det, "A", &x);
    return call_finish(&c, gm_det(c.scope, x));
}

FUNCTION_OF(slogdet) {
    gm_array *x, *outs[2];
    BIND(slogdet, "A", &x);
    return finish_outputs(&c, gm_slogdet(c.scope, x, outs), outs, 2);
}

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

FUNCTION_OF(eig) {
    gm_array *x, *outs[2];
    BIND(eig, "A", &x);
    return finish_outputs(&c, gm_eig(c.scope, x, outs), outs, 2);
}

FUNCTION_OF(eigvals) {
    gm_array *x;
    BIND(eigvals, "A", &x);
    return call_finish(&c, gm_eigvals(c.scope, x));
}
