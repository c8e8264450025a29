/* print.c - repr of an array as MLX writes it: six digits, or as many after the point as set_printoptions says, and the
 * first and last three items of long axes. */
#include "py/py.h"
#include <math.h>
#include <string.h>

#define EDGE 3 /* items kept on each side of an axis longer than 2 * EDGE */
#define DIGITS 6

typedef struct {
    char *text;
    size_t length, capacity;
    int precision;
} writer;

static bool write_bytes(writer *w, const char *text, size_t length) {
    if (!py_grow(&w->text, w->length, &w->capacity, length, 1))
        return false;
    memcpy(w->text + w->length, text, length);
    w->length += length;
    return true;
}

static bool write_text(writer *w, const char *text) { return write_bytes(w, text, strlen(text)); }

static bool write_double(writer *w, double value) {
    bool fixed = w->precision >= 0;
    char *digits = PyOS_double_to_string(value, fixed ? 'f' : 'g', fixed ? w->precision : DIGITS, 0, NULL);
    bool ok = digits && write_text(w, digits);
    PyMem_Free(digits);
    return ok;
}

static bool write_element(writer *w, PyObject *element) {
    if (PyFloat_Check(element))
        return write_double(w, PyFloat_AsDouble(element));
    if (PyComplex_Check(element)) {
        double re = PyComplex_RealAsDouble(element), im = PyComplex_ImagAsDouble(element);
        return write_double(w, re) && (im < 0 || write_text(w, "+")) && write_double(w, im) && write_text(w, "j");
    }
    PyObject *text = PyObject_Str(element);
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    bool ok = utf8 && write_text(w, utf8);
    Py_XDECREF(text);
    return ok;
}

/* Between two items: a comma, and for anything above the last axis a new line under the opening bracket. */
static bool write_separator(writer *w, int axis, int ndim) {
    if (axis == ndim - 1)
        return write_text(w, ", ");
    bool ok = write_text(w, ",\n");
    for (int i = 0; ok && i < (int)strlen("array(") + axis + 1; i++)
        ok = write_text(w, " ");
    return ok;
}

static bool write_axis(writer *w, const gm_array *node, int axis, int64_t offset) {
    int ndim = gm_array_ndim(node);
    if (axis == ndim) {
        PyObject *element = element_at(gm_array_dtype(node), gm_array_data(node), offset);
        bool ok = element && write_element(w, element);
        Py_XDECREF(element);
        return ok;
    }
    int64_t n = gm_array_shape(node)[axis], stride = gm_array_strides(node)[axis];
    bool ok = write_text(w, "[");
    for (int64_t i = 0; ok && i < n; i++) {
        if (i > 0)
            ok = write_separator(w, axis, ndim);
        if (n > 2 * EDGE && i == EDGE) {
            ok = ok && write_text(w, "...") && write_separator(w, axis, ndim);
            i = n - EDGE;
        }
        ok = ok && write_axis(w, node, axis + 1, offset + i * stride);
    }
    return ok && write_text(w, "]");
}

PyObject *py_array_repr(PyObject *self) {
    gm_array *own = ((array_object *)self)->node;
    if (gm_array_dtype(own) == GM_PACKED)
        return PyUnicode_FromFormat("array(<%lld packed weights>, format=%s)", (long long)gm_array_size(own),
                                    gm_array_format(own));
    const char *type = gm_dtype_name(gm_array_dtype(own));
    gm_array *node = readable_node(py_array_state(self), own);
    if (!node)
        return NULL;
    writer w = {.precision = py_array_state(self)->print_precision};
    bool empty = gm_array_ndim(node) && gm_array_shape(node)[0] == 0;
    bool ok = write_text(&w, "array(") && (empty ? write_text(&w, "[]") : write_axis(&w, node, 0, 0)) &&
              write_text(&w, ", dtype=") && write_text(&w, type) && write_text(&w, ")");
    gm_release(node);
    PyObject *text = ok ? PyUnicode_FromStringAndSize(w.text, (Py_ssize_t)w.length) : NULL;
    PyMem_Free(w.text);
    return text;
}
