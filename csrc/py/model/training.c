/* training.c - what training asks of a Model: rows of sequences with gradients to adapters, and the loss of its head.
 */
#include "py/model/inspect.h"
#include <string.h>

typedef struct {
    gm_adapter_term *all;
    size_t n;
} term_list;

static void terms_free(term_list *t) {
    for (size_t i = 0; i < t->n; i++) {
        PyMem_Free((void *)(uintptr_t)t->all[i].layer);
        gm_release(t->all[i].a);
        gm_release(t->all[i].b);
    }
    PyMem_Free(t->all);
}

static char *text_copy(PyObject *text) {
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "terms: a layer is named by a str, not %R", (PyObject *)Py_TYPE(text));
        return NULL;
    }
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    const size_t n = bytes ? (size_t)PyBytes_Size(bytes) : 0;
    char *copy = bytes ? PyMem_Malloc(n + 1) : NULL;
    if (copy)
        memcpy(copy, PyBytes_AsString(bytes), n + 1);
    else if (bytes)
        PyErr_NoMemory();
    Py_XDECREF(bytes);
    if (copy && strlen(copy) != n) {
        PyErr_Format(PyExc_ValueError, "terms: the layer %R has a zero in its name", text);
        PyMem_Free(copy);
        return NULL;
    }
    return copy;
}

/* One tuple (layer, a, b, scale). The nodes are retained: __float__ may run anything, and give the arrays others. */
static bool term_read(module_state *state, PyObject *item, gm_adapter_term *to) {
    if (!PyTuple_Check(item) || PyTuple_Size(item) != 4) {
        PyErr_Format(PyExc_TypeError, "terms: expected tuples (layer, a, b, scale), found %R", item);
        return false;
    }
    to->scale = (float)PyFloat_AsDouble(PyTuple_GetItem(item, 3));
    if (PyErr_Occurred() || !(to->layer = text_copy(PyTuple_GetItem(item, 0))))
        return false;
    to->a = gm_retain(py_array_node(state, PyTuple_GetItem(item, 1)));
    to->b = to->a ? gm_retain(py_array_node(state, PyTuple_GetItem(item, 2))) : NULL;
    if (!to->b && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "terms: a and b of %R are not both arrays", PyTuple_GetItem(item, 0));
    return to->b != NULL;
}

static bool terms_read(module_state *state, PyObject *items, term_list *t) {
    const size_t n = (size_t)PyTuple_Size(items);
    t->all = PyMem_Calloc(n + 1, sizeof *t->all);
    if (!t->all) {
        PyErr_NoMemory();
        return false;
    }
    while (t->n < n) {
        const size_t i = t->n++; /* what is read of it is given back, also when it fails */
        if (!term_read(state, PyTuple_GetItem(items, (Py_ssize_t)i), &t->all[i]))
            return false;
    }
    return true;
}

static bool check_lengths(const gm_training_batch *b, size_t n_ids) {
    int64_t total = 0;
    for (int64_t i = 0; i < b->n_sequences; i++)
        total += b->lengths[i];
    if (total == (int64_t)n_ids)
        return true;
    PyErr_Format(PyExc_ValueError, "rows: lengths add up to %lld for %zu tokens", (long long)total, n_ids);
    return false;
}

PyObject *py_model_rows(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"rows", 0, 2, 3, {"ids", "lengths", "terms", "int8", "checkpoints", NULL}};
    module_state *state = py_model_state(self);
    PyObject *v[5], *items = NULL, *result = NULL;
    int32_t *ids = NULL, *lengths = NULL;
    size_t n_ids, n_lengths;
    term_list terms = {NULL, 0};
    int int8 = 0, checkpoints = 0;
    const bool read = read_arguments(&sig, args, n, kwnames, v) && read_ids(v[0], &ids, &n_ids) &&
                      read_ids(v[1], &lengths, &n_lengths) &&
                      (items = v[2] ? PySequence_Tuple(v[2]) : PyTuple_New(0)) && terms_read(state, items, &terms) &&
                      (int8 = v[3] ? PyObject_IsTrue(v[3]) : 0) >= 0 &&
                      (checkpoints = v[4] ? PyObject_IsTrue(v[4]) : 0) >= 0;
    gm_model *model = read ? py_model_open(self) : NULL;
    if (model) {
        const gm_training_batch batch = {.tokens = ids,
                                         .lengths = lengths,
                                         .n_sequences = (int64_t)n_lengths,
                                         .terms = terms.all,
                                         .n_terms = terms.n,
                                         .int8 = int8,
                                         .checkpoints = checkpoints};
        gm_scope *scope = gm_scope_open();
        const bool fits = scope && check_lengths(&batch, n_ids);
        result = py_array_result(state, scope, fits ? gm_model_rows(scope, model, &batch) : NULL);
    }
    terms_free(&terms);
    Py_XDECREF(items);
    PyMem_Free(ids);
    PyMem_Free(lengths);
    return result;
}

PyObject *py_model_loss(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"loss", 0, 2, 3, {"rows", "targets", "gradient", NULL}};
    module_state *state = py_model_state(self);
    PyObject *v[3], *result = NULL;
    int32_t *targets = NULL;
    size_t n_targets;
    int gradient = 0;
    const bool read = read_arguments(&sig, args, n, kwnames, v) && read_ids(v[1], &targets, &n_targets) &&
                      (gradient = v[2] ? PyObject_IsTrue(v[2]) : 0) >= 0;
    gm_array *rows = read ? py_array_node(state, v[0]) : NULL;
    if (read && !rows && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "loss: expected an array, found %R", (PyObject *)Py_TYPE(v[0]));
    gm_model *model = rows ? py_model_open(self) : NULL;
    if (model) {
        gm_scope *scope = gm_scope_open();
        result = py_array_result(
            state, scope, scope ? gm_model_loss(scope, model, rows, targets, (int64_t)n_targets, gradient) : NULL);
    }
    PyMem_Free(targets);
    return result;
}
