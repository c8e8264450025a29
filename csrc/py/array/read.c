/* read.c - values of an array as Python objects. */
#include "py/py.h"
#include <string.h>

gm_array *host_node(module_state *state, gm_array *node, gm_array **made) {
    *made = NULL;
    if (gm_array_data(node))
        return node;
    gm_retain(node); /* its handle may be given another node meanwhile */
    Py_BEGIN_ALLOW_THREADS *made = gm_array_host(NULL, node);
    Py_END_ALLOW_THREADS gm_release(node);
    return *made ? *made : (raise_gm(state), NULL);
}

/* In memory of the host. */
gm_array *readable_node(module_state *state, gm_array *node) {
    gm_dtype type = gm_array_dtype(node);
    if (type == GM_PACKED) {
        PyErr_SetString(PyExc_TypeError, "packed weights have no elements to read; dequantize them first");
        return NULL;
    }
    if (type != GM_FLOAT16 && type != GM_BFLOAT16) {
        gm_retain(node);
    } else {
        gm_scope *scope = gm_scope_open();
        node = scope ? gm_astype(scope, node, GM_FLOAT32) : NULL;
        if (node)
            gm_retain(node);
        gm_scope_close(scope);
    }
    if (!node || !evaluate_one(state, node)) {
        raise_gm(state);
        gm_release(node);
        return NULL;
    }
    gm_array *made, *host = host_node(state, node, &made);
    if (made || !host)
        gm_release(node);
    return host;
}

#define READ(type) (memcpy(&value.type##_, at, sizeof value.type##_), value.type##_)
PyObject *element_at(gm_dtype type, const void *data, int64_t offset) {
    union {
        uint8_t u8_;
        uint16_t u16_;
        uint32_t u32_;
        uint64_t u64_;
        int8_t i8_;
        int16_t i16_;
        int32_t i32_;
        int64_t i64_;
        float f32_;
        double f64_;
        struct { float re, im; } c64_;
    } value;
    const char *at = (const char *)data + offset * (int64_t)gm_dtype_size(type);
    switch (type) {
    case GM_BOOL: return PyBool_FromLong(READ(u8));
    case GM_UINT8: return PyLong_FromLong(READ(u8));
    case GM_UINT16: return PyLong_FromLong(READ(u16));
    case GM_UINT32: return PyLong_FromUnsignedLong(READ(u32));
    case GM_UINT64: return PyLong_FromUnsignedLongLong(READ(u64));
    case GM_INT8: return PyLong_FromLong(READ(i8));
    case GM_INT16: return PyLong_FromLong(READ(i16));
    case GM_INT32: return PyLong_FromLong(READ(i32));
    case GM_INT64: return PyLong_FromLongLong(READ(i64));
    case GM_FLOAT32: return PyFloat_FromDouble((double)READ(f32));
    case GM_FLOAT64: return PyFloat_FromDouble(READ(f64));
    case GM_COMPLEX64: (void)READ(c64); return PyComplex_FromDoubles((double)value.c64_.re, (double)value.c64_.im);
    case GM_FLOAT16:
    case GM_BFLOAT16:
    case GM_DTYPE_COUNT:
    case GM_PACKED: break;
    }
    PyErr_SetString(PyExc_SystemError, "element_at: a dtype that readable_node does not give");
    return NULL;
}

PyObject *py_array_item(PyObject *self) {
    module_state *state = py_array_state(self);
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_size(node) != 1) {
        PyErr_Format(PyExc_ValueError, "only an array of size 1 is a Python scalar; this one has %lld elements",
                     (long long)gm_array_size(node));
        return NULL;
    }
    node = readable_node(state, node);
    if (!node)
        return NULL;
    PyObject *item = element_at(gm_array_dtype(node), gm_array_data(node), 0);
    gm_release(node);
    return item;
}

PyObject *py_array_item_method(PyObject *self, PyObject *unused) {
    (void)unused;
    return py_array_item(self);
}

static PyObject *list_from(const gm_array *node, int axis, int64_t offset) {
    if (axis == gm_array_ndim(node))
        return element_at(gm_array_dtype(node), gm_array_data(node), offset);
    int64_t n = gm_array_shape(node)[axis], stride = gm_array_strides(node)[axis];
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (int64_t i = 0; list && i < n; i++) {
        PyObject *item = list_from(node, axis + 1, offset + i * stride);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, item);
    }
    return list;
}

PyObject *py_array_tolist(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_array *node = readable_node(py_array_state(self), ((array_object *)self)->node);
    if (!node)
        return NULL;
    PyObject *list = list_from(node, 0, 0);
    gm_release(node);
    return list;
}

/* ---- flat lists ---- */

/* What PyList_SetItem gets of each element; NULL with an exception. */
typedef PyObject *(*reader)(gm_dtype type, const void *data, int64_t offset);

/* Appends the elements from `axis` on, in row-major order. */
static bool append_flat(PyObject *list, Py_ssize_t *at, const gm_array *node, int axis, int64_t offset, reader read) {
    if (axis == gm_array_ndim(node)) {
        PyObject *item = read(gm_array_dtype(node), gm_array_data(node), offset);
        return item && PyList_SetItem(list, (*at)++, item) == 0;
    }
    for (int64_t i = 0; i < gm_array_shape(node)[axis]; i++)
        if (!append_flat(list, at, node, axis + 1, offset + i * gm_array_strides(node)[axis], read))
            return false;
    return true;
}

static PyObject *flat_list(PyObject *self, reader read) {
    gm_array *node = readable_node(py_array_state(self), ((array_object *)self)->node);
    PyObject *list = node ? PyList_New((Py_ssize_t)gm_array_size(node)) : NULL;
    Py_ssize_t at = 0;
    if (list && !append_flat(list, &at, node, 0, 0, read))
        Py_CLEAR(list);
    gm_release(node);
    return list;
}

static PyObject *float_at(gm_dtype type, const void *data, int64_t offset) {
    PyObject *item = element_at(type, data, offset);
    PyObject *number = item ? PyNumber_Float(item) : NULL;
    Py_XDECREF(item);
    return number;
}

static PyObject *int_at(gm_dtype type, const void *data, int64_t offset) {
    PyObject *item = element_at(type, data, offset);
    PyObject *number = item ? PyNumber_Long(item) : NULL; /* a bool becomes an int */
    Py_XDECREF(item);
    return number;
}

static PyObject *int32_at(gm_dtype type, const void *data, int64_t offset) {
    PyObject *item = int_at(type, data, offset);
    int overflow = 0;
    long long value = item ? PyLong_AsLongLongAndOverflow(item, &overflow) : 0;
    if (item && (overflow || value < INT32_MIN || value > INT32_MAX)) {
        PyErr_Format(PyExc_OverflowError, "int32s: %R is outside the range of int32", item);
        Py_CLEAR(item);
    }
    return item;
}

static bool refuse_dtype(const char *method, const gm_array *node, const char *expected) {
    PyErr_Format(PyExc_TypeError, "%s of an array of %s: expected %s; astype makes it one", method,
                 gm_dtype_name(gm_array_dtype(node)), expected);
    return false;
}

static PyObject *int_list(PyObject *self, const char *method, reader read) {
    const gm_array *node = ((array_object *)self)->node;
    if (py_dtype_is_inexact(gm_array_dtype(node)) && !refuse_dtype(method, node, "integers or bool"))
        return NULL;
    return flat_list(self, read);
}

PyObject *py_array_floats(PyObject *self, PyObject *unused) {
    const gm_array *node = ((array_object *)self)->node;
    (void)unused;
    if (gm_array_dtype(node) == GM_COMPLEX64 && !refuse_dtype("floats", node, "real numbers"))
        return NULL;
    return flat_list(self, float_at);
}

PyObject *py_array_ints(PyObject *self, PyObject *unused) { return (void)unused, int_list(self, "ints", int_at); }
PyObject *py_array_int32s(PyObject *self, PyObject *unused) { return (void)unused, int_list(self, "int32s", int32_at); }
