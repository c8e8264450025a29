/* index.c - the functions that read and write by index arrays. */
#include "py/ops/bind.h"

/* Without an axis the flattened array. */
static gm_array *flat_or(gm_scope *scope, gm_array *x, bool flat, int *axis) {
    if (!flat)
        return x;
    *axis = 0;
    return gm_reshape(scope, x, 1, &(int64_t){-1});
}

/* An int is known now; the items of an array are when they are evaluated. */
static bool index_in_range(PyObject *value, const gm_array *x, int axis) {
    int overflow;
    int64_t n = gm_array_shape(x)[axis < 0 ? axis + gm_array_ndim(x) : axis];
    int64_t i = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (!overflow && i >= -n && i < n)
        return true;
    PyErr_Format(PyExc_IndexError, "take: index %R is out of range for an axis with %lld items", value, (long long)n);
    return false;
}

FUNCTION_OF(take)
{
    gm_array *x;
    PyObject *value;
    int axis = 0;
    bool flat = true;
    BIND(take, "Apa", &x, &value, &axis, &flat);
    if (!py_array_node(c.state, value) && !PyLong_Check(value)) {
        PyErr_Format(PyExc_TypeError, "take: indices must be an int or an array, not %R", (PyObject *)Py_TYPE(value));
        return call_finish(&c, NULL);
    }
    gm_array *indices = node_from_operand(c.state, c.scope, value, GM_DTYPE_COUNT);
    x = indices ? flat_or(c.scope, x, flat, &axis) : NULL;
    gm_array *taken = gm_take(c.scope, x, indices, axis);
    if (taken && PyLong_Check(value) && !index_in_range(value, x, axis))
        taken = NULL;
    return call_finish(&c, taken);
}

FUNCTION_OF(take_along_axis)
{
    gm_array *x, *indices;
    int axis = -1;
    bool flat = false;
    BIND(take_along_axis, "AAa", &x, &indices, &axis, &flat);
    x = flat_or(c.scope, x, flat, &axis);
    return call_finish(&c, gm_take_along_axis(c.scope, x, indices, axis));
}

FUNCTION_OF(put_along_axis)
{
    gm_array *x, *indices, *values;
    int axis = 0;
    bool flat = true;
    BIND(put_along_axis, "AAAa", &x, &indices, &values, &axis, &flat);
    int ndim = gm_array_ndim(x);
    const int64_t *shape = gm_array_shape(x);
    gm_array *put = gm_put_along_axis(c.scope, flat_or(c.scope, x, flat, &axis), indices, values, axis);
    return call_finish(&c, gm_reshape(c.scope, put, ndim, shape));
}

FUNCTION_OF(slice)
{
    gm_array *x, *start;
    int n_axes, axes[GM_MAX_NDIM], n_sizes;
    int64_t size[GM_MAX_NDIM];
    BIND(slice, "AAxs", &x, &start, &n_axes, axes, &n_sizes, size);
    if (n_axes < 0 || n_sizes != gm_array_ndim(x)) {
        PyErr_Format(PyExc_ValueError, "slice: %d sizes and %d axes for an array with %d dimensions", n_sizes, n_axes,
                     gm_array_ndim(x));
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_dynamic_slice(c.scope, x, start, n_axes, axes, size));
}

FUNCTION_OF(slice_update)
{
    gm_array *x, *update, *start;
    int n_axes, axes[GM_MAX_NDIM];
    BIND(slice_update, "AAAx", &x, &update, &start, &n_axes, axes);
    if (n_axes < 0) {
        PyErr_SetString(PyExc_ValueError, "slice_update: axes must be given");
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_dynamic_slice_update(c.scope, x, update, start, n_axes, axes));
}
