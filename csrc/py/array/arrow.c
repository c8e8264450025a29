/* arrow.c - arrays for readers of Arrow's C data interface, such as polars and pyarrow: an array [n] is a column, [n,
 * m] a table of m columns. All of it is copied into memory that the reader releases without the GIL and without Python.
 *  (1) A structure whose release is NULL was released, or moved: readers move it by copying its bytes.
 *  (2) Each column owns its memory alone, so that a reader may keep one and release the table. */
#include "py/py.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The layout that Arrow fixes. */
typedef struct arrow_schema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct arrow_schema **children, *dictionary;
    void (*release)(struct arrow_schema *);
    void *private_data;
} arrow_schema;
typedef struct arrow_array {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct arrow_array **children, *dictionary;
    void (*release)(struct arrow_array *);
    void *private_data;
} arrow_array;
#define SCHEMA "arrow_schema"
#define ARRAY "arrow_array"
enum { ALIGNMENT = 64 };

static const char *const formats[GM_DTYPE_COUNT] = {
    [GM_BOOL] = "b",  [GM_UINT8] = "C", [GM_UINT16] = "S", [GM_UINT32] = "I",  [GM_UINT64] = "L",  [GM_INT8] = "c",
    [GM_INT16] = "s", [GM_INT32] = "i", [GM_INT64] = "l",  [GM_FLOAT16] = "e", [GM_FLOAT32] = "f", [GM_FLOAT64] = "g",
};

/* ---- columns ---- */

typedef struct {
    const void *buffers[2];
    void *data;
} column; /* the first says which are null: none */

static void release_column(arrow_array *a) {
    column *c = a->private_data;
    free(c->data);
    free(c);
    a->release = NULL;
}

/* Items that are `step` bytes apart, one after another. Inlined, so that the size is a constant. */
static inline __attribute__((always_inline)) void copy_items(unsigned char *out, const unsigned char *in, int64_t n,
                                                             int64_t step, size_t size) {
    for (int64_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * size, in + i * step, size);
}

/* A bit for each bool, the lowest first. */
static void copy_bits(unsigned char *out, const unsigned char *in, int64_t n, int64_t step) {
    for (int64_t i = 0; i < n; i += 8) {
        unsigned bits = 0;
        for (int64_t j = 0; j < 8 && i + j < n; j++)
            bits |= (unsigned)(in[(i + j) * step] != 0) << j;
        out[i / 8] = (unsigned char)bits;
    }
}

static void gather(unsigned char *out, const unsigned char *in, int64_t n, int64_t step, gm_dtype type) {
    const size_t size = gm_dtype_size(type);
    if (type == GM_BOOL)
        copy_bits(out, in, n, step);
    else if (n && step == (int64_t)size)
        memcpy(out, in, (size_t)n * size);
    else if (size == 1)
        copy_items(out, in, n, step, 1);
    else if (size == 2)
        copy_items(out, in, n, step, 2);
    else if (size == 4)
        copy_items(out, in, n, step, 4);
    else
        copy_items(out, in, n, step, 8);
}

static size_t column_bytes(gm_dtype type, int64_t n) {
    return type == GM_BOOL ? ((size_t)n + 7) / 8 : (size_t)n * gm_dtype_size(type);
}

/* Its items are yet to come. */
static bool make_column(arrow_array *a, int64_t n, gm_dtype type) {
    size_t bytes = column_bytes(type, n), rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    column *c = malloc(sizeof *c);
    unsigned char *data = c ? aligned_alloc(ALIGNMENT, rounded) : NULL;
    if (!data) {
        free(c);
        return false;
    }
    memset(data + bytes, 0, rounded - bytes);
    *c = (column){.buffers = {NULL, data}, .data = data};
    *a = (arrow_array){
        .length = n, .n_buffers = 2, .buffers = c->buffers, .release = release_column, .private_data = c};
    return true;
}

static bool fill_column(arrow_array *a, gm_array *node) {
    gm_dtype type = gm_array_dtype(node);
    int64_t n = gm_array_shape(node)[0];
    if (!make_column(a, n, type))
        return false;
    gather(((column *)a->private_data)->data, gm_array_data(node), n,
           gm_array_strides(node)[0] * (int64_t)gm_dtype_size(type), type);
    return true;
}

static void release_name(arrow_schema *s) {
    free(s->private_data);
    s->release = NULL;
}

/* number: of the column in its table; below 0 it is one by itself. */
static bool fill_column_schema(arrow_schema *s, gm_dtype type, int64_t number) {
    enum { LENGTH = 32 };
    char *name = malloc(LENGTH);
    if (!name)
        return false;
    name[0] = '\0';
    if (number >= 0)
        snprintf(name, LENGTH, "column_%lld", (long long)number);
    *s = (arrow_schema){.format = formats[type], .name = name, .release = release_name, .private_data = name};
    return true;
}

/* ---- tables ---- */

/* The columns of a table follow the pointers to them, in one block. */
static void release_table(arrow_array *a) {
    for (int64_t i = 0; i < a->n_children; i++)
        if (a->children[i] && a->children[i]->release)
            a->children[i]->release(a->children[i]);
    free(a->children);
    a->release = NULL;
}

/* Some rows of all columns at a time, so that a line of memory that holds items of several is read once. */
static void fill_columns(arrow_array *const *columns, gm_array *node) {
    enum { TOGETHER = 128 << 10 };
    const int64_t n = gm_array_shape(node)[0], m = gm_array_shape(node)[1];
    const gm_dtype type = gm_array_dtype(node);
    const int64_t size = (int64_t)gm_dtype_size(type), *strides = gm_array_strides(node);
    const int64_t rows = (TOGETHER / size / (m ? m : 1) / 16 + 1) * 16; /* whole bytes of bits */
    for (int64_t begin = 0; begin < n; begin += rows) {
        const unsigned char *first = (const unsigned char *)gm_array_data(node) + begin * strides[0] * size;
        const int64_t count = n - begin < rows ? n - begin : rows;
        for (int64_t i = 0; i < m; i++)
            gather((unsigned char *)((column *)columns[i]->private_data)->data + column_bytes(type, begin),
                   first + i * strides[1] * size, count, strides[0] * size, type);
    }
}

static bool fill_table(arrow_array *a, gm_array *node) {
    static const void *no_nulls[1];
    int64_t n = gm_array_shape(node)[0], m = gm_array_shape(node)[1];
    arrow_array **children = calloc((size_t)m + 1, sizeof *children + sizeof **children);
    if (!children)
        return false;
    *a = (arrow_array){.length = n,
                       .n_buffers = 1,
                       .buffers = no_nulls,
                       .n_children = m,
                       .children = children,
                       .release = release_table};
    for (int64_t i = 0; i < m; i++) {
        children[i] = (arrow_array *)(children + m) + i;
        if (!make_column(children[i], n, gm_array_dtype(node))) {
            release_table(a);
            return false;
        }
    }
    fill_columns(children, node);
    return true;
}

static void release_table_schema(arrow_schema *s) {
    for (int64_t i = 0; i < s->n_children; i++)
        if (s->children[i] && s->children[i]->release)
            s->children[i]->release(s->children[i]);
    free(s->children);
    s->release = NULL;
}

static bool fill_table_schema(arrow_schema *s, gm_dtype type, int64_t m) {
    arrow_schema **children = calloc((size_t)m + 1, sizeof *children + sizeof **children);
    if (!children)
        return false;
    *s = (arrow_schema){
        .format = "+s", .name = "", .n_children = m, .children = children, .release = release_table_schema};
    for (int64_t i = 0; i < m; i++) {
        children[i] = (arrow_schema *)(children + m) + i;
        if (!fill_column_schema(children[i], type, i)) {
            release_table_schema(s);
            return false;
        }
    }
    return true;
}

/* ---- capsules ---- */

static void schema_destroy(PyObject *capsule) {
    arrow_schema *s = PyCapsule_GetPointer(capsule, SCHEMA);
    if (s && s->release)
        s->release(s);
    free(s);
}

static void array_destroy(PyObject *capsule) {
    arrow_array *a = PyCapsule_GetPointer(capsule, ARRAY);
    if (a && a->release)
        a->release(a);
    free(a);
}

static PyObject *schema_capsule(gm_dtype type, int ndim, int64_t m) {
    arrow_schema *s = calloc(1, sizeof *s);
    bool filled = s && (ndim == 1 ? fill_column_schema(s, type, -1) : fill_table_schema(s, type, m));
    PyObject *capsule = filled ? PyCapsule_New(s, SCHEMA, schema_destroy) : PyErr_NoMemory();
    if (!capsule) {
        if (filled)
            s->release(s);
        free(s);
    }
    return capsule;
}

static bool fill(arrow_array *a, gm_array *node) {
    return gm_array_ndim(node) == 1 ? fill_column(a, node) : fill_table(a, node);
}

static PyObject *array_capsule(gm_array *node) {
    enum { LARGE = 64 << 10 }; /* items: others may run while they are copied */
    arrow_array *a = calloc(1, sizeof *a);
    bool filled = false;
    if (a && gm_array_size(node) >= LARGE) {
        Py_BEGIN_ALLOW_THREADS filled = fill(a, node);
        Py_END_ALLOW_THREADS
    } else if (a) {
        filled = fill(a, node);
    }
    PyObject *capsule = filled ? PyCapsule_New(a, ARRAY, array_destroy) : PyErr_NoMemory();
    if (!capsule) {
        if (filled)
            a->release(a);
        free(a);
    }
    return capsule;
}

PyObject *py_array_arrow(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"__arrow_c_array__", 0, 1, 0, {"requested_schema", NULL}}; /* a wish, not followed */
    module_state *state = py_array_state(self);
    PyObject *v[1];
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    gm_array *node = ((array_object *)self)->node;
    gm_dtype type = gm_array_dtype(node);
    if (type >= GM_DTYPE_COUNT || !formats[type]) {
        PyErr_Format(PyExc_BufferError, "Arrow has no %s: %s",
                     type == GM_PACKED ? "packed weights" : gm_dtype_name(type),
                     type == GM_BFLOAT16 ? "astype(float32) has its values" : "give it real(x) and imag(x), or values");
        return NULL;
    }
    int ndim = gm_array_ndim(node);
    if (ndim != 1 && ndim != 2) {
        PyErr_Format(PyExc_ValueError, "Arrow: the array has %d axes, expected one (a column) or two (a table)", ndim);
        return NULL;
    }
    while (!gm_array_is_evaluated(node = ((array_object *)self)->node)) /* another thread may change the handle */
        if (!evaluate_one(state, node))
            return NULL;
    bool writable;
    gm_array *made;
    if (!(node = host_node(state, node, &made)))
        return NULL;
    if (gm_array_pin(node, &writable) != GM_OK) {
        gm_release(made);
        return raise_gm(state);
    }
    if (!made)
        gm_retain(node);
    PyObject *schema = schema_capsule(type, ndim, ndim == 2 ? gm_array_shape(node)[1] : 0);
    PyObject *array = schema ? array_capsule(node) : NULL;
    gm_array_unpin(node);
    gm_release(node);
    PyObject *pair = array ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    return pair;
}
