/* indexing.c - a[...]: ints, slices, None, Ellipsis, and one integer array, as one slice, one take and one reshape.
 * An int beside the array counts as an array, as in NumPy: when a slice stands between them, the array's dimensions
 * come first. A result never aliases the array that it was read from, in the sense of item assignment. */
#include "py/py.h"
#include <string.h>

typedef struct {
    const int64_t *shape;                 /* of the array being read */
    int ndim;
    int64_t start[GM_MAX_NDIM], stop[GM_MAX_NDIM], step[GM_MAX_NDIM], length[GM_MAX_NDIM];
    bool dropped[GM_MAX_NDIM];            /* by an int */
    bool sliced;                          /* anything but whole axes */
    int new_axes[GM_MAX_NDIM + 1];        /* how many None stand before axis i */
    int axis;                             /* the next one */
    gm_array *indices;                    /* the one array, and its axis */
    int indices_axis;
    int advanced_runs;                    /* neighbouring ints and arrays are one run */
    bool in_run;
} reader;

static bool refuse(const char *text) {
    PyErr_SetString(PyExc_ValueError, text);
    return false;
}

static bool axis_left(const reader *r) {
    if (r->axis < r->ndim)
        return true;
    PyErr_Format(PyExc_ValueError, "too many indices for an array with %d dimensions", r->ndim);
    return false;
}

static bool read_int_item(reader *r, PyObject *item) {
    if (!axis_left(r))
        return false;
    int64_t n = r->shape[r->axis];
    Py_ssize_t i = PyNumber_AsSsize_t(item, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return false;
    int64_t at = i < 0 ? i + n : i;
    if (at < 0 || at >= n) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of range for axis %d with %lld items", i, r->axis,
                     (long long)n);
        return false;
    }
    r->start[r->axis] = at;
    r->stop[r->axis] = at + 1;
    r->length[r->axis] = 1;
    r->dropped[r->axis++] = true;
    r->sliced = true;
    r->advanced_runs += !r->in_run;
    r->in_run = true;
    return true;
}

static bool read_slice_item(reader *r, PyObject *item) {
    if (!axis_left(r))
        return false;
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(item, &start, &stop, &step) < 0)
        return false;
    Py_ssize_t length = PySlice_AdjustIndices((Py_ssize_t)r->shape[r->axis], &start, &stop, step);
    if (length == 0)
        start = stop = 0, step = 1;
    r->start[r->axis] = start;
    r->stop[r->axis] = stop;
    r->step[r->axis] = step;
    r->length[r->axis] = length;
    r->sliced = r->sliced || step != 1 || length != r->shape[r->axis];
    r->axis++;
    r->in_run = false;
    return true;
}

static bool read_array_item(reader *r, module_state *state, gm_scope *scope, PyObject *item) {
    if (!axis_left(r))
        return false;
    if (r->indices) {
        PyErr_SetString(PyExc_NotImplementedError, "indexing with more than one array");
        return false;
    }
    r->indices = node_from_value(state, scope, item, GM_DTYPE_COUNT);
    if (!r->indices)
        return false;
    gm_dtype type = gm_array_dtype(r->indices);
    if (type == GM_BOOL)
        return refuse("boolean indices cannot be read with: their number of items is not known before evaluation");
    if (!py_dtype_is_integer(type))
        return refuse("an index array must have an integer dtype");
    r->indices_axis = r->axis++;
    r->advanced_runs += !r->in_run;
    r->in_run = true;
    return true;
}

static bool read_item(reader *r, module_state *state, gm_scope *scope, PyObject *item) {
    if (item == Py_None) {
        if (r->new_axes[r->axis] + r->ndim >= GM_MAX_NDIM)
            return refuse("too many new axes");
        r->new_axes[r->axis]++;
        r->in_run = false;
        return true;
    }
    if (PySlice_Check(item))
        return read_slice_item(r, item);
    if (py_array_node(state, item) || PyList_Check(item))
        return read_array_item(r, state, scope, item);
    if (PyObject_CheckBuffer(item) && !PyBytes_Check(item) && !PyByteArray_Check(item) && !PyMemoryView_Check(item)
        && PySequence_Check(item))
        return read_array_item(r, state, scope, item);
    if (PyIndex_Check(item) && !PyBool_Check(item))
        return read_int_item(r, item);
    PyErr_Format(PyExc_ValueError, "an array cannot be indexed with %R", (PyObject *)Py_TYPE(item));
    return false;
}

static bool consumes_axis(PyObject *item) {
    return item != Py_None && item != Py_Ellipsis;
}

static bool read_key(reader *r, module_state *state, gm_scope *scope, PyObject *key) {
    PyObject *items = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key);
    if (!items)
        return false;
    Py_ssize_t n = PyTuple_Size(items);
    int used = 0, ellipses = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        used += consumes_axis(PyTuple_GetItem(items, i));
        ellipses += PyTuple_GetItem(items, i) == Py_Ellipsis;
    }
    bool ok = ellipses <= 1 || refuse("an index can have only one ellipsis (...)");
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        if (item == Py_Ellipsis) {
            r->axis += r->ndim > used ? r->ndim - used : 0;
            r->in_run = false;
        } else {
            ok = read_item(r, state, scope, item);
        }
    }
    Py_DECREF(items);
    return ok;
}

/* The shape without dropped axes and with new ones; the array's dimensions first when its run was broken. */
static gm_array *shaped(gm_scope *scope, const reader *r, gm_array *x, bool front) {
    int64_t shape[2 * GM_MAX_NDIM + 1];
    int out = 0, n_indices = r->indices ? gm_array_ndim(r->indices) : 0;
    bool same = !front;
    if (front) {
        for (int i = 0; i < n_indices && out < GM_MAX_NDIM; i++)
            shape[out++] = gm_array_shape(r->indices)[i];
    }
    for (int i = 0; i <= r->ndim && out < GM_MAX_NDIM; i++) {
        for (int j = 0; j < r->new_axes[i] && out < GM_MAX_NDIM; j++, same = false)
            shape[out++] = 1;
        if (i == r->ndim)
            break;
        if (r->indices && i == r->indices_axis) {
            for (int j = 0; !front && j < n_indices && out < GM_MAX_NDIM; j++)
                shape[out++] = gm_array_shape(r->indices)[j];
        } else if (r->dropped[i]) {
            same = false;
        } else {
            shape[out++] = r->length[i];
        }
    }
    return same ? x : gm_reshape(scope, x, out, shape);
}

/* After take the axis is n_indices axes; these to the front. */
static gm_array *indices_first(gm_scope *scope, const reader *r, gm_array *x) {
    int n_indices = gm_array_ndim(r->indices), ndim = gm_array_ndim(x), axes[GM_MAX_NDIM];
    for (int i = 0; i < ndim; i++)
        axes[i] = i < n_indices ? r->indices_axis + i : i - n_indices < r->indices_axis ? i - n_indices : i;
    return gm_transpose(scope, x, ndim, axes);
}

static gm_array *read_node(module_state *state, gm_scope *scope, gm_array *x, PyObject *key) {
    reader r = {.indices_axis = -1};
    r.shape = gm_array_shape(x);
    r.ndim = gm_array_ndim(x);
    for (int i = 0; i < r.ndim; i++)
        r.stop[i] = r.length[i] = r.shape[i], r.step[i] = 1;
    if (!read_key(&r, state, scope, key))
        return NULL;
    if (r.sliced)
        x = gm_slice(scope, x, r.start, r.stop, r.step);
    if (!r.indices)
        return shaped(scope, &r, x, false);
    bool front = r.advanced_runs > 1;
    x = gm_take(scope, x, r.indices, r.indices_axis);
    if (x && front)
        x = indices_first(scope, &r, x);
    return x ? shaped(scope, &r, x, front) : NULL;
}

PyObject *py_array_subscript(PyObject *self, PyObject *key) {
    module_state *state = py_array_state(self);
    gm_array *own = gm_retain(((array_object *)self)->node);     /* reading the key may run Python code */
    gm_scope *scope = gm_scope_open();
    PyObject *result = py_array_result(state, scope, scope ? read_node(state, scope, own, key) : NULL);
    gm_release(own);
    return result;
}

int py_array_assign_subscript(PyObject *self, PyObject *key, PyObject *value) {
    (void)self, (void)key, (void)value;
    PyErr_SetString(PyExc_NotImplementedError, "item assignment (array.__setitem__)");
    return -1;
}

gm_array *node_row(gm_scope *scope, gm_array *x, int64_t index) {
    int ndim = gm_array_ndim(x);
    const int64_t *shape = gm_array_shape(x);
    int64_t start[GM_MAX_NDIM] = {index}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    for (int i = 0; i < ndim; i++)
        stop[i] = i == 0 ? index + 1 : shape[i], step[i] = 1;
    return gm_reshape(scope, gm_slice(scope, x, start, stop, step), ndim - 1, shape + 1);
}
