/* ops_create.c - Python functions that make arrays: ranges, constants, triangles, grids, windows. */
#include <limits.h>
#include <string.h>
#include "py/bind.h"

/* The value of an arange bound; widens *type from int32 to int64 to float32 as the numbers ask. */
static bool read_bound(PyObject *value, const char *what, double *out, gm_dtype *type) {
    if (!PyFloat_Check(value) && !PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "arange: %s must be an int or a float, not %R", what, (PyObject *)Py_TYPE(value));
        return false;
    }
    if (!read_float(value, what, out))
        return false;
    if (PyFloat_Check(value))
        *type = GM_FLOAT32;
    else if (*type == GM_INT32 && (*out > INT32_MAX || *out < INT32_MIN))
        *type = GM_INT64;
    return true;
}

FUNCTION_OF(arange) {
    PyObject *first, *second, *third;
    double start = 0, stop = 0, step = 1;
    gm_dtype given = GM_DTYPE_COUNT, type = GM_INT32;
    BIND(arange, "pppd", &first, &second, &third, &given);
    bool only_stop = !second || second == Py_None;         /* arange(5), arange(stop=5) */
    bool named = !first || (n == 0 && only_stop && !second);
    if (named && !second) {
        PyErr_SetString(PyExc_TypeError, "arange: stop is missing");
        return call_finish(&c, NULL);
    }
    bool ok = only_stop ? read_bound(first, "stop", &stop, &type)
                        : (!first || read_bound(first, "start", &start, &type)) &&
                              read_bound(second, "stop", &stop, &type);
    if (ok && third && third != Py_None)
        ok = read_bound(third, "step", &step, &type);
    gm_array *node = ok ? gm_arange(c.scope, start, stop, step, given == GM_DTYPE_COUNT ? type : given) : NULL;
    if (node && gm_array_size(node) > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "arange: %lld elements, at most 2147483647 are possible",
                     (long long)gm_array_size(node));
        node = NULL;
    }
    return call_finish(&c, node);
}

/* ---- constants ---- */
FUNCTION_OF(full) {
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    PyObject *vals;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(full, "spd", &ndim, shape, &vals, &type);
    gm_array *value = node_from_operand(c.state, c.scope, vals, type);
    if (value && type == GM_DTYPE_COUNT)
        type = gm_array_dtype(value);
    return call_finish(&c, value ? gm_full(c.scope, ndim, shape, value, type) : NULL);
}

FUNCTION_OF(full_like) {
    gm_array *x;
    PyObject *vals;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(full_like, "Apd", &x, &vals, &type);
    type = type == GM_DTYPE_COUNT ? gm_array_dtype(x) : type;
    gm_array *value = node_from_operand(c.state, c.scope, vals, GM_DTYPE_COUNT);
    return call_finish(&c, value ? gm_full_like(c.scope, x, value, type) : NULL);
}

FUNCTION_OF(zeros) {
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    BIND(zeros, "sd", &ndim, shape, &type);
    return call_finish(&c, gm_zeros(c.scope, ndim, shape, type));
}

FUNCTION_OF(ones) {
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    BIND(ones, "sd", &ndim, shape, &type);
    return call_finish(&c, gm_ones(c.scope, ndim, shape, type));
}

FUNCTION_OF(zeros_like) {
    gm_array *x;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(zeros_like, "Ad", &x, &type);
    return call_finish(&c, gm_zeros_like(c.scope, x, type));
}

FUNCTION_OF(ones_like) {
    gm_array *x;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(ones_like, "Ad", &x, &type);
    return call_finish(&c, gm_ones_like(c.scope, x, type));
}

/* ---- matrices; m is n unless it is given ---- */
FUNCTION_OF(eye) {
    int rows = 0, columns = INT_MIN, k = 0;
    gm_dtype type = GM_FLOAT32;
    BIND(eye, "iiid", &rows, &columns, &k, &type);
    return call_finish(&c, gm_eye(c.scope, rows, columns == INT_MIN ? rows : columns, k, type));
}

FUNCTION_OF(identity) {
    int rows = 0;
    gm_dtype type = GM_FLOAT32;
    BIND(identity, "id", &rows, &type);
    return call_finish(&c, gm_identity(c.scope, rows, type));
}

FUNCTION_OF(tri) {
    int rows = 0, columns = INT_MIN, k = 0;
    gm_dtype type = GM_FLOAT32;
    BIND(tri, "iiid", &rows, &columns, &k, &type);
    return call_finish(&c, gm_tri(c.scope, rows, columns == INT_MIN ? rows : columns, k, type));
}

FUNCTION_OF(tril) {
    gm_array *x;
    int k = 0;
    BIND(tril, "Ai", &x, &k);
    return call_finish(&c, gm_tril(c.scope, x, k));
}

FUNCTION_OF(triu) {
    gm_array *x;
    int k = 0;
    BIND(triu, "Ai", &x, &k);
    return call_finish(&c, gm_triu(c.scope, x, k));
}

/* ---- sequences ---- */
FUNCTION_OF(linspace) {
    gm_array *start, *stop;
    int count = 50;
    bool endpoint = true;
    gm_dtype type = GM_FLOAT32;
    BIND(linspace, "VVibd", &start, &stop, &count, &endpoint, &type);
    return call_finish(&c, gm_linspace(c.scope, start, stop, count, endpoint, type));
}

FUNCTION_OF(meshgrid) {
    bool sparse = false, rows_first;
    const char *indexing = "xy";
    gm_array **arrays, *outs[GM_MAX_NDIM];
    BIND_NAMED(meshgrid, "bt", &sparse, &indexing);
    rows_first = strcmp(indexing, "ij") == 0;
    if (!rows_first && strcmp(indexing, "xy") != 0) {
        PyErr_Format(PyExc_ValueError, "meshgrid: indexing must be 'xy' or 'ij', not '%s'", indexing);
        return call_finish(&c, NULL);
    }
    if (!call_arrays(&c, args, n, "each argument", &arrays))
        return call_finish(&c, NULL);
    bool ok = gm_meshgrid(c.scope, arrays, (int)n, sparse, rows_first, outs) != NULL;
    return call_finish_many(&c, ok ? GM_OK : GM_EVALUE, outs, (int)n, false);
}

#define WINDOW(name)                                                                                                   \
    FUNCTION_OF(name) {                                                                                                \
        int count = 0;                                                                                                 \
        BIND(name, "i", &count);                                                                                       \
        return call_finish(&c, gm_##name(c.scope, count));                                                             \
    }
WINDOW(bartlett)
WINDOW(hanning)
WINDOW(hamming)
WINDOW(blackman)
