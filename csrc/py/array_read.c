/* array_read.c - values of an array as Python objects. */
#include "py/py.h"
#include <string.h>

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
    return node;
}

#define READ(type) (memcpy(&value.type##_, at, sizeof value.type##_), value.type##_)
PyObject *element_at(gm_dtype type, const void *data, int64_t offset) {
    union {
        uint8_t u8_; uint16_t u16_; uint32_t u32_; uint64_t u64_;
        int8_t i8_; int16_t i16_; int32_t i32_; int64_t i64_;
        float f32_; double f64_; struct { float re, im; } c64_;
    } value;
    const char *at = (const char *)data + offset * (int64_t)gm_dtype_size(type);
    switch (type) {
    case GM_BOOL:
        return PyBool_FromLong(READ(u8));
    case GM_UINT8:
        return PyLong_FromLong(READ(u8));
    case GM_UINT16:
        return PyLong_FromLong(READ(u16));
    case GM_UINT32:
        return PyLong_FromUnsignedLong(READ(u32));
    case GM_UINT64:
        return PyLong_FromUnsignedLongLong(READ(u64));
    case GM_INT8:
        return PyLong_FromLong(READ(i8));
    case GM_INT16:
        return PyLong_FromLong(READ(i16));
    case GM_INT32:
        return PyLong_FromLong(READ(i32));
    case GM_INT64:
        return PyLong_FromLongLong(READ(i64));
    case GM_FLOAT32:
        return PyFloat_FromDouble((double)READ(f32));
    case GM_FLOAT64:
        return PyFloat_FromDouble(READ(f64));
    case GM_COMPLEX64:
        (void)READ(c64);
        return PyComplex_FromDoubles((double)value.c64_.re, (double)value.c64_.im);
    case GM_FLOAT16:
    case GM_BFLOAT16:
    case GM_DTYPE_COUNT:
    case GM_PACKED:
        break;
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
