/* create.c - Python functions that make arrays: ranges, constants, sequences, grids. */
#include <string.h>
#include "py/ops/bind.h"

/* The value of an arange bound; widens *type from int32 to int64 to float32 as the numbers require. */
static bool read_bound(PyObject *value, const char *what, double *out, gm_dtype *type) {
    const bool real = PyFloat_Check(value);
    PyObject *number = real ? Py_NewRef(value) : is_one_integer(value) ? PyNumber_Index(value) : NULL;
    if (!number) {
        PyErr_Format(PyExc_TypeError, "arange: %s must be an int or a float, not %R", what, (PyObject *)Py_TYPE(value));
        return false;
    }
    const bool read = read_float(number, what, out);
    Py_DECREF(number);
    if (!read)
        return false;
    if (real)
        *type = GM_FLOAT32;
    else if (*type == GM_INT32 && (*out > INT32_MAX || *out < INT32_MIN))
        *type = GM_INT64;
    return true;
}

FUNCTION_OF(arange)
{
    PyObject *first, *second, *third;
    double start = 0, stop = 0, step = 1;
    gm_dtype given = GM_DTYPE_COUNT, type = GM_INT32;
    BIND(arange, "pppd", &first, &second, &third, &given);
    bool only_stop = !second || second == Py_None; /* arange(5), arange(stop=5) */
    bool named = !first || (n == 0 && only_stop && !second);
    if (named && !second) {
        PyErr_SetString(PyExc_TypeError, "arange: stop is missing");
        return call_finish(&c, NULL);
    }
    if (only_stop && first && PyBool_Check(first) && given == GM_DTYPE_COUNT) {
        PyErr_SetString(PyExc_ValueError, "arange: stop is a bool, expected an int or a float");
        return call_finish(&c, NULL);
    }
    bool ok = only_stop
                  ? read_bound(first, "stop", &stop, &type)
                  : (!first || read_bound(first, "start", &start, &type)) && read_bound(second, "stop", &stop, &type);
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
FUNCTION_OF(full)
{
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

FUNCTION_OF(full_like)
{
    gm_array *x;
    PyObject *vals;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(full_like, "Apd", &x, &vals, &type);
    type = type == GM_DTYPE_COUNT ? gm_array_dtype(x) : type;
    gm_array *value = node_from_operand(c.state, c.scope, vals, GM_DTYPE_COUNT);
    return call_finish(&c, value ? gm_full_like(c.scope, x, value, type) : NULL);
}

/* ---- sequences ---- */
FUNCTION_OF(linspace)
{
    PyObject *ends[2];
    int count = 50;
    bool endpoint = true;
    gm_dtype type = GM_FLOAT32;
    BIND(linspace, "ppibd", &ends[0], &ends[1], &count, &endpoint, &type);
    /* Numbers keep their double where the result does. */
    const gm_dtype like = type == GM_FLOAT64 ? GM_FLOAT64 : GM_DTYPE_COUNT;
    gm_array *start = gm_scope_keep(c.scope, node_from_operand(c.state, c.scope, ends[0], like));
    gm_array *stop = start ? node_from_operand(c.state, c.scope, ends[1], like) : NULL;
    return call_finish(&c, stop ? gm_linspace(c.scope, start, stop, count, endpoint, type) : NULL);
}

FUNCTION_OF(meshgrid)
{
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
