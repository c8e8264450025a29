/* index_key.c - reading the key of a[key]. Invariants in index_key.h. */
#include "py/array/index_key.h"
#include <string.h>

static bool refuse(const char *text) {
    PyErr_SetString(PyExc_ValueError, text);
    return false;
}

static bool axis_left(const index_key *k) {
    if (k->axis < k->ndim)
        return true;
    PyErr_Format(PyExc_ValueError, "too many indices for an array with %d dimensions", k->ndim);
    return false;
}

static void join_run(index_key *k) {
    k->runs += !k->in_run;
    k->in_run = true;
}

static bool read_int_item(index_key *k, PyObject *item) {
    if (!axis_left(k))
        return false;
    int64_t n = k->shape[k->axis];
    Py_ssize_t i = PyNumber_AsSsize_t(item, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return false;
    int64_t at = i < 0 ? i + n : i;
    if (at < 0 || at >= n) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of range for axis %d with %lld items", i, k->axis,
                     (long long)n);
        return false;
    }
    k->start[k->axis] = at;
    k->stop[k->axis] = at + 1;
    k->length[k->axis] = 1;
    k->kind[k->axis++] = AXIS_INT;
    k->sliced = true;
    join_run(k);
    return true;
}

/* Beyond int32, as in MLX, for a slice would cut it to size without a word. What Python makes of None, and sys.maxsize,
 * mean the end. */
static bool is_bound(Py_ssize_t n) {
    return (n >= INT32_MIN && n <= INT32_MAX) || n == PY_SSIZE_T_MAX || n <= -PY_SSIZE_T_MAX;
}

static bool read_slice_item(index_key *k, PyObject *item) {
    if (!axis_left(k))
        return false;
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(item, &start, &stop, &step) < 0) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            refuse("slice indices must be integers or None");
        return false;
    }
    if (!is_bound(start) || !is_bound(stop) || !is_bound(step)) {
        const Py_ssize_t wrong = !is_bound(start) ? start : !is_bound(stop) ? stop : step;
        PyErr_Format(PyExc_ValueError, "slice indices must be 32-bit integers, got %zd", wrong);
        return false;
    }
    Py_ssize_t length = PySlice_AdjustIndices((Py_ssize_t)k->shape[k->axis], &start, &stop, step);
    if (length == 0)
        start = stop = 0, step = 1;
    k->start[k->axis] = start;
    k->stop[k->axis] = stop;
    k->step[k->axis] = step;
    k->length[k->axis] = length;
    k->sliced = k->sliced || step != 1 || length != k->shape[k->axis];
    k->axis++;
    k->in_run = false;
    return true;
}

static bool read_array_item(index_key *k, gm_array *index) {
    if (!index || !axis_left(k))
        return false;
    gm_dtype type = gm_array_dtype(index);
    if (type == GM_BOOL)
        return refuse("a boolean mask can be the only index, and only of an assignment: how many items it chooses is "
                      "not known before evaluation");
    if (!py_dtype_is_integer(type))
        return refuse("an index array must have an integer dtype");
    k->arrays[k->n_arrays] = index;
    k->array_axes[k->n_arrays++] = k->axis;
    k->kind[k->axis++] = AXIS_ARRAY;
    join_run(k);
    return true;
}

/* What can be an index array: arrays, lists, and buffers that are neither text nor numbers. */
static bool is_array_item(module_state *state, PyObject *item) {
    return py_array_node(state, item) || PyList_Check(item) ||
           (PyObject_CheckBuffer(item) && PySequence_Check(item) && !PyBytes_Check(item) && !PyByteArray_Check(item) &&
            !PyMemoryView_Check(item));
}

static gm_array *array_item(module_state *state, gm_scope *scope, PyObject *item) {
    gm_array *node = node_from_value(state, scope, item, GM_DTYPE_COUNT);
    return gm_scope_keep(scope, node);
}

static bool read_item(index_key *k, module_state *state, gm_scope *scope, PyObject *item) {
    if (PySlice_Check(item))
        return read_slice_item(k, item);
    if (PyLong_CheckExact(item))
        return read_int_item(k, item);
    if (item == Py_None) {
        if (k->new_axes[k->axis] + k->ndim >= GM_MAX_NDIM)
            return refuse("too many new axes");
        k->new_axes[k->axis]++;
        k->in_run = false;
        return true;
    }
    if (is_array_item(state, item))
        return read_array_item(k, array_item(state, scope, item));
    if (PyIndex_Check(item) && !PyBool_Check(item))
        return read_int_item(k, item);
    PyErr_Format(PyExc_ValueError, "an array cannot be indexed with %R", (PyObject *)Py_TYPE(item));
    return false;
}

static bool read_items(index_key *k, module_state *state, gm_scope *scope, PyObject *items) {
    Py_ssize_t n = PyTuple_Size(items);
    int used = 0, ellipses = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        used += item != Py_None && item != Py_Ellipsis;
        ellipses += item == Py_Ellipsis;
    }
    if (ellipses > 1)
        return refuse("an index can have only one ellipsis (...)");
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        if (item == Py_Ellipsis) {
            k->in_run = k->in_run && k->ndim <= used;
            k->axis += k->ndim > used ? k->ndim - used : 0;
        } else if (!read_item(k, state, scope, item)) {
            return false;
        }
    }
    return true;
}

/* The common shape of the arrays. */
static bool broadcast_arrays(index_key *k) {
    for (int a = 0; a < k->n_arrays; a++) {
        int ndim = gm_array_ndim(k->arrays[a]);
        k->index_ndim = ndim > k->index_ndim ? ndim : k->index_ndim;
    }
    for (int i = 0; i < k->index_ndim; i++) {
        k->index_shape[i] = 1;
        for (int a = 0; a < k->n_arrays; a++) {
            int at = i - (k->index_ndim - gm_array_ndim(k->arrays[a]));
            int64_t dim = at < 0 ? 1 : gm_array_shape(k->arrays[a])[at];
            if (dim != 1 && k->index_shape[i] != 1 && dim != k->index_shape[i])
                return refuse("index arrays whose shapes cannot be broadcast together");
            if (dim != 1)
                k->index_shape[i] = dim;
        }
    }
    return true;
}

/* A key that is a mask by itself; *is_mask tells. False with an exception. */
static bool read_mask(module_state *state, gm_scope *scope, PyObject *key, index_key *k) {
    if (PyBool_Check(key)) {
        uint8_t truth = key == Py_True;
        return (k->mask = gm_array_from(scope, GM_BOOL, 0, NULL, &truth)) != NULL;
    }
    gm_array *node = py_array_node(state, key);
    if (node ? gm_array_dtype(node) != GM_BOOL : !is_array_item(state, key))
        return true;
    node = array_item(state, scope, key);
    if (node && gm_array_dtype(node) == GM_BOOL)
        k->mask = node;
    return node != NULL;
}

bool read_key(module_state *state, gm_scope *scope, const gm_array *x, PyObject *key, bool masks, index_key *k) {
    k->shape = gm_array_shape(x);
    k->ndim = gm_array_ndim(x);
    k->sliced = k->front = k->in_run = false;
    k->n_arrays = k->index_ndim = k->axis = k->runs = 0;
    k->mask = NULL;
    if (masks && !PyTuple_Check(key) && !PySlice_Check(key) && !PyLong_CheckExact(key) &&
        !read_mask(state, scope, key, k))
        return false;
    if (k->mask)
        return true;
    for (int i = 0; i < k->ndim; i++) {
        k->start[i] = 0;
        k->stop[i] = k->length[i] = k->shape[i];
        k->step[i] = 1;
        k->kind[i] = AXIS_SLICE;
        k->new_axes[i] = 0;
    }
    k->new_axes[k->ndim] = 0;
    PyObject *items = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key);
    bool ok = items && read_items(k, state, scope, items) && broadcast_arrays(k);
    Py_XDECREF(items);
    k->front = k->n_arrays > 0 && k->runs > 1;
    return ok;
}

int key_place(const index_key *k) { return k->front ? 0 : k->array_axes[0]; }

bool key_shape(const index_key *k, int *ndim, int64_t *shape, int *from) {
    int n = 0;
    for (int i = -1; i <= k->ndim; i++) {
        bool arrays_here = k->n_arrays && (k->front ? i == -1 : i == k->array_axes[0]);
        int more = (i >= 0 ? k->new_axes[i] : 0) + (arrays_here ? k->index_ndim : 1);
        if (n + more > GM_MAX_NDIM + 1)
            return refuse("the result has more dimensions than are supported");
        for (int j = 0; i >= 0 && j < k->new_axes[i]; j++, n++) {
            shape[n] = 1;
            from[n] = -1;
        }
        for (int j = 0; arrays_here && j < k->index_ndim; j++, n++) {
            shape[n] = k->index_shape[j];
            from[n] = GM_MAX_NDIM + j;
        }
        if (i >= 0 && i < k->ndim && k->kind[i] == AXIS_SLICE) {
            shape[n] = k->length[i];
            from[n++] = i;
        }
    }
    *ndim = n;
    return n <= GM_MAX_NDIM || refuse("the result has more dimensions than are supported");
}
