/* array_methods.c - the methods of gomlx.core.array. Those that are ops read their arguments as the functions do. */
#include "py/py.h"
#include <string.h>

static gm_array *self_node(PyObject *self) {
    return ((array_object *)self)->node;
}

/* Methods that take nothing but a stream. */
static PyObject *unary_method(PyObject *self, const char *name, unary_fn fn, PyObject *const *args, Py_ssize_t n,
                              PyObject *kwnames) {
    const signature sig = {name, 0, 0, 0, {"stream", NULL}};
    PyObject *v[1];
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[0]))
        return NULL;
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope, scope ? fn(scope, self_node(self)) : NULL);
}

#define METHOD(name)                                                                                                   \
    static PyObject *method_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
#define UNARY_METHOD(name, op) METHOD(name) { return unary_method(self, #name, op, args, n, kwnames); }
UNARY_METHOD(abs, gm_abs)
UNARY_METHOD(square, gm_square)
UNARY_METHOD(sqrt, gm_sqrt)
UNARY_METHOD(rsqrt, gm_rsqrt)
UNARY_METHOD(reciprocal, gm_reciprocal)
UNARY_METHOD(exp, gm_exp)
UNARY_METHOD(log, gm_log)
UNARY_METHOD(log2, gm_log2)
UNARY_METHOD(log10, gm_log10)
UNARY_METHOD(log1p, gm_log1p)
UNARY_METHOD(sin, gm_sin)
UNARY_METHOD(cos, gm_cos)
UNARY_METHOD(conj, gm_conjugate)

#define REDUCE_METHOD(name)                                                                                            \
    METHOD(name) { return call_reduce(py_array_state(self), #name, gm_##name, self, args, n, kwnames); }
REDUCE_METHOD(sum)
REDUCE_METHOD(prod)
REDUCE_METHOD(max)
REDUCE_METHOD(min)
REDUCE_METHOD(all)
REDUCE_METHOD(any)
REDUCE_METHOD(logsumexp)
REDUCE_METHOD(mean)
METHOD(argmax) { return call_argreduce(py_array_state(self), "argmax", true, self, args, n, kwnames); }
METHOD(argmin) { return call_argreduce(py_array_state(self), "argmin", false, self, args, n, kwnames); }

METHOD(astype) {
    static const signature sig = {"astype", 0, 2, 1, {"dtype", "stream", NULL}};
    module_state *state = py_array_state(self);
    PyObject *v[2];
    gm_dtype type = GM_DTYPE_COUNT;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[1]) || !read_dtype(state, v[0], &type))
        return NULL;
    if (type == GM_DTYPE_COUNT) {
        PyErr_SetString(PyExc_TypeError, "astype: dtype must be a Dtype such as float32, not None");
        return NULL;
    }
    gm_scope *scope = gm_scope_open();
    return py_array_result(state, scope, scope ? gm_astype(scope, self_node(self), type) : NULL);
}

/* reshape(2, 3), reshape((2, 3)): the dimensions one by one, or one sequence of them. */
METHOD(reshape) {
    static const signature sig = {"reshape", 0, 0, 0, {"stream", NULL}};
    PyObject *v[1];
    int ndim;
    int64_t shape[GM_MAX_NDIM];
    if (!read_arguments(&sig, args + n, 0, kwnames, v) || !read_stream(v[0]))
        return NULL;
    if (n == 1 ? !read_shape(args[0], &ndim, shape) : !read_shape_items(args, n, &ndim, shape))
        return NULL;
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope, scope ? gm_reshape(scope, self_node(self), ndim, shape) : NULL);
}

METHOD(transpose) {
    static const signature sig = {"transpose", 0, 0, 0, {"stream", NULL}};
    PyObject *v[1];
    int n_axes = -1, axes[GM_MAX_NDIM];
    if (!read_arguments(&sig, args + n, 0, kwnames, v) || !read_stream(v[0]))
        return NULL;
    if (n > GM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "transpose: %zd axes, at most %d are possible", n, GM_MAX_NDIM);
        return NULL;
    }
    if (n == 1 && !read_axes(args[0], &n_axes, axes))
        return NULL;
    for (Py_ssize_t i = 0; n > 1 && i < n; i++)
        if (!read_int(args[i], "axis", axes + i))
            return NULL;
    if (n > 1)
        n_axes = (int)n;
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope,
                           scope ? gm_transpose(scope, self_node(self), n_axes, axes) : NULL);
}

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

#define SIG(text, doc) text "\n--\n\n" doc
#define ROW(name, text, doc) {#name, FUNCTION(method_##name), FASTCALL, SIG(#name text, doc)}
#define UNARY_ROW(name) ROW(name, "($self, *, stream=None)", "As the function of this name in gomlx.core.")
#define REDUCE_ROW(name)                                                                                               \
    ROW(name, "($self, /, axis=None, keepdims=False, *, stream=None)", "As the function of this name in gomlx.core.")
PyMethodDef py_array_methods[] = {
    {"item", py_array_item_method, METH_NOARGS,
     SIG("item($self)", "The value of an array of size 1, as a Python scalar.")},
    {"tolist", py_array_tolist, METH_NOARGS,
     SIG("tolist($self)", "Nested lists of Python scalars; a scalar without dimensions.")},
    UNARY_ROW(abs), UNARY_ROW(square), UNARY_ROW(sqrt), UNARY_ROW(rsqrt), UNARY_ROW(reciprocal), UNARY_ROW(exp),
    UNARY_ROW(log), UNARY_ROW(log2), UNARY_ROW(log10), UNARY_ROW(log1p), UNARY_ROW(sin), UNARY_ROW(cos),
    UNARY_ROW(conj), REDUCE_ROW(sum), REDUCE_ROW(prod), REDUCE_ROW(max), REDUCE_ROW(min), REDUCE_ROW(all),
    REDUCE_ROW(any), REDUCE_ROW(logsumexp), REDUCE_ROW(mean), REDUCE_ROW(argmax), REDUCE_ROW(argmin),
    ROW(astype, "($self, /, dtype, stream=None)", "The values as another dtype."),
    ROW(reshape, "($self, /, *shape, stream=None)", "The same values in another shape; one dimension may be -1."),
    ROW(transpose, "($self, /, *axes, stream=None)", "Axes in another order; reversed without axes."),
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
