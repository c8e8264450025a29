/* shape.c - Python functions of ops that change an array's shape, or where its elements are. */
#include "py/ops/bind.h"
#include <string.h>

FUNCTION_OF(expand_dims)
{
    gm_array *x;
    int n_axes = 0, axes[GM_MAX_NDIM];
    BIND(expand_dims, "Ax", &x, &n_axes, axes);
    if (n_axes < 0) {
        PyErr_SetString(PyExc_TypeError, "expand_dims: axis must be an int or a sequence of ints, not None");
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_expand_dims(c.scope, x, n_axes, axes));
}

/* One array for one, a list for several. */
static PyObject *finish_each(call *c, gm_array **arrays, Py_ssize_t n, gm_array *(*fn)(gm_scope *, gm_array *)) {
    if (n == 1)
        return call_finish(c, fn(c->scope, arrays[0]));
    bool ok = true;
    for (Py_ssize_t i = 0; i < n && ok; i++)
        ok = (arrays[i] = fn(c->scope, arrays[i])) != NULL;
    return call_finish_many(c, ok ? GM_OK : GM_EVALUE, arrays, (int)n, true);
}

static PyObject *wrap_each(const invocation *in, unary_fn fn) {
    gm_array **arrays;
    const invocation named = {in->module, in->args + in->n, in->kwnames, 0, in->sig, in->name, in->text};
    BIND_IN(&named, "");
    if (!call_arrays(&c, in->args, in->n, "each argument", &arrays))
        return call_finish(&c, NULL);
    return finish_each(&c, arrays, in->n, fn);
}
WRAPPED(atleast_1d, wrap_each, gm_atleast_1d)
WRAPPED(atleast_2d, wrap_each, gm_atleast_2d)
WRAPPED(atleast_3d, wrap_each, gm_atleast_3d)

FUNCTION_OF(broadcast_arrays)
{
    gm_array **arrays;
    BIND_NAMED(broadcast_arrays, "");
    if (!call_arrays(&c, args, n, "each argument", &arrays))
        return call_finish(&c, NULL);
    bool ok = gm_broadcast_arrays(c.scope, arrays, (int)n, arrays) != NULL;
    return call_finish_many(&c, ok ? GM_OK : GM_EVALUE, arrays, (int)n, true);
}

FUNCTION_OF(broadcast_shapes)
{
    BIND_NAMED(broadcast_shapes, "");
    size_t count = n ? (size_t)n : 1;
    int *ndims = PyMem_Malloc(count * sizeof *ndims);
    int64_t *dims = PyMem_Malloc(count * GM_MAX_NDIM * sizeof *dims);
    const int64_t **shapes = PyMem_Malloc(count * sizeof *shapes);
    bool ok = ndims && dims && shapes;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n && ok; i++) {
        shapes[i] = dims + i * GM_MAX_NDIM;
        ok = read_shape(args[i], &ndims[i], dims + i * GM_MAX_NDIM);
    }
    gm_array *all = ok ? gm_broadcast_shapes(c.scope, (int)n, ndims, shapes) : NULL;
    PyObject *result = all ? shape_tuple(all) : raise_gm(c.state);
    PyMem_Free(ndims);
    PyMem_Free(dims);
    PyMem_Free(shapes);
    gm_scope_close(c.scope);
    return result;
}

/* ---- joined and taken apart ---- */
/* The items of a sequence of arrays, or of one array. */
static bool read_items(call *c, PyObject *value, gm_array ***arrays, Py_ssize_t *count) {
    PyObject *items = PySequence_Tuple(value);
    *count = items ? PyTuple_Size(items) : 0;
    if (!items)
        return false;
    bool ok = *count <= INT32_MAX;
    PyObject **list = ok ? PyMem_Malloc(sizeof *list * (size_t)(*count ? *count : 1)) : NULL;
    for (Py_ssize_t i = 0; list && i < *count; i++)
        list[i] = PyTuple_GetItem(items, i);
    ok = list ? call_arrays(c, list, *count, "each item", arrays) : (PyErr_NoMemory(), false);
    PyMem_Free(list);
    Py_DECREF(items);
    return ok;
}

FUNCTION_OF(concatenate)
{
    PyObject *value;
    gm_array **arrays;
    Py_ssize_t count;
    int axis = 0;
    bool flat = false;
    BIND(concatenate, "pa", &value, &axis, &flat);
    if (!read_items(&c, value, &arrays, &count))
        return call_finish(&c, NULL);
    for (Py_ssize_t i = 0; flat && i < count; i++)
        arrays[i] = gm_reshape(c.scope, arrays[i], 1, (int64_t[]){-1});
    return call_finish(&c, gm_concatenate(c.scope, arrays, (int)count, axis));
}

FUNCTION_OF(stack)
{
    PyObject *value;
    gm_array **arrays;
    Py_ssize_t count;
    int axis = 0;
    BIND(stack, "pi", &value, &axis);
    if (!read_items(&c, value, &arrays, &count))
        return call_finish(&c, NULL);
    return call_finish(&c, gm_stack(c.scope, arrays, (int)count, axis));
}

/* Pieces for a result list; freed by the call's end. */
static gm_array **pieces_for(call *c, int64_t count) {
    c->list = PyMem_Malloc(sizeof *c->list * (size_t)(count > 0 ? count : 1));
    if (!c->list)
        PyErr_NoMemory();
    return c->list;
}

FUNCTION_OF(split)
{
    gm_array *x, **pieces;
    int count = 0, axis = 0;
    int64_t indices[BIND_INTS];
    BIND(split, "Ani", &x, &count, indices, &axis);
    bool evenly = count < 0;
    int64_t parts = evenly ? indices[0] : count + 1;
    if (parts > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "split: %lld parts, expected at most 2147483647", (long long)parts);
        return call_finish(&c, NULL);
    }
    if (!(pieces = pieces_for(&c, parts)))
        return call_finish(&c, NULL);
    gm_array *done = evenly ? gm_split_evenly(c.scope, x, (int)parts, axis, pieces)
                            : gm_split(c.scope, x, count, indices, axis, pieces);
    return call_finish_many(&c, done ? GM_OK : GM_EVALUE, pieces, done ? (int)parts : 0, true);
}

FUNCTION_OF(unstack)
{
    gm_array *x, **pieces;
    int axis = 0;
    BIND(unstack, "Ai", &x, &axis);
    int ndim = gm_array_ndim(x), at = axis < 0 ? axis + ndim : axis;
    int64_t count = at >= 0 && at < ndim ? gm_array_shape(x)[at] : 0;
    if (!(pieces = pieces_for(&c, count)))
        return call_finish(&c, NULL);
    gm_array *done = gm_unstack(c.scope, x, axis, pieces);
    return call_finish_many(&c, done ? GM_OK : GM_EVALUE, pieces, done ? (int)count : 0, false);
}

FUNCTION_OF(repeat)
{
    gm_array *x;
    int repeats = 0, axis = 0;
    bool all = true;
    BIND(repeat, "Aia", &x, &repeats, &axis, &all);
    return call_finish(&c, gm_repeat(c.scope, x, repeats, axis, all));
}

/* One shift serves all axes, several shifts of one axis follow each other. */
FUNCTION_OF(roll)
{
    gm_array *x;
    int n_shifts = 0, n_axes = -1, axes[GM_MAX_NDIM];
    int64_t shifts[BIND_INTS];
    PyObject *axis;
    BIND(roll, "Anp", &x, &n_shifts, shifts, &axis);
    if (!read_axes(axis, &n_axes, axes))
        return call_finish(&c, NULL);
    bool one_shift = n_shifts < 0, one_axis = axis && is_one_integer(axis);
    n_shifts = one_shift ? 1 : n_shifts;
    for (; one_shift && n_shifts < n_axes; n_shifts++)
        shifts[n_shifts] = shifts[0];
    for (; one_axis && n_axes < n_shifts && n_axes < GM_MAX_NDIM; n_axes++)
        axes[n_axes] = axes[0];
    return call_finish(&c, gm_roll(c.scope, x, n_shifts, shifts, n_axes, axes));
}

/* int, (both,), (low, high), or one pair for all axes or one for each. */
static bool read_widths(PyObject *value, int ndim, int64_t *low, int64_t *high) {
    int64_t pair[GM_MAX_NDIM];
    int count;
    bool single = is_one_integer(value);
    PyObject *items = single ? NULL : PySequence_Tuple(value);
    Py_ssize_t n = items ? PyTuple_Size(items) : 0;
    bool flat = single || (n > 0 && is_one_integer(PyTuple_GetItem(items, 0)));
    bool ok = single || items;
    for (int d = 0; ok && (d < ndim || (d == 0 && (flat || n))); d++) {
        if (flat && d == 0)
            ok = read_shape(value, &count, pair);
        else if (!flat && (d == 0 || n > 1))
            ok = d < n ? read_shape(PyTuple_GetItem(items, d), &count, pair) : true;
        if (ok && (count < 1 || count > 2 || (!flat && count != 2))) {
            PyErr_SetString(PyExc_TypeError, "pad: pad_width must be an int, (low, high), or a sequence of such pairs");
            ok = false;
        }
        if (ok && d < ndim) {
            low[d] = pair[0];
            high[d] = pair[count - 1];
        }
    }
    if (ok && !flat && n != 1 && n != ndim) {
        PyErr_Format(PyExc_ValueError, "pad: %zd pairs of widths for an array with %d dimensions", n, ndim);
        ok = false;
    }
    Py_XDECREF(items);
    return ok;
}

FUNCTION_OF(pad)
{
    static const char *const modes[] = {"constant", "edge", "reflect", "symmetric"};
    gm_array *x, *value;
    PyObject *width, *given;
    int64_t low[GM_MAX_NDIM], high[GM_MAX_NDIM];
    const char *mode = "constant";
    BIND(pad, "Aptp", &x, &width, &mode, &given);
    int kind = 0;
    while (kind < 4 && strcmp(modes[kind], mode) != 0)
        kind++;
    if (kind == 4) {
        PyErr_Format(PyExc_ValueError, "pad: mode '%s'; expected 'constant', 'edge', 'reflect' or 'symmetric'", mode);
        return call_finish(&c, NULL);
    }
    if (!read_widths(width, gm_array_ndim(x), low, high))
        return call_finish(&c, NULL);
    value = given && given != Py_None ? node_from_operand(c.state, c.scope, given, gm_array_dtype(x))
                                      : gm_zeros(c.scope, 0, NULL, gm_array_dtype(x));
    return call_finish(&c, !value ? NULL : gm_pad(c.scope, x, low, high, (gm_pad_mode)kind, value));
}

/* ---- memory ---- */

FUNCTION_OF(as_strided)
{
    gm_array *x;
    int ndim = -1, n_strides = 0, offset = 0;
    int64_t shape[GM_MAX_NDIM], strides[BIND_INTS];
    PyObject *given;
    BIND(as_strided, "Aspi", &x, &ndim, shape, &given, &offset);
    bool whole = ndim < 0, default_strides = !given || given == Py_None;
    ndim = whole ? gm_array_ndim(x) : ndim;
    int64_t items[GM_MAX_NDIM];
    if (!default_strides && !read_shape(given, &n_strides, items))
        return call_finish(&c, NULL);
    if (!default_strides && n_strides != ndim) {
        PyErr_Format(PyExc_ValueError, "as_strided: %d strides for %d dimensions", n_strides, ndim);
        return call_finish(&c, NULL);
    }
    memcpy(strides, items, (size_t)n_strides * sizeof *strides);
    return call_finish(&c, gm_as_strided(c.scope, x, ndim, whole ? gm_array_shape(x) : shape,
                                         default_strides ? NULL : strides, offset));
}

FUNCTION_OF(astype)
{
    gm_array *x;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(astype, "Ad", &x, &type);
    if (type == GM_DTYPE_COUNT) {
        PyErr_SetString(PyExc_TypeError, "astype: dtype must be a Dtype such as float32, not None");
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_astype(c.scope, x, type));
}

FUNCTION_OF(view)
{
    gm_array *x;
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(view, "Vd", &x, &type);
    if (type == GM_DTYPE_COUNT) {
        PyErr_SetString(PyExc_TypeError, "view: dtype must be a Dtype such as float32, not None");
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_view(c.scope, x, type));
}

FUNCTION_OF(depends)
{
    PyObject *inputs, *dependencies, *all;
    gm_array **arrays;
    Py_ssize_t count;
    BIND(depends, "pp", &inputs, &dependencies);
    bool one = py_array_node(c.state, inputs) != NULL;
    PyObject *first = one ? PyTuple_Pack(1, inputs) : PySequence_Tuple(inputs), *then = NULL;
    if (first)
        then = py_array_node(c.state, dependencies) ? PyTuple_Pack(1, dependencies) : PySequence_Tuple(dependencies);
    all = then ? PySequence_Concat(first, then) : NULL;
    int n_outputs = first ? (int)PyTuple_Size(first) : 0;
    Py_XDECREF(first);
    Py_XDECREF(then);
    bool ok = all && read_items(&c, all, &arrays, &count);
    Py_XDECREF(all);
    if (!ok)
        return call_finish(&c, NULL);
    gm_array *done = gm_depends(c.scope, arrays, (int)count, n_outputs, arrays);
    if (one)
        return call_finish(&c, done);
    return call_finish_many(&c, done ? GM_OK : GM_EVALUE, arrays, n_outputs, true);
}
