/* transform.c - what gomlx/core/_transforms.py is built on: lists of arrays in, lists of arrays out. The trees of
 * Python values and the tracing of functions are Python's side; graphs are the engine's. */
#include "py/py.h"

/* ---- lists of arrays ---- */
gm_scope *transform_scope(void) {
    gm_error stale;
    gm_take_error(&stale);
    return gm_scope_open();
}

bool read_nodes(module_state *state, gm_scope *scope, PyObject *list, bool optional, node_list *out) {
    out->nodes = NULL;
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "a list of arrays is needed, not %R", (PyObject *)Py_TYPE(list));
        return false;
    }
    out->count = PyList_Size(list);
    out->nodes = PyMem_Calloc((size_t)out->count + 1, sizeof *out->nodes);
    if (!out->nodes) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < out->count; i++) {
        PyObject *item = PyList_GetItem(list, i);
        gm_array *node = py_array_node(state, item);
        if (!node && !(optional && item == Py_None)) {
            PyErr_Format(PyExc_TypeError, "an array is needed, not %R", (PyObject *)Py_TYPE(item));
            return false;
        }
        if (node && !gm_scope_keep(scope, node))
            return false;
        out->nodes[i] = node;
    }
    return true;
}

PyObject *node_handles(module_state *state, gm_array *const *nodes, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *item = nodes[i] ? py_array_handle(state->array_type, gm_retain(nodes[i])) : Py_NewRef(Py_None);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, item);
    }
    return list;
}

static bool read_flags(PyObject *list, Py_ssize_t count, bool **out) {
    *out = NULL;
    if (!PyList_Check(list) || PyList_Size(list) != count) {
        PyErr_SetString(PyExc_TypeError, "a list of as many truth values as arrays is needed");
        return false;
    }
    *out = PyMem_Calloc((size_t)count + 1, sizeof **out);
    if (!*out) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        (*out)[i] = PyObject_IsTrue(PyList_GetItem(list, i)) == 1;
    return true;
}

/* ---- tracing ---- */
static PyObject *trace_enter(PyObject *module, PyObject *shapeless) {
    (void)module;
    gm_trace_enter();
    if (shapeless == Py_True)
        gm_shapeless_enter();
    Py_RETURN_NONE;
}

static PyObject *trace_leave(PyObject *module, PyObject *shapeless) {
    (void)module;
    if (shapeless == Py_True)
        gm_shapeless_leave();
    gm_trace_leave();
    Py_RETURN_NONE;
}

static PyObject *tracers(PyObject *module, PyObject *list) {
    module_state *state = PyModule_GetState(module);
    node_list in = {NULL, 0};
    gm_scope *scope = gm_scope_open();
    PyObject *result = NULL;
    if (scope && read_nodes(state, scope, list, false, &in)) {
        bool ok = true;
        for (Py_ssize_t i = 0; ok && i < in.count; i++)
            ok = (in.nodes[i] = gm_tracer(scope, in.nodes[i])) != NULL;
        result = ok ? node_handles(state, in.nodes, in.count) : NULL;
    }
    PyMem_Free(in.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

/* (arrays, axes): a placeholder for each, without the axis where one is given. */
static PyObject *placeholders(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    node_list in = {NULL, 0};
    PyObject *list, *axes, *result = NULL;
    if (!PyArg_ParseTuple(args, "OO!", &list, &PyList_Type, &axes))
        return NULL;
    gm_scope *scope = gm_scope_open();
    bool ok = scope && read_nodes(state, scope, list, false, &in);
    for (Py_ssize_t i = 0; ok && i < in.count; i++) {
        int64_t shape[GM_MAX_NDIM];
        int ndim = gm_array_ndim(in.nodes[i]), axis = -1, n = 0;
        PyObject *given = i < PyList_Size(axes) ? PyList_GetItem(axes, i) : Py_None;
        ok = given == Py_None || read_int(given, "axis", &axis);
        for (int d = 0; d < ndim; d++)
            if (d != axis)
                shape[n++] = gm_array_shape(in.nodes[i])[d];
        ok = ok && (in.nodes[i] = gm_placeholder(scope, gm_array_dtype(in.nodes[i]), n, shape));
    }
    result = ok ? node_handles(state, in.nodes, in.count) : NULL;
    PyMem_Free(in.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

/* New handles on the same nodes: what is assigned to them leaves the others as they are. */
static PyObject *copies(PyObject *module, PyObject *list) {
    module_state *state = PyModule_GetState(module);
    node_list in = {NULL, 0};
    gm_scope *scope = gm_scope_open();
    bool ok = scope && read_nodes(state, scope, list, false, &in);
    PyObject *result = ok ? node_handles(state, in.nodes, in.count) : NULL;
    PyMem_Free(in.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

static PyObject *any_tracer(PyObject *module, PyObject *list) {
    module_state *state = PyModule_GetState(module);
    if (!PyList_Check(list))
        return raise_gm(state);
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        gm_array *node = py_array_node(state, PyList_GetItem(list, i));
        if (node && gm_array_is_tracer(node))
            Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

/* A number that is the same for two handles exactly when their node is. */
static PyObject *node_id(PyObject *module, PyObject *array) {
    return PyLong_FromVoidPtr(py_array_node(PyModule_GetState(module), array));
}

/* What makes the array; None for data. */
static PyObject *op_name(PyObject *module, PyObject *array) {
    const gm_array *node = py_array_node(PyModule_GetState(module), array);
    const char *name = node ? gm_array_op_name(node) : NULL;
    return name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
}

/* ---- transforms ---- */
static PyObject *vjp(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *outputs, *cotangents, *primals, *result = NULL;
    node_list o = {NULL, 0}, c = {NULL, 0}, p = {NULL, 0};
    if (!PyArg_ParseTuple(args, "OOO", &outputs, &cotangents, &primals))
        return NULL;
    gm_scope *scope = transform_scope();
    if (scope && read_nodes(state, scope, outputs, false, &o) && read_nodes(state, scope, cotangents, false, &c) &&
        read_nodes(state, scope, primals, false, &p) && o.count == c.count) {
        gm_array **grads = PyMem_Calloc((size_t)p.count + 1, sizeof *grads);
        if (grads && gm_vjp(scope, o.nodes, c.nodes, (int)o.count, p.nodes, (int)p.count, grads) == GM_OK)
            result = node_handles(state, grads, p.count);
        PyMem_Free(grads);
    }
    PyMem_Free(o.nodes);
    PyMem_Free(c.nodes);
    PyMem_Free(p.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

static PyObject *jvp(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *outputs, *primals, *tangents, *result = NULL;
    node_list o = {NULL, 0}, p = {NULL, 0}, t = {NULL, 0};
    if (!PyArg_ParseTuple(args, "OOO", &outputs, &primals, &tangents))
        return NULL;
    gm_scope *scope = transform_scope();
    if (scope && read_nodes(state, scope, outputs, false, &o) && read_nodes(state, scope, primals, false, &p) &&
        read_nodes(state, scope, tangents, false, &t) && p.count == t.count) {
        gm_array **out = PyMem_Calloc((size_t)o.count + 1, sizeof *out);
        if (out && gm_jvp(scope, o.nodes, (int)o.count, p.nodes, t.nodes, (int)p.count, out) == GM_OK)
            result = node_handles(state, out, o.count);
        PyMem_Free(out);
    }
    PyMem_Free(o.nodes);
    PyMem_Free(p.nodes);
    PyMem_Free(t.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

/* (outputs, inputs, values, batched) -> (arrays, flags) */
static PyObject *vmap(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *outputs, *inputs, *values, *flags, *result = NULL;
    node_list o = {NULL, 0}, in = {NULL, 0}, v = {NULL, 0};
    bool *batched = NULL;
    if (!PyArg_ParseTuple(args, "OOOO", &outputs, &inputs, &values, &flags))
        return NULL;
    gm_scope *scope = transform_scope();
    if (scope && read_nodes(state, scope, outputs, false, &o) && read_nodes(state, scope, inputs, false, &in) &&
        read_nodes(state, scope, values, false, &v) && in.count == v.count && read_flags(flags, in.count, &batched)) {
        gm_array **out = PyMem_Calloc((size_t)o.count + 1, sizeof *out);
        bool *out_batched = PyMem_Calloc((size_t)o.count + 1, sizeof *out_batched);
        const gm_arrays from = {in.nodes, (int)in.count}, to = {o.nodes, (int)o.count};
        if (out && out_batched && gm_vmap(scope, to, from, v.nodes, batched, out, out_batched) == GM_OK) {
            PyObject *arrays = node_handles(state, out, o.count), *truths = PyList_New(o.count);
            for (Py_ssize_t i = 0; truths && i < o.count; i++)
                PyList_SetItem(truths, i, PyBool_FromLong(out_batched[i]));
            result = arrays && truths ? PyTuple_Pack(2, arrays, truths) : NULL;
            Py_XDECREF(arrays);
            Py_XDECREF(truths);
        }
        PyMem_Free(out);
        PyMem_Free(out_batched);
    }
    PyMem_Free(batched);
    PyMem_Free(o.nodes);
    PyMem_Free(in.nodes);
    PyMem_Free(v.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

/* ---- functions with rules of their own ---- */
/* The callables of one custom function. Its first member makes it a record that foreign_push can give back. */
typedef struct {
    foreign record;
    module_state *state;
    PyObject *vjp, *jvp, *vmap; /* NULL: none */
} callables;

static void give_back(foreign *record) {
    callables *c = (callables *)record;
    Py_XDECREF(c->vjp);
    Py_XDECREF(c->jvp);
    Py_XDECREF(c->vmap);
    PyMem_Free(c);
}

/* fn(*lists) must give a list of `count` arrays or None; they go into outs, kept by the scope. An exception stays set;
 * raise_gm lets it through. */
static gm_status call_python(callables *c, gm_scope *scope, PyObject *fn, PyObject *args, int count, gm_array **outs) {
    PyObject *list = args ? PyObject_CallObject(fn, args) : NULL;
    node_list nodes = {NULL, 0};
    bool ok = list && read_nodes(c->state, scope, list, true, &nodes);
    if (ok && nodes.count != count) {
        PyErr_Format(PyExc_ValueError, "a rule of a custom function gave %zd arrays; %d are needed", nodes.count,
                     count);
        ok = false;
    }
    for (int i = 0; ok && i < count; i++)
        outs[i] = nodes.nodes[i];
    PyMem_Free(nodes.nodes);
    Py_XDECREF(list);
    Py_XDECREF(args);
    return ok ? GM_OK : GM_ESTATE;
}

static gm_status call_vjp(void *payload, gm_scope *scope, gm_arrays inputs, gm_array *const *cotangents,
                          gm_arrays outputs, gm_array **grads) {
    callables *c = payload;
    PyObject *args = Py_BuildValue("(NNN)", node_handles(c->state, inputs.arrays, inputs.count),
                                   node_handles(c->state, cotangents, outputs.count),
                                   node_handles(c->state, outputs.arrays, outputs.count));
    return call_python(c, scope, c->vjp, args, inputs.count, grads);
}

static gm_status call_jvp(void *payload, gm_scope *scope, gm_array *const *inputs, gm_array *const *tangents,
                          int n_inputs, int n_outputs, gm_array **outs) {
    callables *c = payload;
    PyObject *args = Py_BuildValue("(NN)", node_handles(c->state, inputs, n_inputs),
                                   node_handles(c->state, tangents, n_inputs));
    return call_python(c, scope, c->jvp, args, n_outputs, outs);
}

static gm_status call_vmap(void *payload, gm_scope *scope, gm_array *const *inputs, const bool *batched, int n_inputs,
                           int n_outputs, gm_array **outs) {
    callables *c = payload;
    PyObject *flags = PyList_New(n_inputs);
    for (int i = 0; flags && i < n_inputs; i++)
        PyList_SetItem(flags, i, PyBool_FromLong(batched[i]));
    PyObject *args = Py_BuildValue("(NN)", node_handles(c->state, inputs, n_inputs), flags);
    return call_python(c, scope, c->vmap, args, n_outputs, outs);
}

static PyObject *optional(PyObject *value) { return value == Py_None ? NULL : Py_NewRef(value); }

/* (inputs, outputs, vjp, jvp, vmap) -> arrays */
static PyObject *custom(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *inputs, *outputs, *on_vjp, *on_jvp, *on_vmap, *result = NULL;
    node_list in = {NULL, 0}, o = {NULL, 0};
    if (!PyArg_ParseTuple(args, "OOOOO", &inputs, &outputs, &on_vjp, &on_jvp, &on_vmap))
        return NULL;
    gm_scope *scope = transform_scope();
    if (scope && read_nodes(state, scope, inputs, false, &in) && read_nodes(state, scope, outputs, false, &o)) {
        callables *c = PyMem_Calloc(1, sizeof *c);
        gm_array **results = PyMem_Calloc((size_t)o.count + 1, sizeof *results);
        if (c && results) {
            *c = (callables){{NULL, give_back}, state, optional(on_vjp), optional(on_jvp), optional(on_vmap)};
            gm_closure closure = {c->vjp ? call_vjp : NULL, c->jvp ? call_jvp : NULL, c->vmap ? call_vmap : NULL,
                                  foreign_push, c};
            if (gm_custom(scope, &closure, in.nodes, (int)in.count, o.nodes, (int)o.count, results) == GM_OK)
                result = node_handles(state, results, o.count);
        } else {
            PyMem_Free(c);
            PyErr_NoMemory();
        }
        PyMem_Free(results);
    }
    PyMem_Free(in.nodes);
    PyMem_Free(o.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

PyMethodDef transform_functions[] = {
    {"_trace_enter", trace_enter, METH_O, NULL},
    {"_trace_leave", trace_leave, METH_O, NULL},
    {"_tracers", tracers, METH_O, NULL},
    {"_placeholders", placeholders, METH_VARARGS, NULL},
    {"_copies", copies, METH_O, NULL},
    {"_any_tracer", any_tracer, METH_O, NULL},
    {"_node_id", node_id, METH_O, NULL},
    {"_op_name", op_name, METH_O, NULL},
    {"_vjp", vjp, METH_VARARGS, NULL},
    {"_jvp", jvp, METH_VARARGS, NULL},
    {"_vmap", vmap, METH_VARARGS, NULL},
    {"_custom", custom, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
