/* graph.c - traced graphs as Python objects, and the signatures by which they are found again. */
#include "py/py.h"
#include <string.h>

/* ---- signatures ---- */
/* What a traced graph depends on, as bytes: the device of new nodes, the structure of a tree, its constants, the dtypes
 * and shapes of its arrays. Every item tells its own end, so signatures may be joined. */
typedef struct {
    module_state *state;
    PyObject *leaves; /* the tree's arrays are appended to it */
    bool shapeless;   /* the number of dimensions instead of the shape */
    bool constants;   /* what is not an array belongs to it; else that is passed over */
    unsigned char *bytes;
    size_t size, capacity;
} signer;

static bool put(signer *s, const void *bytes, size_t n) {
    if (!py_grow(&s->bytes, s->size, &s->capacity, n, 1))
        return false;
    memcpy(s->bytes + s->size, bytes, n);
    s->size += n;
    return true;
}

static bool put_tag(signer *s, char tag, int64_t number) { return put(s, &tag, 1) && put(s, &number, sizeof number); }

static bool put_text(signer *s, char tag, PyObject *text) {
    Py_ssize_t n;
    PyObject *encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    char *bytes;
    bool ok = encoded && PyBytes_AsStringAndSize(encoded, &bytes, &n) == 0 && put_tag(s, tag, n) &&
              put(s, bytes, (size_t)n);
    Py_XDECREF(encoded);
    return ok;
}

static bool put_repr(signer *s, char tag, PyObject *value) {
    PyObject *text = PyObject_Repr(value);
    bool ok = text && put_text(s, tag, text);
    Py_XDECREF(text);
    return ok;
}

static bool put_array(signer *s, PyObject *array, const gm_array *node) {
    char head[3] = {'a', (char)gm_array_dtype(node), (char)gm_array_ndim(node)};
    return put(s, head, sizeof head) &&
           (s->shapeless || put(s, gm_array_shape(node), (size_t)gm_array_ndim(node) * sizeof(int64_t))) &&
           PyList_Append(s->leaves, array) == 0;
}

static bool put_constant(signer *s, PyObject *value) {
    if (value == Py_None)
        return put(s, "n", 1);
    if (PyBool_Check(value))
        return put_tag(s, 'b', value == Py_True);
    if (PyFloat_Check(value)) {
        double number = PyFloat_AsDouble(value);
        return put(s, "f", 1) && put(s, &number, sizeof number);
    }
    if (PyLong_Check(value)) {
        int overflow;
        int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow ? put_repr(s, 'I', value) : put_tag(s, 'i', number);
    }
    if (PyUnicode_Check(value))
        return put_text(s, 's', value);
    PyErr_Format(PyExc_ValueError,
                 "compile: arguments must be trees of arrays and constants (numbers, strings, None), "
                 "not %R",
                 (PyObject *)Py_TYPE(value));
    return false;
}

static bool put_tree(signer *s, PyObject *tree);

static bool put_dict(signer *s, PyObject *tree) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    bool ok = put_tag(s, '{', PyDict_Size(tree));
    while (ok && PyDict_Next(tree, &at, &key, &value)) {
        Py_INCREF(key), Py_INCREF(value);
        ok = (PyUnicode_Check(key) ? put_text(s, 's', key) : put_repr(s, 'k', key)) && put_tree(s, value);
        Py_DECREF(key), Py_DECREF(value);
    }
    return ok;
}

static bool put_sequence(signer *s, PyObject *tree) {
    PyObject *items = PySequence_Fast(tree, "a list or tuple is needed");
    PyTypeObject *type = Py_TYPE(tree);
    Py_ssize_t n = items ? PySequence_Size(items) : 0;
    bool ok = items && put_tag(s, PyList_Check(tree) ? '[' : '(', n) &&
              (!PyTuple_Check(tree) || PyTuple_CheckExact(tree) || put(s, &type, sizeof type));
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *item = PySequence_GetItem(items, i);
        ok = item && put_tree(s, item);
        Py_XDECREF(item);
    }
    Py_XDECREF(items);
    return ok;
}

static bool put_tree(signer *s, PyObject *tree) {
    const gm_array *node = py_array_node(s->state, tree);
    if (node)
        return put_array(s, tree, node);
    bool is_dict = PyDict_Check(tree);
    if (!is_dict && !PyList_Check(tree) && !PyTuple_Check(tree))
        return s->constants ? put_constant(s, tree) : put(s, ".", 1);
    if (Py_EnterRecursiveCall(" in a nested tree"))
        return false;
    bool ok = is_dict ? put_dict(s, tree) : put_sequence(s, tree);
    Py_LeaveRecursiveCall();
    return ok;
}

/* (tree, shapeless, leaves, constants) -> bytes */
static PyObject *signature_of(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 4 || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "_signature: a tree, a bool, a list and a bool are needed");
        return NULL;
    }
    signer s = {PyModule_GetState(module), args[2], args[1] == Py_True, args[3] == Py_True, NULL, 0, 0};
    const bool ok = put_tag(&s, 'd', gm_device_current()) && put_tree(&s, args[0]);
    PyObject *result = ok ? PyBytes_FromStringAndSize((char *)s.bytes, (Py_ssize_t)s.size) : NULL;
    PyMem_Free(s.bytes);
    return result;
}

/* ---- graphs ---- */
typedef struct { PyObject_HEAD gm_graph *graph; } graph_object;

static void graph_dealloc(PyObject *self) {
    gm_graph_free(((graph_object *)self)->graph);
    object_free(self);
}

static PyObject *graph_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    module_state *state = state_of(self, graph_dealloc);
    const gm_graph *graph = ((graph_object *)self)->graph;
    PyObject *list, *result = NULL;
    node_list in = {NULL, 0};
    if (!PyArg_ParseTuple(args, "O", &list))
        return NULL;
    gm_scope *scope = gm_scope_open();
    int n_out = gm_graph_outputs(graph);
    gm_array **outs = PyMem_Calloc((size_t)n_out + 1, sizeof *outs);
    if (scope && outs && read_nodes(state, scope, list, false, &in) &&
        gm_graph_call(scope, graph, in.nodes, (int)in.count, outs) == GM_OK)
        result = node_handles(state, outs, n_out);
    PyMem_Free(in.nodes);
    PyMem_Free(outs);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}

static PyObject *captures_tracer(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(gm_graph_captures_tracer(((graph_object *)self)->graph));
}

static PyMethodDef graph_methods[] = {
    {"captures_tracer", captures_tracer, METH_NOARGS, "Whether it holds an array of a trace that is under way now."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot graph_slots[] = {
    {Py_tp_methods, graph_methods},
    {Py_tp_doc, "A traced graph of arrays: called with a list of arrays, gives a list of arrays."},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_call, graph_call},
    {0, NULL},
};
PyType_Spec py_graph_spec = {"gomlx.core.Graph", sizeof(graph_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, graph_slots};

/* What becomes of a traced graph. */
typedef enum {
    GRAPH_PLAIN, /* simplified */
    GRAPH_FUSED, /* and elementwise chains made one */
    GRAPH_WHOLE, /* plain, with what does not depend on the inputs too */
} graph_kind;

static gm_status build_graph(const node_list *in, const node_list *out, bool shapeless, graph_kind kind,
                             gm_graph **graph) {
    gm_status status;
    if (kind == GRAPH_WHOLE) {
        Py_BEGIN_ALLOW_THREADS /* it waits for evaluations that are under way */
            status = gm_graph_whole(in->nodes, (int)in->count, out->nodes, (int)out->count, graph);
        Py_END_ALLOW_THREADS return status;
    }
    status = gm_graph_new(in->nodes, (int)in->count, out->nodes, (int)out->count, shapeless, graph);
    if (status == GM_OK && kind == GRAPH_FUSED && shapeless)
        status = gm_graph_check_shapeless(*graph);
    return status == GM_OK && kind == GRAPH_FUSED ? gm_graph_fuse(*graph) : status;
}

/* (inputs, outputs, shapeless, kind) -> Graph */
static PyObject *make_graph(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *inputs, *outputs;
    int shapeless, kind;
    node_list in = {NULL, 0}, o = {NULL, 0};
    gm_graph *graph = NULL;
    if (!PyArg_ParseTuple(args, "OOpi", &inputs, &outputs, &shapeless, &kind))
        return NULL;
    gm_scope *scope = transform_scope();
    bool ok = scope && read_nodes(state, scope, inputs, false, &in) && read_nodes(state, scope, outputs, false, &o) &&
              build_graph(&in, &o, shapeless, (graph_kind)kind, &graph) == GM_OK;
    PyMem_Free(in.nodes);
    PyMem_Free(o.nodes);
    gm_scope_close(scope);
    graph_object *object = ok ? (graph_object *)PyType_GenericAlloc(state->graph_type, 0) : NULL;
    if (!object) {
        gm_graph_free(graph);
        return raise_gm(state);
    }
    object->graph = graph;
    return (PyObject *)object;
}

const gm_graph *py_graph(module_state *state, PyObject *object) {
    return Py_IS_TYPE(object, state->graph_type) ? ((graph_object *)object)->graph : NULL;
}

PyMethodDef graph_functions[] = {
    {"_signature", FUNCTION(signature_of), METH_FASTCALL, NULL},
    {"_graph", make_graph, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
