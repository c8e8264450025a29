/* indexing.c - a[key], a[key] = value and a.at[key].
 *  (1) Reading is one slice, one gather and one reshape; what of these does nothing is left out. A result never
 *      aliases the array that it was read from, in the sense of item assignment.
 *  (2) Assignment gives the handle a new node, slice_update or scatter over the old one, and lets the old one go:
 *      when nobody else has it, the engine writes in place. */
#include "py/array/index_key.h"
#include <string.h>

/* ---- reading ---- */
static gm_array *read_node(module_state *state, gm_scope *scope, gm_array *x, PyObject *key) {
    index_key k;
    int ndim, from[GM_MAX_NDIM + 1];
    int64_t shape[GM_MAX_NDIM + 1];
    if (!read_key(state, scope, x, key, false, &k) || !key_shape(&k, &ndim, shape, from))
        return NULL;
    if (k.sliced)
        x = gm_slice(scope, x, k.start, k.stop, k.step);
    if (k.n_arrays)
        x = gm_gather(scope, x, k.arrays, k.n_arrays, k.array_axes, key_place(&k));
    return gm_reshape(scope, x, ndim, shape);
}

PyObject *py_array_subscript(PyObject *self, PyObject *key) {
    module_state *state = py_array_state(self);
    gm_array *own = gm_retain(((array_object *)self)->node); /* reading the key may run Python code */
    gm_scope *scope = gm_scope_open();
    PyObject *result = py_array_result(state, scope, scope ? read_node(state, scope, own, key) : NULL);
    gm_release(own);
    return result;
}

gm_array *node_row(gm_scope *scope, gm_array *x, int64_t index) {
    int ndim = gm_array_ndim(x);
    const int64_t *shape = gm_array_shape(x);
    int64_t start[GM_MAX_NDIM] = {index}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    for (int i = 0; i < ndim; i++)
        stop[i] = i == 0 ? index + 1 : shape[i], step[i] = 1;
    return gm_reshape(scope, gm_slice(scope, x, start, stop, step), ndim - 1, shape + 1);
}

/* ---- writing ---- */
/* What at[key] does to the elements; the modes of gm_scatter, in its order. */
typedef enum { WRITE_UPDATE, WRITE_ADD, WRITE_MULTIPLY, WRITE_MAX, WRITE_MIN } write_mode;
static const binary_fn write_functions[] = {
    [WRITE_ADD] = gm_add, [WRITE_MULTIPLY] = gm_multiply, [WRITE_MAX] = gm_maximum, [WRITE_MIN] = gm_minimum};

static gm_array *refuse_update(const gm_array *value, int ndim, const int64_t *shape) {
    PyObject *got = shape_tuple(value), *want = PyTuple_New(ndim);
    for (int i = 0; want && i < ndim; i++)
        PyTuple_SetItem(want, i, PyLong_FromLongLong(shape[i]));
    if (got && want)
        PyErr_Format(PyExc_ValueError, "a value of shape %R cannot be broadcast to the %R that is assigned to", got,
                     want);
    Py_XDECREF(got);
    Py_XDECREF(want);
    return NULL;
}

/* The value, which broadcasts to the shape of a[key], with the dimensions that the region of x has: those of ints are
 * there, those of None are not, and the arrays' are where gm_gather puts them. */
static gm_array *fit_value(gm_scope *scope, const index_key *k, gm_array *value) {
    int ndim, from[GM_MAX_NDIM + 1], n = 0;
    int64_t shape[GM_MAX_NDIM + 1], out[2 * GM_MAX_NDIM];
    int64_t axis_size[GM_MAX_NDIM], array_size[GM_MAX_NDIM]; /* of the value, for each axis of x and of the arrays */
    if (!key_shape(k, &ndim, shape, from))
        return NULL;
    int have = gm_array_ndim(value), extra = have - ndim;
    const int64_t *own = gm_array_shape(value);
    for (int i = 0; i < extra; i++)
        if (own[i] != 1)
            return refuse_update(value, ndim, shape);
    for (int i = 0; i < k->ndim; i++)
        axis_size[i] = 1;
    for (int i = 0; i < ndim; i++) {
        int64_t dim = i + extra < 0 ? 1 : own[i + extra];
        if (dim != 1 && dim != shape[i])
            return refuse_update(value, ndim, shape);
        if (from[i] >= GM_MAX_NDIM)
            array_size[from[i] - GM_MAX_NDIM] = dim;
        else if (from[i] >= 0)
            axis_size[from[i]] = dim;
    }
    int place = k->n_arrays ? key_place(k) : -1;
    for (int i = 0, kept = 0; i <= k->ndim; i++) {
        for (int j = 0; kept == place && j < k->index_ndim; j++)
            out[n++] = array_size[j];
        if (kept == place)
            place = -1;
        if (i < k->ndim && k->kind[i] != AXIS_ARRAY) {
            out[n++] = axis_size[i];
            kept++;
        }
    }
    if (n > GM_MAX_NDIM) {
        PyErr_SetString(PyExc_ValueError, "the value has more dimensions than are supported");
        return NULL;
    }
    return gm_reshape(scope, value, n, out);
}

/* x with the value where the mask is true. A value with one dimension more than the mask leaves of x has a row for each
 * true item, in order. */
static gm_array *write_masked(gm_scope *scope, gm_array *x, gm_array *mask, gm_array *value, write_mode mode) {
    int ndim = gm_array_ndim(x), n = gm_array_ndim(mask), rest = ndim - n;
    const int64_t *shape = gm_array_shape(x);
    if (rest < 0 || memcmp(gm_array_shape(mask), shape, (size_t)n * sizeof *shape) != 0) {
        PyErr_SetString(PyExc_ValueError, "a mask must have the shape of the array's first dimensions");
        return NULL;
    }
    int64_t wide[GM_MAX_NDIM];
    for (int i = 0; i < ndim; i++)
        wide[i] = i < n ? shape[i] : 1;
    gm_array *where = gm_reshape(scope, mask, ndim, wide);
    if (gm_array_ndim(value) > rest + 1)
        return refuse_update(value, rest, shape + n);
    int64_t count = gm_array_ndim(value) == rest + 1 ? gm_array_shape(value)[0] : 1;
    if (count == 0) /* for a mask that is false everywhere */
        return x;
    if (count != 1) {
        int64_t rows[GM_MAX_NDIM + 1] = {count}, one = 1;
        memcpy(rows + 1, shape + n, (size_t)rest * sizeof *rows);
        gm_array *order = gm_cumsum(scope, gm_astype(scope, mask, GM_INT64), 0, true, false, true, GM_INT64);
        order = gm_subtract(scope, order, gm_array_from(scope, GM_INT64, 0, NULL, &one));
        gm_array *there = gm_less(scope, order, gm_array_from(scope, GM_INT64, 0, NULL, &count));
        where = gm_logical_and(scope, where, gm_reshape(scope, there, ndim, wide));
        int64_t last = count - 1;
        order = gm_minimum(scope, order, gm_array_from(scope, GM_INT64, 0, NULL, &last));
        value = gm_take(scope, gm_broadcast_to(scope, value, rest + 1, rows), order, 0);
        value = gm_reshape(scope, value, ndim, shape);
    }
    if (mode != WRITE_UPDATE)
        value = write_functions[mode](scope, x, value);
    return gm_where(scope, where, gm_broadcast_to(scope, value, ndim, shape), x);
}

static gm_array *write_node(module_state *state, gm_scope *scope, gm_array *x, PyObject *key, gm_array *value,
                            write_mode mode) {
    index_key k;
    if (!value || !read_key(state, scope, x, key, true, &k))
        return NULL;
    value = gm_astype(scope, value, gm_array_dtype(x));
    if (!value)
        return NULL;
    if (k.mask)
        return write_masked(scope, x, k.mask, value, mode);
    value = fit_value(scope, &k, value);
    if (!value)
        return NULL;
    if (k.n_arrays)
        return gm_scatter(scope, x, (gm_indices){k.arrays, k.n_arrays, k.array_axes, key_place(&k)}, value, (int)mode,
                          &(gm_region){k.start, k.stop, k.step});
    if (mode != WRITE_UPDATE)
        value = write_functions[mode](scope, gm_slice(scope, x, k.start, k.stop, k.step), value);
    return gm_slice_update(scope, x, value, k.start, k.stop, k.step);
}

/* A number is weak to the array: it takes its dtype. */
static gm_array *value_node(module_state *state, gm_scope *scope, const gm_array *x, PyObject *value) {
    gm_array *node = py_array_node(state, value);
    if (node)
        return gm_scope_keep(scope, node);
    bool number = PyFloat_Check(value) || PyLong_Check(value) || PyComplex_Check(value);
    return number ? node_from_operand(state, scope, value, gm_array_dtype(x))
                  : gm_scope_keep(scope, node_from_value(state, scope, value, GM_DTYPE_COUNT));
}

int py_array_assign_subscript(PyObject *self, PyObject *key, PyObject *value) {
    module_state *state = py_array_state(self);
    array_object *array = (array_object *)self;
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "items of an array cannot be deleted");
        return -1;
    }
    gm_array *own = gm_retain(array->node);
    gm_scope *scope = gm_scope_open();
    gm_array *update = scope ? value_node(state, scope, own, value) : NULL;
    gm_array *node = update ? write_node(state, scope, own, key, update, WRITE_UPDATE) : NULL;
    if (node)
        gm_retain(node);
    gm_scope_close(scope);
    gm_release(own);
    if (!node) {
        raise_gm(state);
        return -1;
    }
    gm_array *old = array->node;
    array->node = node;
    gm_release(old);
    return 0;
}

/* ---- at ---- */
typedef struct { PyObject_HEAD PyObject *array, *key; } at_object; /* key NULL: not given yet */

PyObject *py_array_at(PyObject *self, void *unused) {
    (void)unused;
    at_object *at = (at_object *)PyType_GenericAlloc(py_array_state(self)->array_at_type, 0);
    if (at)
        at->array = Py_NewRef(self);
    return (PyObject *)at;
}

static PyObject *at_subscript(PyObject *self, PyObject *key) {
    PyObject *array = ((at_object *)self)->array;
    at_object *at = (at_object *)py_array_at(array, NULL);
    if (at)
        at->key = Py_NewRef(key);
    return (PyObject *)at;
}

static PyObject *at_write(const char *method, PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                          write_mode mode, unary_fn prepare) {
    const signature sig = {method, 0, 1, 1, {"value", NULL}};
    at_object *at = (at_object *)self;
    module_state *state = py_array_state(at->array);
    PyObject *value;
    if (!read_arguments(&sig, args, n, kwnames, &value))
        return NULL;
    if (!at->key) {
        PyErr_SetString(PyExc_ValueError, "at needs an index first, as in x.at[0].add(4)");
        return NULL;
    }
    gm_array *own = gm_retain(((array_object *)at->array)->node);
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? value_node(state, scope, own, value) : NULL;
    if (node && prepare)
        node = prepare(scope, node);
    PyObject *result = py_array_result(state, scope, node ? write_node(state, scope, own, at->key, node, mode) : NULL);
    gm_release(own);
    return result;
}

#define AT_METHOD(name, mode, prepare)                                                                                 \
    static PyObject *at_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {               \
        return at_write(#name, self, args, n, kwnames, mode, prepare);                                                 \
    }
AT_METHOD(add, WRITE_ADD, NULL)
AT_METHOD(subtract, WRITE_ADD, gm_negative)
AT_METHOD(multiply, WRITE_MULTIPLY, NULL)
AT_METHOD(divide, WRITE_MULTIPLY, gm_reciprocal)
AT_METHOD(maximum, WRITE_MAX, NULL)
AT_METHOD(minimum, WRITE_MIN, NULL)

static int at_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((at_object *)self)->array);
    Py_VISIT(((at_object *)self)->key);
    return 0;
}

static void at_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((at_object *)self)->array);
    Py_XDECREF(((at_object *)self)->key);
    object_free(self);
}

#define AT_ROW(name, doc) {#name, FUNCTION(at_##name), FASTCALL, #name "($self, value)\n--\n\n" doc}
static PyMethodDef at_methods[] = {
    AT_ROW(add, "The array with value added to the items; where an index comes twice, twice."),
    AT_ROW(subtract, "The array with value subtracted from the items."),
    AT_ROW(multiply, "The array with the items multiplied by value."),
    AT_ROW(divide, "The array with the items multiplied by 1 / value, in the array's dtype."),
    AT_ROW(maximum, "The array with the greater of item and value."),
    AT_ROW(minimum, "The array with the lesser of item and value."),
    {NULL, NULL, 0, NULL},
};
static PyType_Slot at_slots[] = {
    {Py_tp_doc, "x.at[index].add(value) and the like: x with all updates applied, also those that meet."},
    {Py_tp_dealloc, at_dealloc},
    {Py_tp_traverse, at_traverse},
    {Py_tp_methods, at_methods},
    {Py_mp_subscript, at_subscript},
    {0, NULL},
};
PyType_Spec py_array_at_spec = {"gomlx.core.ArrayAt", sizeof(at_object), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, at_slots};
