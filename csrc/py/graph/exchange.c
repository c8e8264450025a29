/* exchange.c - arrays that other processes take part in: what runs such a node is a Python function. */
#include <stdio.h>
#include <string.h>
#include "py/py.h"

static PyObject *carrier; /* under the GIL */

static PyObject *view(const void *data, size_t bytes, int flags) {
    static char nothing[1];
    return PyMemoryView_FromMemory(bytes ? (char *)data : nothing, (Py_ssize_t)bytes, flags);
}

/* What the carrier is given of memory: a view of it, or on a device (address, bytes). */
static PyObject *memory_of(const gm_exchange_call *c, const void *data, size_t bytes, int flags) {
    return c->line ? Py_BuildValue("KK", (unsigned long long)(uintptr_t)data, (unsigned long long)bytes)
                   : view(data, bytes, flags);
}

static PyObject *line_of(const gm_exchange_call *c) {
    return c->line ? Py_BuildValue("iK", c->device, (unsigned long long)(uintptr_t)c->line) : Py_NewRef(Py_None);
}

/* The text of the exception that is set, which ends here. */
static void take_cause(char *cause, size_t bytes) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *data = text ? PyUnicode_AsUTF8String(text) : NULL;
    const char *said = data ? PyBytes_AsString(data) : NULL;
    snprintf(cause, bytes, "%s", said && *said ? said : "exchange: it was interrupted");
    Py_XDECREF(data);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    PyErr_Clear();
}

static bool carry(const gm_exchange_call *c) {
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *line = line_of(c);
    PyObject *from = !line ? NULL : c->in ? memory_of(c, c->in, c->in_bytes, PyBUF_READ) : Py_NewRef(Py_None);
    PyObject *to = from ? memory_of(c, c->out, c->out_bytes, PyBUF_WRITE) : NULL;
    PyObject *sizes = to ? PyTuple_New(c->ndim) : NULL;
    for (int i = 0; sizes && i < c->ndim; i++) {
        PyObject *size = PyLong_FromLongLong(c->shape[i]);
        if (!size || PyTuple_SetItem(sizes, i, size) != 0)
            Py_CLEAR(sizes);
    }
    PyObject *done = sizes ? PyObject_CallFunction(carrier, "iiisOOOO", (int)c->what.kind, (int)c->what.group,
                                                   (int)c->what.peer, gm_dtype_name(c->type), sizes, from, to, line)
                           : NULL;
    if (!done)
        take_cause(c->cause, c->cause_bytes);
    Py_XDECREF(line);
    Py_XDECREF(sizes);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(done);
    PyGILState_Release(gil);
    return done != NULL;
}

PyObject *set_carrier(PyObject *module, PyObject *function) {
    (void)module;
    PyObject *before = carrier;
    carrier = Py_NewRef(function);
    Py_XDECREF(before);
    gm_exchange_carrier(carry);
    Py_RETURN_NONE;
}

PyObject *exchange(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *x, *dtype, *shape_object;
    int kind, group, peer, ndim, here;
    long long serial;
    gm_dtype type = GM_DTYPE_COUNT;
    int64_t shape[GM_MAX_NDIM];
    if (!PyArg_ParseTuple(args, "OiiiLOOp", &x, &kind, &group, &peer, &serial, &dtype, &shape_object, &here) ||
        !read_dtype(state, dtype, &type) || !read_shape(shape_object, &ndim, shape))
        return NULL;
    gm_array *in = x == Py_None ? GM_NONE : py_array_node(state, x);
    if (!in)
        return PyErr_Format(PyExc_TypeError, "_exchange: expected an array or None");
    gm_scope *scope = gm_scope_open();
    const gm_exchange what = {serial, kind, group, peer, here != 0};
    gm_array *node = scope ? gm_exchange_array(scope, in, &what, type, ndim, shape) : NULL;
    PyObject *made = node ? py_array_handle(state->array_type, gm_retain(node)) : raise_gm(state);
    gm_scope_close(scope);
    return made;
}
