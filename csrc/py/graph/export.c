/* export.c - what gomlx/core/_export.py is built on: the exporter's file, what was read from one, graphs as Python
 * values. */
#include "py/py.h"
#include <string.h>

/* ---- the exporter ---- */
typedef struct {
    PyObject_HEAD gm_exporter *exporter;
    bool busy;
} exporter_object;

static void exporter_dealloc(PyObject *self) {
    gm_export_close(((exporter_object *)self)->exporter, false);
    object_free(self);
}

/* The exporter, for one call at a time; NULL with an exception when it is closed or in use. */
static gm_exporter *begin(exporter_object *self) {
    if (!self->exporter || self->busy) {
        PyErr_SetString(PyExc_RuntimeError,
                        self->busy ? "exporter: in use by another thread" : "exporter: it is closed");
        return NULL;
    }
    self->busy = true;
    return self->exporter;
}

/* Borrowed texts of a list of strings and None, in memory of PyMem_Malloc. */
static const char **read_names(PyObject *list, Py_ssize_t count) {
    bool fits = PyList_Check(list) && PyList_Size(list) == count;
    const char **names = fits ? PyMem_Calloc((size_t)count + 1, sizeof *names) : NULL;
    if (!names) {
        PyErr_SetString(PyExc_TypeError, "exporter: a name or None for each input is needed");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (item != Py_None && !(names[i] = PyUnicode_AsUTF8AndSize(item, NULL))) {
            PyMem_Free(names);
            return NULL;
        }
    }
    return names;
}

/* trace(inputs, names, outputs) */
static PyObject *exporter_trace(PyObject *self, PyObject *args) {
    module_state *state = state_of(self, exporter_dealloc);
    PyObject *inputs, *names, *outputs;
    node_list in = {NULL, 0}, o = {NULL, 0};
    if (!PyArg_ParseTuple(args, "OOO", &inputs, &names, &outputs))
        return NULL;
    gm_scope *scope = transform_scope();
    const char **texts = NULL;
    gm_exporter *exporter = NULL;
    bool ok = scope && read_nodes(state, scope, inputs, false, &in) && read_nodes(state, scope, outputs, false, &o) &&
              (texts = read_names(names, in.count)) && (exporter = begin((exporter_object *)self));
    if (ok) {
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_export_trace(exporter, in.nodes, texts, (int)in.count, o.nodes,
                                                        (int)o.count);
        Py_END_ALLOW_THREADS((exporter_object *)self)->busy = false;
        ok = status == GM_OK;
    }
    PyMem_Free(in.nodes);
    PyMem_Free(o.nodes);
    PyMem_Free(texts);
    gm_scope_close(scope);
    if (!ok)
        return raise_gm(state);
    Py_RETURN_NONE;
}

/* close(keep): the file is there afterwards, or not. */
static PyObject *exporter_close(PyObject *self, PyObject *keep) {
    exporter_object *object = (exporter_object *)self;
    if (!object->exporter)
        Py_RETURN_NONE;
    gm_exporter *exporter = begin(object);
    if (!exporter)
        return NULL;
    gm_status status;
    object->exporter = NULL;
    Py_BEGIN_ALLOW_THREADS status = gm_export_close(exporter, keep == Py_True);
    Py_END_ALLOW_THREADS object->busy = false;
    if (status != GM_OK)
        return raise_gm(state_of(self, exporter_dealloc));
    Py_RETURN_NONE;
}

static PyMethodDef exporter_methods[] = {
    {"trace", exporter_trace, METH_VARARGS, "Adds a traced graph: placeholders, their names, outputs."},
    {"close", exporter_close, METH_O, "Ends the file; with False there is none."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot exporter_slots[] = {
    {Py_tp_doc, "The file of an exported function while it is written."},
    {Py_tp_dealloc, exporter_dealloc},
    {Py_tp_methods, exporter_methods},
    {0, NULL},
};
PyType_Spec py_exporter_spec = {"gomlx.core.Exporter", sizeof(exporter_object), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, exporter_slots};

/* (path, shapeless, metadata or None) -> Exporter */
static PyObject *open_exporter(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *path, *bytes;
    const char *metadata;
    int shapeless;
    if (!PyArg_ParseTuple(args, "Opz", &path, &shapeless, &metadata) || !PyUnicode_FSConverter(path, &bytes))
        return NULL;
    exporter_object *object = (exporter_object *)PyType_GenericAlloc(state->exporter_type, 0);
    gm_status status = object ? gm_export_open(PyBytes_AsString(bytes), shapeless, metadata, &object->exporter) : GM_OK;
    Py_DECREF(bytes);
    if (status != GM_OK) {
        Py_DECREF(object);
        return raise_gm(state);
    }
    return (PyObject *)object;
}

/* ---- reading ---- */
static PyObject *names_of(const gm_traced *t) {
    PyObject *list = PyList_New(t->n_inputs);
    for (int k = 0; list && k < t->n_inputs; k++) {
        PyObject *name = t->names[k] ? PyUnicode_DecodeUTF8(t->names[k], (Py_ssize_t)strlen(t->names[k]), "replace")
                                     : Py_NewRef(Py_None);
        if (!name)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, name);
    }
    return list;
}

static PyObject *traces_of(module_state *state, const gm_import *import) {
    PyObject *list = PyList_New(gm_import_traces(import));
    for (int i = 0; list && i < gm_import_traces(import); i++) {
        gm_traced t = gm_import_trace(import, i);
        PyObject *inputs = node_handles(state, t.inputs, t.n_inputs), *names = names_of(&t);
        PyObject *outputs = node_handles(state, t.outputs, t.n_outputs);
        PyObject *item = inputs && names && outputs ? PyTuple_Pack(3, inputs, names, outputs) : NULL;
        Py_XDECREF(inputs);
        Py_XDECREF(names);
        Py_XDECREF(outputs);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, item);
    }
    return list;
}

/* path -> (metadata, shapeless, [(placeholders, names, outputs)]) */
static PyObject *import_file(PyObject *module, PyObject *path) {
    module_state *state = PyModule_GetState(module);
    PyObject *bytes, *result = NULL;
    gm_import *import = NULL;
    gm_status status;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    const char *name = PyBytes_AsString(bytes);
    Py_BEGIN_ALLOW_THREADS status = gm_import_open(name, &import);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status == GM_OK) {
        const char *metadata = gm_import_metadata(import) ? gm_import_metadata(import) : "";
        PyObject *text = PyUnicode_DecodeUTF8(metadata, (Py_ssize_t)strlen(metadata), "replace");
        PyObject *traces = traces_of(state, import), *shapeless = PyBool_FromLong(gm_import_is_shapeless(import));
        result = text && traces ? PyTuple_Pack(3, text, shapeless, traces) : NULL;
        Py_XDECREF(text);
        Py_XDECREF(traces);
        Py_XDECREF(shapeless);
    }
    gm_import_close(import);
    return result ? result : raise_gm(state);
}

/* ---- graphs as Python values ---- */
static PyObject *spec_of(module_state *state, const gm_array *a) {
    PyObject *shape = shape_tuple(a);
    PyObject *pair = shape ? PyTuple_Pack(2, shape, state->dtypes[gm_array_dtype(a)]) : NULL;
    Py_XDECREF(shape);
    return pair;
}

static PyObject *operands_of(const int32_t *list, int n) {
    PyObject *out = PyList_New(n);
    for (int k = 0; out && k < n; k++)
        PyList_SetItem(out, k, PyLong_FromLong(list[k]));
    return out;
}

static PyObject *item_of(module_state *state, const gm_parameter *p, int j) {
    if (strcmp(p->name, "dtype") == 0)
        return Py_NewRef(state->dtypes[p->integers[j]]);
    return p->is_real ? PyFloat_FromDouble(p->reals[j]) : PyLong_FromLongLong(p->integers[j]);
}

static PyObject *parameter_of(module_state *state, const gm_graph *g, int64_t i, int k) {
    gm_parameter p;
    gm_graph_parameter(g, i, k, &p);
    if (!p.is_list && p.count == 1)
        return item_of(state, &p, 0);
    PyObject *list = PyList_New(p.count);
    for (int j = 0; list && j < p.count; j++)
        PyList_SetItem(list, j, item_of(state, &p, j));
    return list;
}

/* (name, parameters, operands, first result, [(shape, dtype) of each result]); the parameters of a fused chain are the
 * names of its parts. */
static PyObject *instruction_of(module_state *state, const gm_graph *g, int64_t i) {
    gm_instruction at = gm_graph_instruction(g, i);
    const char *titles[GM_GRAPH_TITLES];
    const int n_titles = gm_graph_titles(g, i, titles);
    PyObject *parameters = PyList_New(n_titles ? n_titles : at.n_parameters), *results = PyList_New(at.n_out);
    for (int k = 0; parameters && k < PyList_Size(parameters); k++)
        PyList_SetItem(parameters, k, n_titles ? PyUnicode_FromString(titles[k]) : parameter_of(state, g, i, k));
    for (int k = 0; results && k < at.n_out; k++)
        PyList_SetItem(results, k, spec_of(state, gm_graph_result(g, i, k)));
    PyObject *in = operands_of(at.in, at.n_in);
    if (!parameters || !results || !in || PyErr_Occurred()) {
        Py_XDECREF(parameters);
        Py_XDECREF(results);
        Py_XDECREF(in);
        return NULL;
    }
    return Py_BuildValue("(sNNiN)", at.name, parameters, in, at.first_out, results);
}

static PyObject *constants_of(module_state *state, const gm_graph *g) {
    PyObject *list = PyList_New((Py_ssize_t)gm_graph_constants(g));
    for (int64_t k = 0; list && k < gm_graph_constants(g); k++) {
        gm_array *node = gm_graph_constant(g, k);
        PyObject *item = node == GM_NONE ? Py_NewRef(Py_None) : py_array_handle(state->array_type, gm_retain(node));
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)k, item);
    }
    return list;
}

/* Graph -> ([(shape, dtype) of each input], constants, instructions, operands of the outputs) */
static PyObject *describe(PyObject *module, PyObject *object) {
    module_state *state = PyModule_GetState(module);
    const gm_graph *g = py_graph(state, object);
    if (!g) {
        PyErr_Format(PyExc_TypeError, "a graph is needed, not %R", (PyObject *)Py_TYPE(object));
        return NULL;
    }
    PyObject *inputs = PyList_New(gm_graph_inputs(g)), *code = PyList_New((Py_ssize_t)gm_graph_instructions(g));
    for (int k = 0; inputs && k < gm_graph_inputs(g); k++)
        PyList_SetItem(inputs, k, spec_of(state, gm_graph_input(g, k)));
    for (int64_t i = 0; code && i < gm_graph_instructions(g); i++)
        PyList_SetItem(code, (Py_ssize_t)i, instruction_of(state, g, i));
    PyObject *constants = constants_of(state, g);
    PyObject *outputs = operands_of(gm_graph_output_operands(g), gm_graph_outputs(g));
    if (!inputs || !code || !constants || !outputs || PyErr_Occurred()) {
        Py_XDECREF(inputs);
        Py_XDECREF(code);
        Py_XDECREF(constants);
        Py_XDECREF(outputs);
        return NULL;
    }
    return Py_BuildValue("(NNNN)", inputs, constants, code, outputs);
}

PyMethodDef export_functions[] = {
    {"_exporter", open_exporter, METH_VARARGS, NULL},
    {"_import", import_file, METH_O, NULL},
    {"_describe", describe, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
