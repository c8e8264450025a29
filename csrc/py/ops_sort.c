/* ops_sort.c - Python functions of scans and sorts. */
#include "py/bind.h"
#include <string.h>

/* ---- scans ---- */
static PyObject *wrap_sums(const invocation *in,
                           gm_array *(*fn)(gm_scope *, gm_array *, int, bool, bool, bool, gm_dtype)) {
    gm_array *x;
    int axis = 0;
    bool all = true, reverse = false, inclusive = true;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND_IN(in, "Aabbd", &x, &axis, &all, &reverse, &inclusive, &type);
    return call_finish(&c, fn(c.scope, x, axis, all, reverse, inclusive, type));
}
WRAPPED(cumsum, wrap_sums, gm_cumsum)
WRAPPED(cumprod, wrap_sums, gm_cumprod)

static PyObject *wrap_scan(const invocation *in, gm_array *(*fn)(gm_scope *, gm_array *, int, bool, bool, bool)) {
    gm_array *x;
    int axis = 0;
    bool all = true, reverse = false, inclusive = true;
    BIND_IN(in, "Aabb", &x, &axis, &all, &reverse, &inclusive);
    return call_finish(&c, fn(c.scope, x, axis, all, reverse, inclusive));
}
WRAPPED(cummax, wrap_scan, gm_cummax)
WRAPPED(cummin, wrap_scan, gm_cummin)
WRAPPED(logcumsumexp, wrap_scan, gm_logcumsumexp)

/* ---- sorts ---- */
static PyObject *wrap_sort(const invocation *in, gm_array *(*fn)(gm_scope *, gm_array *, int, bool)) {
    gm_array *x;
    int axis = -1;
    bool all = false;
    BIND_IN(in, "Aa", &x, &axis, &all);
    return call_finish(&c, fn(c.scope, x, axis, all));
}
WRAPPED(sort, wrap_sort, gm_sort)
WRAPPED(argsort, wrap_sort, gm_argsort)

static PyObject *wrap_selection(const invocation *in, gm_array *(*fn)(gm_scope *, gm_array *, int, int, bool)) {
    gm_array *x;
    int k = 0, axis = -1;
    bool all = false;
    BIND_IN(in, "Aia", &x, &k, &axis, &all);
    return call_finish(&c, fn(c.scope, x, k, axis, all));
}
WRAPPED(partition, wrap_selection, gm_partition)
WRAPPED(argpartition, wrap_selection, gm_argpartition)
WRAPPED(topk, wrap_selection, gm_topk)

FUNCTION_OF(searchsorted) {
    gm_array *sorted, *values;
    const char *side = "left";
    BIND(searchsorted, "AAt", &sorted, &values, &side);
    bool right = strcmp(side, "right") == 0;
    if (!right && strcmp(side, "left") != 0) {
        PyErr_Format(PyExc_ValueError, "searchsorted: side must be 'left' or 'right', not '%s'", side);
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_searchsorted(c.scope, sorted, values, right));
}
