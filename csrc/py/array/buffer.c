/* buffer.c - the buffer protocol, both ways, and __array__.
 *  Out: the view pins the node's memory, so that the engine neither reuses nor writes it while the view lives; the
 *       handle may be given another node meanwhile. Writable only where no other array uses the memory.
 *  In:  copied, or shared under a Py_buffer that is given back when the last node lets go (foreign.c). */
#include "py/py.h"
#include <stdlib.h>
#include <string.h>

/* ---- out ---- */

typedef struct {
    gm_array *node;
    Py_ssize_t shape[GM_MAX_NDIM], strides[GM_MAX_NDIM];
} export;

static const char *format_of(gm_dtype type) {
    static const char *const formats[GM_DTYPE_COUNT] = {
        [GM_BOOL] = "?",    [GM_UINT8] = "B",   [GM_UINT16] = "H",          [GM_UINT32] = "I",
        [GM_UINT64] = "Q",  [GM_INT8] = "b",    [GM_INT16] = "h",           [GM_INT32] = "i",
        [GM_INT64] = "q",   [GM_FLOAT16] = "e", [GM_BFLOAT16] = "bfloat16", /* for requests of plain bytes alone: struct
                                                                               has no letter for it */
        [GM_FLOAT32] = "f", [GM_FLOAT64] = "d", [GM_COMPLEX64] = "Zf",
    };
    return type < GM_DTYPE_COUNT ? formats[type] : NULL;
}

static bool refuse_export(const gm_array *node) {
    PyErr_Format(PyExc_BufferError, "packed %s weights have no buffer; dequantize them first", gm_array_format(node));
    return false;
}

/* NumPy goes on to __array__ from here. */
static bool refuse_bfloat16(void) {
    PyErr_SetString(PyExc_BufferError,
                    "NumPy and the buffer protocol have no bfloat16: astype(float32) has its values, "
                    "view(uint16) its bits");
    return false;
}

/* Fills what the view says about the array. false with BufferError when the flags request what the array cannot give.
 */
static bool describe(export *e, Py_buffer *view, int flags, bool writable) {
    static char nothing[16]; /* where empty arrays point */
    gm_array *node = e->node;
    gm_dtype type = gm_array_dtype(node);
    int ndim = gm_array_ndim(node);
    view->itemsize = (Py_ssize_t)gm_dtype_size(type);
    view->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        e->shape[i] = (Py_ssize_t)gm_array_shape(node)[i];
        e->strides[i] = (Py_ssize_t)gm_array_strides(node)[i] * view->itemsize;
        if (e->strides[i] == 0 && e->shape[i] > 1)
            writable = false; /* broadcast: one element has many indices */
    }
    view->buf = gm_array_data(node) ? gm_array_data(node) : nothing;
    view->len = (Py_ssize_t)gm_array_size(node) * view->itemsize;
    view->readonly = !writable;
    view->format = (char *)(uintptr_t)format_of(type);
    view->shape = e->shape;
    view->strides = e->strides;
    view->suboffsets = NULL;
    view->internal = e;
    if ((flags & PyBUF_WRITABLE) && !writable)
        PyErr_SetString(PyExc_BufferError,
                        "the array's memory is shared with other arrays and cannot be written; copy it");
    else if (((flags & PyBUF_STRIDES) != PyBUF_STRIDES || (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS) &&
             !PyBuffer_IsContiguous(view, 'C'))
        PyErr_SetString(PyExc_BufferError, "the array is not contiguous; use contiguous(a) first");
    else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'F'))
        PyErr_SetString(PyExc_BufferError, "the array is not contiguous in column-major order");
    else if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'A'))
        PyErr_SetString(PyExc_BufferError, "the array is not contiguous; use contiguous(a) first");
    if (PyErr_Occurred())
        return false;
    if (!(flags & PyBUF_FORMAT))
        view->format = NULL;
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
        view->strides = NULL;
    if ((flags & PyBUF_ND) != PyBUF_ND) {
        view->shape = NULL;
        view->ndim = 1;
    }
    return true;
}

/* The handle's node, evaluated and exportable; borrowed. Another thread may change the handle while we evaluate. */
static gm_array *evaluated_node(PyObject *self) {
    array_object *array = (array_object *)self;
    while (format_of(gm_array_dtype(array->node)) && !gm_array_is_evaluated(array->node))
        if (!evaluate_one(py_array_state(self), array->node))
            return NULL;
    return format_of(gm_array_dtype(array->node)) || refuse_export(array->node) ? array->node : NULL;
}

int py_array_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    view->obj = NULL;
    gm_array *node = evaluated_node(self);
    if (!node || (gm_array_dtype(node) == GM_BFLOAT16 && (flags & PyBUF_FORMAT) && !refuse_bfloat16()))
        return -1;
    bool writable = false;
    gm_array *made;
    if (!(node = host_node(py_array_state(self), node, &made)))
        return -1;
    export *e = malloc(sizeof *e);
    if (!e) {
        gm_release(made);
        PyErr_NoMemory();
        return -1;
    }
    if (gm_array_pin(node, &writable) != GM_OK) {
        gm_release(made);
        free(e);
        raise_gm(py_array_state(self));
        return -1;
    }
    e->node = made ? made : gm_retain(node);
    if (!describe(e, view, flags, writable && !made)) { /* what is written to a copy the array would not show */
        gm_array_unpin(node);
        gm_release(node);
        free(e);
        return -1;
    }
    view->obj = Py_NewRef(self);
    return 0;
}

void py_array_releasebuffer(PyObject *self, Py_buffer *view) {
    (void)self;
    export *e = view->internal;
    gm_array_unpin(e->node);
    gm_release(e->node);
    free(e);
}

/* np.asarray of the array, or of its float32 values; np.array to copy. */
static PyObject *numpy_array(PyObject *self, PyObject *dtype, bool widen, bool copy) {
    module_state *state = py_array_state(self);
    PyObject *source = NULL;
    if (widen) {
        gm_scope *scope = gm_scope_open();
        source = py_array_result(state, scope,
                                 scope ? gm_astype(scope, ((array_object *)self)->node, GM_FLOAT32) : NULL);
    } else {
        source = Py_NewRef(self);
    }
    PyObject *view = source ? PyMemoryView_FromObject(source) : NULL;
    PyObject *numpy = view ? PyImport_ImportModule("numpy") : NULL;
    PyObject *result = numpy ? PyObject_CallMethod(numpy, copy ? "array" : "asarray", "OO", view, dtype) : NULL;
    Py_XDECREF(numpy);
    Py_XDECREF(view);
    Py_XDECREF(source);
    return result;
}

PyObject *py_array_numpy(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"__array__", 0, 2, 0, {"dtype", "copy", NULL}};
    PyObject *v[2];
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_dtype(node) == GM_BFLOAT16 && (!v[0] || v[0] == Py_None))
        return refuse_bfloat16(), NULL;
    bool widen = gm_array_dtype(node) == GM_BFLOAT16 && v[1] != Py_False; /* it is told what to become */
    return numpy_array(self, v[0] ? v[0] : Py_None, widen, v[1] == Py_True);
}

PyObject *py_array_to_numpy(PyObject *self, PyObject *unused) {
    (void)unused;
    return numpy_array(self, Py_None, gm_array_dtype(((array_object *)self)->node) == GM_BFLOAT16, false);
}

/* ---- in ---- */

typedef struct {
    foreign link;
    Py_buffer view;
} import;

static void import_give_back(foreign *link) {
    import *i = (import *)link;
    PyBuffer_Release(&i->view);
    PyMem_Free(i);
}

static gm_dtype dtype_of_size(gm_dtype first, gm_dtype last, size_t size) {
    for (gm_dtype type = first; type <= last; type++)
        if (gm_dtype_size(type) == size)
            return type;
    return GM_DTYPE_COUNT;
}

/* The dtype of a buffer's elements; GM_DTYPE_COUNT with an exception when there is none, as for complex128. */
static gm_dtype dtype_of_buffer(const Py_buffer *view) {
    const char *format = view->format ? view->format : "B";
    char order = strchr("@=<>!", *format) && *format ? *format++ : '@';
    size_t size = (size_t)view->itemsize;
    bool swapped = (order == '>' || order == '!') && size > 1;
    gm_dtype type = GM_DTYPE_COUNT;
    if (strlen(format) == 1 && !swapped) {
        if (*format == '?' && size == 1)
            type = GM_BOOL;
        else if (strchr("bhilqn", *format))
            type = dtype_of_size(GM_INT8, GM_INT64, size);
        else if (strchr("BHILQN", *format))
            type = dtype_of_size(GM_UINT8, GM_UINT64, size);
        else if (strchr("efd", *format))
            type = size == 2 ? GM_FLOAT16 : size == 4 ? GM_FLOAT32 : GM_FLOAT64;
    } else if (!swapped && strcmp(format, "Zf") == 0 && size == 8) {
        type = GM_COMPLEX64;
    } else if (!swapped && strcmp(format, "bfloat16") == 0 && size == 2) {
        type = GM_BFLOAT16;
    }
    if (type != GM_DTYPE_COUNT && gm_dtype_size(type) != size)
        type = GM_DTYPE_COUNT;
    if (type == GM_DTYPE_COUNT)
        PyErr_Format(PyExc_ValueError, "a buffer with elements of format '%s' (%zd bytes each) has no dtype here",
                     view->format ? view->format : "B", view->itemsize);
    return type;
}

static void shape_of(const Py_buffer *view, int64_t *shape) {
    for (int i = 0; i < view->ndim; i++)
        shape[i] = view->shape[i];
}

/* Shape and strides in elements; false when the strides are not whole elements (then shape is right all the same). An
 * exporter of contiguous memory may leave its strides out, as ctypes does. */
static bool layout_of(const Py_buffer *view, int64_t *shape, int64_t *strides) {
    bool whole = !view->suboffsets;
    int64_t dense = 1;
    shape_of(view, shape);
    for (int i = view->ndim - 1; i >= 0; i--) {
        const int64_t bytes = view->strides ? view->strides[i] : dense * view->itemsize;
        whole = whole && bytes % view->itemsize == 0;
        strides[i] = bytes / view->itemsize;
        dense *= shape[i];
    }
    return whole && (uintptr_t)view->buf % (uintptr_t)view->itemsize == 0;
}

static bool dims_fit(const Py_buffer *view) {
    if (view->ndim > GM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "a buffer with %d dimensions, at most %d are possible", view->ndim, GM_MAX_NDIM);
        return false;
    }
    if (view->ndim > 0 && !view->shape) {
        PyErr_Format(PyExc_ValueError, "a buffer with %d dimensions and no shape", view->ndim);
        return false;
    }
    int64_t shape[GM_MAX_NDIM];
    shape_of(view, shape);
    return dimensions_fit("a buffer", view->ndim, shape);
}

/* A node on the view's memory; takes the view over, also on failure. */
static gm_array *wrap_view(gm_scope *scope, Py_buffer *view, gm_dtype type) {
    int64_t shape[GM_MAX_NDIM], strides[GM_MAX_NDIM];
    if (!layout_of(view, shape, strides)) {
        PyErr_SetString(PyExc_ValueError, "a buffer whose elements are not aligned cannot be shared; copy it");
        PyBuffer_Release(view);
        return NULL;
    }
    import *i = PyMem_Malloc(sizeof *i);
    if (!i) {
        PyErr_NoMemory();
        PyBuffer_Release(view);
        return NULL;
    }
    i->link.give_back = import_give_back;
    i->view = *view;
    gm_array *node = gm_array_wrap(
        scope, type, view->ndim, shape,
        (gm_foreign){.data = view->buf, .strides = strides, .release = foreign_push, .payload = i});
    if (!node)
        import_give_back(&i->link);
    return node;
}

/* Any layout through Python's own copy. */
static gm_array *copy_slowly(gm_scope *scope, Py_buffer *view, gm_dtype type) {
    int64_t shape[GM_MAX_NDIM];
    shape_of(view, shape);
    char *data = malloc((size_t)view->len + 1);
    gm_array *node = NULL;
    if (!data)
        PyErr_NoMemory();
    else if (PyBuffer_ToContiguous(data, view, view->len, 'C') == 0)
        node = gm_array_from(scope, type, view->ndim, shape, data);
    free(data);
    return node;
}

/* NumPy's complex128 pairs: the one format that is not a dtype here and still means something. */
static gm_array *copy_complex128(gm_scope *scope, Py_buffer *view) {
    int64_t shape[GM_MAX_NDIM];
    shape_of(view, shape);
    size_t n = (size_t)view->len / sizeof(double);
    double *wide = malloc((n + 1) * sizeof *wide);
    float *narrow = malloc((n + 1) * sizeof *narrow);
    gm_array *node = NULL;
    if (!wide || !narrow) {
        PyErr_NoMemory();
    } else if (PyBuffer_ToContiguous(wide, view, view->len, 'C') == 0) {
        for (size_t i = 0; i < n; i++)
            narrow[i] = (float)wide[i];
        node = gm_array_from(scope, GM_COMPLEX64, view->ndim, shape, narrow);
    }
    free(narrow);
    free(wide);
    return node;
}

/* bfloat16 of ml_dtypes has no buffer; its bits have one. */
static PyObject *bfloat16_bits(PyObject *object) {
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *name = dtype ? PyObject_GetAttrString(dtype, "name") : NULL;
    PyObject *bits = NULL;
    if (name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0)
        bits = PyObject_CallMethod(object, "view", "s", "uint16");
    Py_XDECREF(name);
    Py_XDECREF(dtype);
    return bits;
}

/* A view of the object in one of our dtypes; *type is GM_DTYPE_COUNT for complex128. false with an exception. */
static bool open_view(PyObject *object, Py_buffer *view, gm_dtype *type) {
    bool bfloat16 = false;
    if (PyObject_GetBuffer(object, view, PyBUF_FULL_RO) < 0) {
        PyObject *class, *error, *traceback;
        PyErr_Fetch(&class, &error, &traceback);
        PyObject *bits = bfloat16_bits(object);
        PyErr_Clear();
        bfloat16 = bits && PyObject_GetBuffer(bits, view, PyBUF_FULL_RO) == 0;
        Py_XDECREF(bits);
        if (!bfloat16) {
            PyErr_Clear();
            PyErr_Restore(class, error, traceback);
            return false;
        }
        Py_XDECREF(class);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
    }
    bool complex128 = view->format && view->itemsize == 16 && strcmp(view->format, "Zd") == 0;
    *type = bfloat16 ? GM_BFLOAT16 : complex128 ? GM_DTYPE_COUNT : dtype_of_buffer(view);
    if ((*type == GM_DTYPE_COUNT && !complex128) || !dims_fit(view)) {
        PyBuffer_Release(view);
        return false;
    }
    return true;
}

gm_array *node_sharing_buffer(gm_scope *scope, PyObject *object) {
    Py_buffer view;
    gm_dtype type;
    if (!open_view(object, &view, &type))
        return NULL;
    if (type == GM_DTYPE_COUNT) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "complex128 has no dtype here and cannot be shared");
        return NULL;
    }
    return wrap_view(scope, &view, type);
}

/* A large block is copied without the GIL. */
static gm_array *copy_contiguous(gm_scope *scope, Py_buffer *view, gm_dtype type) {
    int64_t shape[GM_MAX_NDIM];
    shape_of(view, shape);
    gm_array *node;
    if (view->len < 1 << 20)
        return gm_array_from(scope, type, view->ndim, shape, view->buf);
    Py_BEGIN_ALLOW_THREADS node = gm_array_from(scope, type, view->ndim, shape, view->buf);
    Py_END_ALLOW_THREADS return node;
}

gm_array *node_from_buffer(module_state *state, gm_scope *scope, PyObject *object, gm_dtype type) {
    Py_buffer view;
    gm_dtype own;
    if (!open_view(object, &view, &own))
        return NULL;
    gm_array *node = NULL;
    if (type == GM_DTYPE_COUNT)
        type = own == GM_FLOAT64 ? GM_FLOAT32 : own == GM_DTYPE_COUNT ? GM_COMPLEX64 : own;
    int64_t shape[GM_MAX_NDIM], strides[GM_MAX_NDIM];
    bool whole = layout_of(&view, shape, strides);
    if (own == GM_DTYPE_COUNT) {
        node = copy_complex128(scope, &view);
        own = GM_COMPLEX64;
    } else if (own == type && PyBuffer_IsContiguous(&view, 'C')) {
        node = copy_contiguous(scope, &view, own);
    } else if (!whole || own == type) {
        node = copy_slowly(scope, &view, own);
    } else {
        /* One pass from the foreign memory into our dtype; done before we return, for its owner may write it then. */
        node = astype_on_host(scope, wrap_view(scope, &view, own), type);
        return node && evaluate_one(state, node) ? node : NULL;
    }
    PyBuffer_Release(&view);
    return node && own != type ? astype_on_host(scope, node, type) : node;
}
