/* ops.c - the Python functions of ops.def. UNARY, BINARY and REDUCE rows share one wrapper per class; arguments of an
 * OP row are read by their kinds; a HAND row has its function op_<name> in a file of py/ops, and nothing else: the
 * table, the docstring and the signature come from the row. */
#include <limits.h>
#include <string.h>
#include "py/ops/bind.h"
#include "py/ops/op_docs.h"

static PyObject *finish(PyObject *module, gm_scope *scope, gm_array *node) {
    return py_array_result(PyModule_GetState(module), scope, node);
}

/* ---- classes ---- */

static PyObject *call_unary(PyObject *module, const char *name, unary_fn fn, PyObject *const *args, Py_ssize_t n,
                            PyObject *kwnames) {
    const signature sig = {name, 1, 1, 1, {"a", "stream", NULL}};
    PyObject *v[2];
    stream_place place;
    if (!read_arguments(&sig, args, n, kwnames, v) || !place_enter(v[1], &place))
        return NULL;
    gm_scope *scope = gm_scope_open();
    gm_array *x = scope ? node_from_operand(PyModule_GetState(module), scope, v[0], GM_DTYPE_COUNT) : NULL;
    x = fn(scope, x);
    place_leave(&place);
    return finish(module, scope, x);
}

static PyObject *call_binary(PyObject *module, const char *name, binary_fn fn, PyObject *const *args, Py_ssize_t n,
                             PyObject *kwnames) {
    const signature sig = {name, 0, 2, 3, {"a", "b", "stream", NULL}};
    /* What is true does not depend on a dtype: -1 beside uint32 is. */
    const bool weak = fn != gm_logical_and && fn != gm_logical_or && fn != gm_logical_xor;
    module_state *state = PyModule_GetState(module);
    PyObject *v[3];
    stream_place place;
    gm_array *x, *y;
    if (!read_arguments(&sig, args, n, kwnames, v) || !place_enter(v[2], &place))
        return NULL;
    gm_scope *scope = gm_scope_open();
    bool ok = scope && nodes_from_operands(state, scope, v[0], v[1], weak, &x, &y);
    x = ok ? fn(scope, x, y) : NULL;
    place_leave(&place);
    return finish(module, scope, x);
}

/* The node of an argument that must be an array; NULL with TypeError. */
static gm_array *array_argument(module_state *state, PyObject *value, const char *name) {
    gm_array *node = py_array_node(state, value);
    if (!node)
        PyErr_Format(PyExc_TypeError, "%s: an array is needed, not %R", name, (PyObject *)Py_TYPE(value));
    return node;
}

static PyObject *call_reduce(PyObject *module, const char *name, reduce_fn fn, PyObject *const *args, Py_ssize_t n,
                             PyObject *kwnames) {
    const signature sig = {name, 1, 3, 1, {"a", "axis", "keepdims", "stream", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[4];
    int n_axes, axes[GM_MAX_NDIM];
    bool keepdims = false;
    stream_place place;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_axes(v[1], &n_axes, axes) || !read_bool(v[2], &keepdims) ||
        !place_enter(v[3], &place))
        return NULL;
    gm_array *x = array_argument(state, v[0], name);
    gm_scope *scope = gm_scope_open();
    x = scope ? fn(scope, x, n_axes, axes, keepdims) : NULL;
    place_leave(&place);
    return py_array_result(state, scope, x);
}

#define UNARY(name, doc)                                                                                               \
    FUNCTION_OF(name)                                                                                                  \
    {                                                                                                                  \
        return call_unary(module, #name, gm_##name, args, n, kwnames);                                                 \
    }
#define BINARY(name, doc)                                                                                              \
    FUNCTION_OF(name)                                                                                                  \
    {                                                                                                                  \
        return call_binary(module, #name, gm_##name, args, n, kwnames);                                                \
    }
#define REDUCE(name, doc)                                                                                              \
    FUNCTION_OF(name)                                                                                                  \
    {                                                                                                                  \
        return call_reduce(module, #name, gm_##name, args, n, kwnames);                                                \
    }
#include "ops/ops.def"

/* ---- rows with kinds of arguments: of each a struct of its variables, and functions that fill it and use it ---- */
#define MOST_OUTPUTS 3
#define False false
#define True true
#define OP(name, namespace_, result, arguments, doc) static const char op_text_##name[] = "(" arguments "stream=None)";
#define HAND(name, namespace_, parameters, text, doc) const char op_text_##name[] = text;
#define ARG(text, ...) text
#include "ops/ops.def"

#define OP(name, namespace_, result, arguments, doc) static const char letters_##name[] = "" arguments;
#define ARG(text, letter, ...) letter
#include "ops/ops.def"

#define OP(name, namespace_, result, arguments, doc)                                                                   \
    typedef struct { arguments char end; } given_##name;
#define ARG(text, letter, members, ...) members
#include "ops/ops.def"

#define OP(name, namespace_, result, arguments, doc)                                                                   \
    static void clear_##name(given_##name *v) {                                                                        \
        (void)v;                                                                                                       \
        arguments                                                                                                      \
    }
#define ARG(text, letter, members, defaults, ...) OPEN defaults
#include "ops/ops.def"

#define OP(name, namespace_, result, arguments, doc)                                                                   \
    static bool bind_##name(call *c, bind_signature *sig, given_##name *v, PyObject *const *args, Py_ssize_t n,        \
                            PyObject *kwnames) {                                                                       \
        return call_bind(c, sig, #name, op_text_##name, args, n, kwnames, letters_##name arguments);                   \
    }
#define ARG(text, letter, members, defaults, parameters, pointers, values) OPEN pointers
#include "ops/ops.def"

/* An argument or, where it was not given, the number it defaults to. */
static gm_array *node_or(call *c, gm_array *given, float number) {
    return given == GM_NONE ? gm_array_from(c->scope, GM_FLOAT32, 0, NULL, &number) : given;
}

#define SINGLE
#define TUPLE(n) , outs
#define PAIR , outs + 1
#define LIST_OF_TWO , outs + 1
#define OP(name, namespace_, result, arguments, doc)                                                                   \
    static gm_array *run_##name(call *c, const given_##name *v, gm_array **outs) {                                     \
        (void)v;                                                                                                       \
        (void)outs;                                                                                                    \
        return gm_##name(c->scope arguments result);                                                                   \
    }
#define ARG(text, letter, members, defaults, parameters, pointers, values) OPEN values
#include "ops/ops.def"
#undef SINGLE
#undef TUPLE
#undef PAIR
#undef LIST_OF_TWO

/* One result, or several in a tuple or a list. */
static PyObject *finish_op(call *c, gm_array *first, gm_array **outs, int count, bool as_list) {
    if (count == 1)
        return call_finish(c, first);
    outs[0] = first;
    return call_finish_many(c, first ? GM_OK : GM_ESTATE, outs, count, as_list);
}

#define SINGLE 1, false
#define TUPLE(n) n, false
#define PAIR 2, false
#define LIST_OF_TWO 2, true
#define OP(name, namespace_, result, arguments, doc)                                                                   \
    FUNCTION_OF(name)                                                                                                  \
    {                                                                                                                  \
        static bind_signature sig;                                                                                     \
        call c = {.state = PyModule_GetState(module)};                                                                 \
        given_##name v;                                                                                                \
        gm_array *outs[MOST_OUTPUTS];                                                                                  \
        clear_##name(&v);                                                                                              \
        if (!bind_##name(&c, &sig, &v, args, n, kwnames))                                                              \
            return NULL;                                                                                               \
        return finish_op(&c, run_##name(&c, &v, outs), outs, result);                                                  \
    }
#include "ops/ops.def"
#undef SINGLE
#undef TUPLE
#undef PAIR
#undef LIST_OF_TWO

/* ---- the table: every row, with the module that it belongs to ---- */

typedef struct {
    const char *space;
    PyMethodDef method;
} row;

#define ROW(space, name, text, doc) {#space, {#name, FUNCTION(op_##name), FASTCALL, #name text "\n--\n\n" doc}},
#define UNARY(name, doc) ROW(core, name, "(a, /, *, stream=None)", doc DOC_UNARY)
#define BINARY(name, doc) ROW(core, name, "(a, b, *, stream=None)", doc DOC_BINARY)
#define REDUCE(name, doc) ROW(core, name, "(a, /, axis=None, keepdims=False, *, stream=None)", doc DOC_REDUCE)
#define OP(name, namespace_, result, arguments, doc) ROW_##namespace_(name, "(" arguments "stream=None)", doc)
#define ARG(text, ...) text
#define HAND(name, namespace_, parameters, text, doc) ROW_##namespace_(name, text, doc)
#define ROW_core(name, text, doc) ROW(core, name, text, doc DOC_##name)
#define ROW_fast(name, text, doc) ROW(fast, name, text, doc DOC_##name)
#define ROW_linalg(name, text, doc) ROW(linalg, name, text, doc DOC_##name)
#define ROW_fft(name, text, doc) ROW(fft, name, text, doc DOC_##name)
/* random_normal is gomlx.core.random.normal */
#define ROW_random(name, text, doc)                                                                                    \
    {"random",                                                                                                         \
     {&#name[sizeof "random"], FUNCTION(op_##name), FASTCALL,                                                          \
      &(#name text "\n--\n\n" doc DOC_##name)[sizeof "random"]}},
static row rows[] = {
#include "ops/ops.def"
};

/* The functions get the extension module as self, wherever they are put: the state is there. */
static bool functions_add(PyObject *target, PyObject *module, const char *space, const char *module_name,
                          PyObject *names) {
    PyObject *where = PyUnicode_FromString(module_name);
    for (size_t i = 0; where && i < sizeof rows / sizeof *rows; i++) {
        PyMethodDef *f = &rows[i].method;
        if (strcmp(rows[i].space, space) != 0)
            continue;
        PyObject *function = PyCFunction_NewEx(f, module, where);
        PyObject *name = PyUnicode_FromString(f->ml_name);
        bool ok = function && name && PyModule_AddObjectRef(target, f->ml_name, function) == 0 &&
                  (!names || PyList_Append(names, name) == 0);
        Py_XDECREF(name);
        Py_XDECREF(function);
        if (!ok)
            Py_CLEAR(where);
    }
    Py_XDECREF(where);
    return where != NULL;
}

static bool namespace_add(PyObject *module, const char *name, const char *doc, PyObject *names) {
    char full[64];
    PyOS_snprintf(full, sizeof full, "gomlx.core.%s", name);
    PyObject *space = PyModule_New(full), *text = PyUnicode_FromString(name);
    bool ok = space && text && functions_add(space, module, name, full, NULL) &&
              PyModule_AddStringConstant(space, "__doc__", doc) == 0 &&
              PyModule_AddObjectRef(module, name, space) == 0 && PyList_Append(names, text) == 0;
    Py_XDECREF(text);
    Py_XDECREF(space);
    return ok;
}

bool ops_add(PyObject *module, PyObject *names) {
    return functions_add(module, module, "core", "gomlx.core", names) &&
           namespace_add(module, "fast", "Fused operations.", names) &&
           namespace_add(module, "linalg", "Linear algebra.", names) &&
           namespace_add(module, "fft", "Fourier transforms.", names) &&
           namespace_add(module, "random", "Random numbers.", names) && random_state_add(module);
}
