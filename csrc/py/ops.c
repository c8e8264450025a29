/* ops.c - the Python functions of ops.def. UNARY, BINARY and REDUCE rows share one wrapper per class; a HAND row has its
 * function op_<name> here or in an ops_<family>.c, and nothing else: the table, the docstring and the signature come
 * from the row. */
#include "py/bind.h"

/* The signature texts of the rows. */
#define UNARY(name, doc)
#define BINARY(name, doc)
#define REDUCE(name, doc)
#define HAND(name, namespace_, prototype, text, doc) const char op_text_##name[] = text;
#include "ops/ops.def"
#undef UNARY
#undef BINARY
#undef REDUCE
#undef HAND

static PyObject *finish(PyObject *module, gm_scope *scope, gm_array *node) {
    return py_array_result(PyModule_GetState(module), scope, node);
}

/* ---- classes ---- */

static PyObject *call_unary(PyObject *module, const char *name, unary_fn fn, PyObject *const *args, Py_ssize_t n,
                            PyObject *kwnames) {
    const signature sig = {name, 1, 1, 1, {"a", "stream", NULL}};
    PyObject *v[2];
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[1]))
        return NULL;
    gm_scope *scope = gm_scope_open();
    gm_array *x = scope ? node_from_operand(PyModule_GetState(module), scope, v[0], GM_DTYPE_COUNT) : NULL;
    return finish(module, scope, fn(scope, x));
}

static PyObject *call_binary(PyObject *module, const char *name, binary_fn fn, PyObject *const *args, Py_ssize_t n,
                             PyObject *kwnames) {
    const signature sig = {name, 0, 2, 3, {"a", "b", "stream", NULL}};
    PyObject *v[3];
    gm_array *x, *y;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]))
        return NULL;
    gm_scope *scope = gm_scope_open();
    bool ok = scope && nodes_from_operands(PyModule_GetState(module), scope, v[0], v[1], &x, &y);
    return finish(module, scope, ok ? fn(scope, x, y) : NULL);
}

/* The node of an argument that must be an array; NULL with TypeError. */
static gm_array *array_argument(module_state *state, PyObject *value, const char *name) {
    gm_array *node = py_array_node(state, value);
    if (!node)
        PyErr_Format(PyExc_TypeError, "%s: an array is needed, not %R", name, (PyObject *)Py_TYPE(value));
    return node;
}

/* As a method (self given) or as a function whose first argument is the array: the rest are axis, keepdims, stream. */
PyObject *call_reduce(module_state *state, const char *name, reduce_fn fn, PyObject *self, PyObject *const *args,
                      Py_ssize_t n, PyObject *kwnames) {
    const signature sig = {name, 0, 2, 0, {"axis", "keepdims", "stream", NULL}};
    PyObject *v[3];
    int n_axes, axes[GM_MAX_NDIM];
    bool keepdims = false;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]) || !read_axes(v[0], &n_axes, axes)
        || !read_bool(v[1], &keepdims))
        return NULL;
    gm_array *x = array_argument(state, self, name);
    gm_scope *scope = gm_scope_open();
    return py_array_result(state, scope, scope ? fn(scope, x, n_axes, axes, keepdims) : NULL);
}

PyObject *call_argreduce(module_state *state, const char *name, bool greatest, PyObject *self, PyObject *const *args,
                         Py_ssize_t n, PyObject *kwnames) {
    const signature sig = {name, 0, 2, 0, {"axis", "keepdims", "stream", NULL}};
    PyObject *v[3];
    int axis = 0;
    bool keepdims = false;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]) || !read_bool(v[1], &keepdims))
        return NULL;
    bool all = !v[0] || v[0] == Py_None;
    if (!all && !read_int(v[0], "axis", &axis))
        return NULL;
    gm_array *x = array_argument(state, self, name);
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? (greatest ? gm_argmax : gm_argmin)(scope, x, axis, all, keepdims) : NULL;
    return py_array_result(state, scope, node);
}

static bool first_argument(const char *name, Py_ssize_t n) {
    if (n > 0)
        return true;
    PyErr_Format(PyExc_TypeError, "%s() missing required argument 'a'", name);
    return false;
}

#define UNARY(name, doc) FUNCTION_OF(name) { return call_unary(module, #name, gm_##name, args, n, kwnames); }
#define BINARY(name, doc) FUNCTION_OF(name) { return call_binary(module, #name, gm_##name, args, n, kwnames); }
#define REDUCE(name, doc) \
    FUNCTION_OF(name) \
    { \
        return first_argument(#name, n) \
             ? call_reduce(PyModule_GetState(module), #name, gm_##name, args[0], args + 1, n - 1, kwnames) : NULL; \
    }
#define HAND(name, namespace_, prototype, text, doc)
#include "ops/ops.def"
#undef UNARY
#undef BINARY
#undef REDUCE
#undef HAND

/* ---- core, by hand ---- */

FUNCTION_OF(argmax) {
    return first_argument("argmax", n)
               ? call_argreduce(PyModule_GetState(module), "argmax", true, args[0], args + 1, n - 1, kwnames)
               : NULL;
}

FUNCTION_OF(argmin) {
    return first_argument("argmin", n)
               ? call_argreduce(PyModule_GetState(module), "argmin", false, args[0], args + 1, n - 1, kwnames)
               : NULL;
}

FUNCTION_OF(astype) {
    static const signature sig = {"astype", 1, 2, 3, {"a", "dtype", "stream", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[3];
    gm_dtype type = GM_DTYPE_COUNT;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]) || !read_dtype(state, v[1], &type))
        return NULL;
    gm_array *x = array_argument(state, v[0], "astype");
    if (x && type == GM_DTYPE_COUNT)
        PyErr_SetString(PyExc_TypeError, "astype: dtype must be a Dtype such as float32, not None");
    if (PyErr_Occurred())
        return NULL;
    gm_scope *scope = gm_scope_open();
    return finish(module, scope, scope ? gm_astype(scope, x, type) : NULL);
}

/* (a, /, shape, *, stream): reshape and broadcast_to. */
static PyObject *call_shaped(PyObject *module, const char *name,
                             gm_array *(*fn)(gm_scope *, gm_array *, int, const int64_t *), PyObject *const *args,
                             Py_ssize_t n, PyObject *kwnames) {
    const signature sig = {name, 1, 2, 3, {"a", "shape", "stream", NULL}};
    PyObject *v[3];
    int ndim;
    int64_t shape[GM_MAX_NDIM];
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]) || !read_shape(v[1], &ndim, shape))
        return NULL;
    gm_scope *scope = gm_scope_open();
    gm_array *x = scope ? node_from_operand(PyModule_GetState(module), scope, v[0], GM_DTYPE_COUNT) : NULL;
    return finish(module, scope, x ? fn(scope, x, ndim, shape) : NULL);
}

FUNCTION_OF(reshape) {
    return call_shaped(module, "reshape", gm_reshape, args, n, kwnames);
}

FUNCTION_OF(broadcast_to) {
    return call_shaped(module, "broadcast_to", gm_broadcast_to, args, n, kwnames);
}

FUNCTION_OF(transpose) {
    static const signature sig = {"transpose", 1, 2, 1, {"a", "axes", "stream", NULL}};
    PyObject *v[3];
    int n_axes, axes[GM_MAX_NDIM];
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]) || !read_axes(v[1], &n_axes, axes))
        return NULL;
    gm_array *x = array_argument(PyModule_GetState(module), v[0], "transpose");
    gm_scope *scope = gm_scope_open();
    return finish(module, scope, scope ? gm_transpose(scope, x, n_axes, axes) : NULL);
}

FUNCTION_OF(where) {
    static const signature sig = {"where", 0, 3, 7, {"condition", "x", "y", "stream", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[4];
    gm_array *x, *y;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[3]))
        return NULL;
    gm_scope *scope = gm_scope_open();
    bool ok = scope && nodes_from_operands(state, scope, v[1], v[2], &x, &y);
    gm_array *condition = ok ? node_from_operand(state, scope, v[0], GM_DTYPE_COUNT) : NULL;
    return finish(module, scope, condition ? gm_where(scope, condition, x, y) : NULL);
}

FUNCTION_OF(matmul) {
    static const signature sig = {"matmul", 2, 2, 3, {"a", "b", "stream", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[3];
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_stream(v[2]))
        return NULL;
    gm_array *a = array_argument(state, v[0], "matmul");
    gm_array *b = a ? array_argument(state, v[1], "matmul") : NULL;
    gm_scope *scope = gm_scope_open();
    return finish(module, scope, scope ? gm_matmul(scope, a, b) : NULL);
}

/* ---- the tables ---- */

#define ROW(name, text, doc) {#name, FUNCTION(op_##name), FASTCALL, #name text "\n--\n\n" doc},
#define UNARY(name, doc) ROW(name, "(a, /, *, stream=None)", doc)
#define BINARY(name, doc) ROW(name, "(a, b, *, stream=None)", doc)
#define REDUCE(name, doc) ROW(name, "(a, /, axis=None, keepdims=False, *, stream=None)", doc)
#define HAND(name, namespace_, prototype, text, doc) HAND_##namespace_(name, text, doc)
#define HAND_engine(name, text, doc)

/* One table for each namespace: the rows of the others expand to nothing. */
#define HAND_core(name, text, doc) ROW(name, text, doc)
#define HAND_fast(name, text, doc)
#define HAND_linalg(name, text, doc)
#define HAND_fft(name, text, doc)
#define HAND_random(name, text, doc)
static PyMethodDef core_ops[] = {
#include "ops/ops.def"
    {NULL, NULL, 0, NULL},
};
#undef UNARY
#undef BINARY
#undef REDUCE
#define UNARY(name, doc)
#define BINARY(name, doc)
#define REDUCE(name, doc)
#undef HAND_core
#undef HAND_fast
#define HAND_core(name, text, doc)
#define HAND_fast(name, text, doc) ROW(name, text, doc)
static PyMethodDef fast_ops[] = {
#include "ops/ops.def"
    {NULL, NULL, 0, NULL},
};
#undef HAND_fast
#undef HAND_linalg
#define HAND_fast(name, text, doc)
#define HAND_linalg(name, text, doc) ROW(name, text, doc)
static PyMethodDef linalg_ops[] = {
#include "ops/ops.def"
    {NULL, NULL, 0, NULL},
};
#undef HAND_linalg
#undef HAND_fft
#define HAND_linalg(name, text, doc)
#define HAND_fft(name, text, doc) ROW(name, text, doc)
static PyMethodDef fft_ops[] = {
#include "ops/ops.def"
    {NULL, NULL, 0, NULL},
};
#undef HAND_fft
#undef HAND_random
#define HAND_fft(name, text, doc)
/* random_normal is gomlx.core.random.normal */
#define HAND_random(name, text, doc) {&#name[sizeof "random"], FUNCTION(op_##name), FASTCALL, \
                                      &(#name text "\n--\n\n" doc)[sizeof "random"]},
static PyMethodDef random_ops[] = {
#include "ops/ops.def"
    {NULL, NULL, 0, NULL},
};

/* The functions get the extension module as self, wherever they are put: the state is there. */
static bool functions_add(PyObject *target, PyObject *module, PyMethodDef *functions, const char *module_name,
                          PyObject *names) {
    PyObject *where = PyUnicode_FromString(module_name);
    for (PyMethodDef *f = functions; where && f->ml_name; f++) {
        PyObject *function = PyCFunction_NewEx(f, module, where);
        PyObject *name = PyUnicode_FromString(f->ml_name);
        bool ok = function && name && PyModule_AddObjectRef(target, f->ml_name, function) == 0
               && (!names || PyList_Append(names, name) == 0);
        Py_XDECREF(name);
        Py_XDECREF(function);
        if (!ok)
            Py_CLEAR(where);
    }
    Py_XDECREF(where);
    return where != NULL;
}

static bool namespace_add(PyObject *module, const char *name, const char *doc, PyMethodDef *functions, PyObject *names) {
    char full[64];
    PyOS_snprintf(full, sizeof full, "gomlx.core.%s", name);
    PyObject *space = PyModule_New(full), *text = PyUnicode_FromString(name);
    bool ok = space && text && functions_add(space, module, functions, full, NULL)
           && PyModule_AddStringConstant(space, "__doc__", doc) == 0
           && PyModule_AddObjectRef(module, name, space) == 0 && PyList_Append(names, text) == 0;
    Py_XDECREF(text);
    Py_XDECREF(space);
    return ok;
}

bool ops_add(PyObject *module, PyObject *names) {
    return functions_add(module, module, core_ops, "gomlx.core", names)
        && namespace_add(module, "fast", "Fused operations.", fast_ops, names)
        && namespace_add(module, "linalg", "Linear algebra.", linalg_ops, names)
        && namespace_add(module, "fft", "Fourier transforms.", fft_ops, names)
        && namespace_add(module, "random", "Random numbers.", random_ops, names) && random_state_add(module);
}
