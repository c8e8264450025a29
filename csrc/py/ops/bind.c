/* bind.c - the arguments of a catalogue function, read by the signature text of its row and one letter for each.
 *  (1) The text gives names, what is positional, and what must come (no default); it is parsed once per function.
 *  (2) The letters say what each argument is and which variables are filled (bind.h); a variable whose argument is
 *      absent keeps what the caller put in it.
 *  (3) Every array that is read is kept by the call's scope: converting a later argument may run Python code that
 *      gives an earlier handle another node. */
#include "py/ops/bind.h"
#include <stdarg.h>
#include <string.h>

/* "(a, /, axis=None, *, stream=None)" to names and kinds. The text is the project's own: it is well formed. */
static void parse(bind_signature *sig, const char *function, const char *text) {
    int n = 0;
    size_t used = 0;
    bool keyword = false;
    sig->base.function = function;
    sig->base.n_positional = sig->base.n_positional_only = 0;
    sig->base.required = 0;
    for (const char *at = text + 1; *at && *at != ')';) {
        while (*at == ' ' || *at == ',')
            at++;
        size_t length = strcspn(at, "=,)");
        bool has_default = at[length] == '=';
        if (*at == '/') {
            sig->base.n_positional_only = n;
        } else if (*at == '*') {
            keyword = true;
        } else {
            memcpy(sig->storage + used, at, length);
            sig->storage[used + length] = 0;
            sig->base.names[n] = sig->storage + used;
            used += length + 1;
            sig->base.required |= has_default ? 0 : 1u << n;
            sig->base.n_positional += !keyword;
            n++;
        }
        at += length;
        if (has_default) { /* to the comma that ends it: defaults may be () or 'text' */
            int depth = 0;
            for (; *at && (depth || (*at != ',' && *at != ')')); at++)
                depth += (*at == '(') - (*at == ')');
        }
    }
    sig->base.names[n] = NULL;
    sig->n = n;
    sig->stream = -1;
    for (int i = 0; i < n; i++)
        if (strcmp(sig->base.names[i], "stream") == 0)
            sig->stream = i;
}

static bool is_given(PyObject *value) { return value && value != Py_None; }

static gm_array *read_array(call *c, PyObject *value, const char *what, bool scalars) {
    gm_array *node = py_array_node(c->state, value);
    if (node)
        return gm_scope_keep(c->scope, node);
    if (scalars)
        return node_from_operand(c->state, c->scope, value, GM_DTYPE_COUNT);
    PyErr_Format(PyExc_TypeError, "%s: %s must be an array, not %R", c->function, what, (PyObject *)Py_TYPE(value));
    return NULL;
}

/* A list, a tuple or an iterable of arrays; memory of the scope's lifetime is not needed: the call frees it. */
static bool read_arrays(call *c, PyObject *value, const char *what, gm_array ***out, int *count) {
    PyObject *items = py_array_node(c->state, value) ? NULL : PySequence_Tuple(value);
    Py_ssize_t n = items ? PyTuple_Size(items) : 0;
    if (!items || n > INT_MAX) {
        if (!items && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)))
            PyErr_Format(PyExc_TypeError, "%s: %s must be a sequence of arrays, not %R", c->function, what,
                         (PyObject *)Py_TYPE(value));
        else if (items)
            PyErr_Format(PyExc_ValueError, "%s: %zd arrays are too many", c->function, n);
        Py_XDECREF(items);
        return false;
    }
    gm_array **nodes = PyMem_Malloc(sizeof *nodes * (size_t)(n ? n : 1));
    bool ok = nodes != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = (nodes[i] = read_array(c, PyTuple_GetItem(items, i), what, false)) != NULL;
    Py_DECREF(items);
    if (!ok) {
        PyMem_Free(nodes);
        return false;
    }
    PyMem_Free(c->list);
    *out = c->list = nodes;
    *count = (int)n;
    return true;
}

static bool read_text(call *c, PyObject *value, const char *what, const char **out) {
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s: %s must be a str, not %R", c->function, what, (PyObject *)Py_TYPE(value));
        return false;
    }
    return (*out = PyUnicode_AsUTF8AndSize(value, NULL)) != NULL;
}

/* int or sequence of ints, each int64: *n = 1 and not a sequence is told by *n = -1 with out[0]. */
bool read_int64s(PyObject *value, const char *what, int *n, int64_t *out) {
    if (is_one_integer(value)) {
        PyObject *index = PyNumber_Index(value);
        *n = -1;
        out[0] = index ? PyLong_AsLongLong(index) : 0;
        Py_XDECREF(index);
        return !PyErr_Occurred();
    }
    PyObject *items = read_sequence(value, what, BIND_INTS);
    Py_ssize_t count = items ? PyTuple_Size(items) : 0;
    bool ok = items != NULL;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        PyObject *index = PyNumber_Index(PyTuple_GetItem(items, i));
        out[i] = index ? PyLong_AsLongLong(index) : 0;
        Py_XDECREF(index);
        ok = !PyErr_Occurred();
    }
    Py_XDECREF(items);
    *n = (int)count;
    return ok;
}

/* The kinds that are a number of integers and these: axes (None, int or ints), a shape, sizes. */
static bool read_integers(call *c, char kind, PyObject *value, const char *what, va_list *list) {
    const bool given = is_given(value);
    int *n = va_arg(*list, int *);
    if (kind == 'x') {
        int *axes = va_arg(*list, int *);
        return !value || read_axes(value, n, axes);
    }
    int64_t *out = va_arg(*list, int64_t *);
    if (kind == 'n')
        return !given || read_int64s(value, what, n, out);
    if (given && kind == 'S' && is_one_integer(value)) {
        PyErr_Format(PyExc_TypeError, "%s: %s must be a sequence of ints, not %R", c->function, what,
                     (PyObject *)Py_TYPE(value));
        return false;
    }
    return !given || read_shape(value, n, out);
}

static bool read_one(call *c, char kind, PyObject *value, const char *what, va_list *list) {
    bool given = is_given(value);
    switch (kind) {
    case 'A':
    case 'V': {
        gm_array **out = va_arg(*list, gm_array **);
        return (*out = read_array(c, value, what, kind == 'V')) != NULL;
    }
    case 'O':
    case 'Q': { /* optional: array, or array or scalar */
        gm_array **out = va_arg(*list, gm_array **);
        return (*out = given ? read_array(c, value, what, kind == 'Q') : GM_NONE) != NULL;
    }
    case 'L': {
        gm_array ***out = va_arg(*list, gm_array ***);
        return read_arrays(c, value, what, out, va_arg(*list, int *));
    }
    case 'i': {
        int *out = va_arg(*list, int *);
        return !given || read_int(value, what, out);
    }
    case 'b': {
        bool *out = va_arg(*list, bool *);
        return !given || read_bool(value, out);
    }
    case 'f': {
        double *out = va_arg(*list, double *);
        return !given || read_float(value, what, out);
    }
    case 'a': { /* axis: None or int */
        int *out = va_arg(*list, int *);
        bool *all = va_arg(*list, bool *);
        if (!value)
            return true;
        *all = !given;
        return !given || read_int(value, what, out);
    }
    case 'x':
    case 's':
    case 'S':
    case 'n': return read_integers(c, kind, value, what, list);
    case 'd': return read_dtype(c->state, value, va_arg(*list, gm_dtype *));
    case 't': {
        const char **out = va_arg(*list, const char **);
        return !given || read_text(c, value, what, out);
    }
    case 'p': { /* the object itself, borrowed; NULL when absent */ *va_arg(*list, PyObject **) = value; return true;
    }
    default: PyErr_Format(PyExc_SystemError, "%s: no argument of kind '%c'", c->function, kind); return false;
    }
}

bool call_bind(call *c, bind_signature *sig, const char *function, const char *text, PyObject *const *args,
               Py_ssize_t n, PyObject *kwnames, const char *kinds, ...) {
    PyObject *v[BIND_ARGUMENTS];
    va_list list;
    if (!sig->base.function)
        parse(sig, function, text);
    c->function = function;
    if (!read_arguments(&sig->base, args, n, kwnames, v) ||
        !place_enter(sig->stream >= 0 ? v[sig->stream] : NULL, &c->place))
        return false;
    c->scope = gm_scope_open();
    bool ok = c->scope != NULL;
    va_start(list, kinds);
    for (int i = 0; ok && i < sig->n; i++) {
        if (i == sig->stream) {
            continue;
        } else if (*kinds == 'W') { /* two operands, scalars weak to the other */
            gm_array **a = va_arg(list, gm_array **), **b = va_arg(list, gm_array **);
            ok = nodes_from_operands(c->state, c->scope, v[i], v[i + 1], true, a, b);
            if (ok) {
                gm_scope_keep(c->scope, *a);
                gm_scope_keep(c->scope, *b);
            }
            kinds++;
            i++;
        } else {
            ok = read_one(c, *kinds++, v[i], sig->base.names[i], &list);
        }
    }
    va_end(list);
    if (!ok) {
        call_finish(c, NULL);
        return false;
    }
    return true;
}

bool call_arrays(call *c, PyObject *const *args, Py_ssize_t n, const char *what, gm_array ***out) {
    *out = c->list = PyMem_Malloc(sizeof **out * (size_t)(n ? n : 1));
    if (!c->list)
        return PyErr_NoMemory(), false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!(c->list[i] = read_array(c, args[i], what, false)))
            return false;
    return true;
}

PyObject *call_finish(call *c, gm_array *node) {
    place_leave(&c->place);
    PyMem_Free(c->list);
    c->list = NULL;
    return py_array_result(c->state, c->scope, node);
}

PyObject *call_finish_many(call *c, gm_status status, gm_array *const *nodes, int count, bool as_list) {
    place_leave(&c->place);
    PyObject *result = status == GM_OK ? as_list ? PyList_New(count) : PyTuple_New(count) : NULL;
    for (int i = 0; result && i < count; i++) {
        PyObject *item = nodes[i] ? py_array_handle(c->state->array_type, gm_retain(nodes[i])) : NULL;
        if (!item)
            Py_CLEAR(result);
        else if (as_list)
            PyList_SetItem(result, i, item);
        else
            PyTuple_SetItem(result, i, item);
    }
    PyMem_Free(c->list);
    c->list = NULL;
    gm_scope_close(c->scope);
    return result ? result : raise_gm(c->state);
}
