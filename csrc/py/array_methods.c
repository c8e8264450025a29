/* array_methods.c - the methods of gomlx.core.array: those of methods.def, which are functions of the catalogue, and the
 * protocols that have no slot. */
#include "py/bind.h"
#include <string.h>

static gm_array *self_node(PyObject *self) {
    return ((array_object *)self)->node;
}

#define METHOD(name)                                                                                                   \
    static PyObject *method_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)

/* An axis counted from the end when negative; false with IndexError where there is none. */
static bool normal_axis(const char *name, int axis, int ndim, int *out) {
    *out = axis < 0 ? axis + ndim : axis;
    if (*out >= 0 && *out < ndim)
        return true;
    PyErr_Format(PyExc_IndexError, "%s: axis %d, but the array has %d dimensions", name, axis, ndim);
    return false;
}

static bool read_two_axes(const signature *sig, PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                          int *one, int *other) {
    PyObject *v[3];
    int ndim = gm_array_ndim(self_node(self));
    return read_arguments(sig, args, n, kwnames, v) && read_stream(v[2]) && read_int(v[0], "axis", one)
        && read_int(v[1], "axis", other) && normal_axis(sig->function, *one, ndim, one)
        && normal_axis(sig->function, *other, ndim, other);
}

METHOD(swapaxes) {
    static const signature sig = {"swapaxes", 0, 2, 3, {"axis1", "axis2", "stream", NULL}};
    int one, other, axes[GM_MAX_NDIM];
    if (!read_two_axes(&sig, self, args, n, kwnames, &one, &other))
        return NULL;
    int ndim = gm_array_ndim(self_node(self));
    for (int i = 0; i < ndim; i++)
        axes[i] = i == one ? other : i == other ? one : i;
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope,
                           scope ? gm_transpose(scope, self_node(self), ndim, axes) : NULL);
}

METHOD(moveaxis) {
    static const signature sig = {"moveaxis", 0, 2, 3, {"source", "destination", "stream", NULL}};
    int source, destination, axes[GM_MAX_NDIM];
    if (!read_two_axes(&sig, self, args, n, kwnames, &source, &destination))
        return NULL;
    int ndim = gm_array_ndim(self_node(self));
    for (int i = 0, from = 0; i < ndim; i++) {
        from += from == source;
        axes[i] = i == destination ? source : from++;
    }
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope,
                           scope ? gm_transpose(scope, self_node(self), ndim, axes) : NULL);
}

METHOD(flatten) {
    static const signature sig = {"flatten", 0, 2, 0, {"start_axis", "end_axis", "stream", NULL}};
    PyObject *v[3];
    int start = 0, end = -1;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]) || !read_int(v[0], "start_axis", &start)
        || !read_int(v[1], "end_axis", &end))
        return NULL;
    gm_array *node = self_node(self);
    int ndim = gm_array_ndim(node), out = 0;
    int64_t shape[GM_MAX_NDIM] = {1};
    start = start < 0 ? start + ndim : start;
    end = end < 0 ? end + ndim : end >= ndim ? ndim - 1 : end;
    if (ndim == 0) {
        out = 1;
    } else if (start < 0 || start > end) {
        PyErr_Format(PyExc_ValueError, "flatten: axes %d to %d of an array with %d dimensions", start, end, ndim);
        return NULL;
    }
    for (int i = 0; i < ndim; i++) {
        if (i > start && i <= end)
            shape[out - 1] *= gm_array_shape(node)[i];
        else
            shape[out++] = gm_array_shape(node)[i];
    }
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope, scope ? gm_reshape(scope, node, out, shape) : NULL);
}

METHOD(squeeze) {
    static const signature sig = {"squeeze", 0, 1, 0, {"axis", "stream", NULL}};
    PyObject *v[2];
    int n_axes, axes[GM_MAX_NDIM];
    bool gone[GM_MAX_NDIM] = {false};
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[1]) || !read_axes(v[0], &n_axes, axes))
        return NULL;
    gm_array *node = self_node(self);
    int ndim = gm_array_ndim(node), out = 0;
    int64_t shape[GM_MAX_NDIM];
    for (int i = 0; n_axes < 0 && i < ndim; i++)
        gone[i] = gm_array_shape(node)[i] == 1;
    for (int i = 0; i < n_axes; i++) {
        int axis;
        if (!normal_axis("squeeze", axes[i], ndim, &axis))
            return NULL;
        if (gm_array_shape(node)[axis] != 1) {
            PyErr_Format(PyExc_ValueError, "squeeze: axis %d has %lld items, not 1", axis,
                         (long long)gm_array_shape(node)[axis]);
            return NULL;
        }
        gone[axis] = true;
    }
    for (int i = 0; i < ndim; i++)
        if (!gone[i])
            shape[out++] = gm_array_shape(node)[i];
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope, scope ? gm_reshape(scope, node, out, shape) : NULL);
}

/* ---- protocols without a slot ---- */

static PyObject *method_copy(PyObject *self, PyObject *unused) {
    (void)unused;
    return py_array_handle(Py_TYPE(self), gm_retain(self_node(self)));
}

static PyObject *method_complex(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *item = py_array_item(self);
    PyObject *number = item ? PyObject_CallFunctionObjArgs((PyObject *)&PyComplex_Type, item, NULL) : NULL;
    Py_XDECREF(item);
    return number;
}

static PyObject *method_format(PyObject *self, PyObject *spec) {
    bool scalar = gm_array_ndim(self_node(self)) == 0;
    if (!scalar && PyUnicode_Check(spec) && PyUnicode_GetLength(spec) > 0) {
        PyErr_SetString(PyExc_TypeError, "only arrays without dimensions take a format");
        return NULL;
    }
    PyObject *value = scalar ? py_array_item(self) : PyObject_Str(self);
    PyObject *text = value ? PyObject_Format(value, spec) : NULL;
    Py_XDECREF(value);
    return text;
}

/* (_unpickle, (class, dtype, shape, bytes)[, attributes of a subclass]). */
static PyObject *method_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    module_state *state = py_array_state(self);
    gm_array *node = self_node(self);
    if (gm_array_dtype(node) == GM_PACKED) {
        PyErr_SetString(PyExc_TypeError, "packed weights cannot be pickled");
        return NULL;
    }
    gm_scope *scope = gm_scope_open();
    gm_array *flat = scope ? gm_contiguous(scope, node) : NULL;
    PyObject *result = NULL;
    if (flat && evaluate_one(state, flat)) {
        Py_ssize_t bytes = (Py_ssize_t)(gm_array_size(flat) * (int64_t)gm_dtype_size(gm_array_dtype(flat)));
        PyObject *data = PyBytes_FromStringAndSize(gm_array_data(flat), bytes);
        PyObject *module = PyType_GetModule(state->array_type);
        PyObject *make = data && module ? PyObject_GetAttrString(module, "_unpickle") : NULL;
        PyObject *shape = make ? shape_tuple(flat) : NULL;
        if (shape) {
            PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
            if (!attributes)
                PyErr_Clear();
            result = Py_BuildValue(attributes ? "(O(OOOO)O)" : "(O(OOOO))", make, (PyObject *)Py_TYPE(self),
                                   state->dtypes[gm_array_dtype(flat)], shape, data, attributes);
            Py_XDECREF(attributes);
        }
        Py_XDECREF(shape);
        Py_XDECREF(make);
        Py_XDECREF(data);
    } else {
        raise_gm(state);
    }
    gm_scope_close(scope);
    return result;
}

METHOD(namespace) {
    static const signature sig = {"__array_namespace__", 0, 1, 0, {"api_version", NULL}};
    PyObject *v[1];
    (void)self;
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    return PyImport_ImportModule("gomlx.core");
}

/* ---- functions of the catalogue ---- */

typedef PyObject *(*op_function)(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

/* function(self, ...). With as_list several positional arguments are one tuple, and none is the empty one unless
 * nothing stands for all. */
static PyObject *call_method(PyObject *self, op_function function, PyObject *const *args, Py_ssize_t n,
                             PyObject *kwnames, bool as_list) {
    PyObject *all[BIND_ARGUMENTS + 1] = {self}, *list = NULL;
    Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0, positional = n;
    if (as_list && n != 1) {
        list = PyTuple_New(n);
        for (Py_ssize_t i = 0; list && i < n; i++)
            PyTuple_SetItem(list, i, Py_NewRef(args[i]));
        if (!list)
            return NULL;
        all[1] = n || function == op_reshape ? list : Py_None;
        positional = 1;
    }
    if (positional + named > BIND_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are more than any method takes", n + named);
        return NULL;
    }
    for (Py_ssize_t i = list ? 1 : 0; i < positional + named; i++)
        all[1 + i] = args[i + n - positional];
    PyObject *result = function(PyType_GetModule(py_array_state(self)->array_type), all, positional + 1, kwnames);
    Py_XDECREF(list);
    return result;
}

#undef METHOD
#define AS_FUNCTION(name, function, as_list)                                                                           \
    static PyObject *method_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {           \
        return call_method(self, op_##function, args, n, kwnames, as_list);                                            \
    }
#define METHOD(name, function, text) AS_FUNCTION(name, function, false)
#define LIST_METHOD(name, function, text) AS_FUNCTION(name, function, true)
#include "py/methods.def"
#undef METHOD
#undef LIST_METHOD

#define SIG(text, doc) text "\n--\n\n" doc
#define ROW(name, text, doc) {#name, FUNCTION(method_##name), FASTCALL, SIG(#name text, doc)}
PyMethodDef py_array_methods[] = {
    {"item", py_array_item_method, METH_NOARGS,
     SIG("item($self)", "The value of an array of size 1, as a Python scalar.")},
    {"tolist", py_array_tolist, METH_NOARGS,
     SIG("tolist($self)", "Nested lists of Python scalars; a scalar without dimensions.")},
#define METHOD(name, function, text)                                                                                   \
    {#name, FUNCTION(method_##name), FASTCALL, #name text "\n--\n\nAs gomlx.core." #function " of the array."},
#define LIST_METHOD(name, function, text) METHOD(name, function, text)
#include "py/methods.def"
    ROW(swapaxes, "($self, /, axis1, axis2, *, stream=None)", "Two axes in each other's place."),
    ROW(moveaxis, "($self, /, source, destination, *, stream=None)", "One axis at another place."),
    ROW(flatten, "($self, /, start_axis=0, end_axis=-1, *, stream=None)", "The axes from start to end as one."),
    ROW(squeeze, "($self, /, axis=None, *, stream=None)", "Without axes of size 1."),
    {"__copy__", method_copy, METH_NOARGS, NULL},
    {"__deepcopy__", method_copy, METH_O, NULL},
    {"__complex__", method_complex, METH_NOARGS, NULL},
    {"__format__", method_format, METH_O, NULL},
    {"__reduce__", method_reduce, METH_NOARGS, NULL},
    {"__array__", FUNCTION(py_array_numpy), FASTCALL,
     SIG("__array__($self, dtype=None, copy=None)", "A NumPy array, on the same memory where dtype and copy allow.")},
    {"__array_namespace__", FUNCTION(method_namespace), FASTCALL, NULL},
    {"__dlpack__", FUNCTION(py_array_dlpack), FASTCALL,
     SIG("__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)",
         "A DLPack capsule on the array's memory.")},
    {"__dlpack_device__", py_array_dlpack_device, METH_NOARGS, SIG("__dlpack_device__($self)", "(kDLCPU, 0).")},
    {NULL, NULL, 0, NULL},
};
