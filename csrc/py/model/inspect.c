/* inspect.c - activations of a Model: what there is, a pass that is looked at, the head on its own. */
#include "py/model/adapters.h"
#include "py/model/inspect.h"
#include <string.h>

/* ---- arguments ---- */
void edits_free(edit_list *e) {
    for (size_t i = 0; i < e->n; i++)
        gm_release(e->edits[i].value);
    PyMem_Free(e->edits);
    *e = (edit_list){NULL, 0};
}

static bool read_edit(module_state *state, PyObject *item, gm_edit *out) {
    long long activation, from, to;
    int replaces;
    PyObject *array;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "LpOLL", &activation, &replaces, &array, &from, &to)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "edits: expected tuples (activation, replaces, array, from, to)");
        return false;
    }
    gm_array *node = py_array_node(state, array);
    if (!node) {
        PyErr_Format(PyExc_TypeError, "edits: expected an array, found %R", (PyObject *)Py_TYPE(array));
        return false;
    }
    *out = (gm_edit){.activation = activation, .replaces = replaces, .value = gm_retain(node), .from = from, .to = to};
    gm_array *made = NULL, *host = evaluate_one(state, out->value) ? host_node(state, out->value, &made) : NULL;
    if (host && !made)
        return true;
    gm_release(out->value);
    out->value = host; /* which plans read */
    return host != NULL;
}

bool edits_read(module_state *state, PyObject *value, edit_list *out) {
    *out = (edit_list){NULL, 0};
    PyObject *items = PySequence_Tuple(value);
    if (!items)
        return false;
    size_t n = (size_t)PyTuple_Size(items);
    out->edits = PyMem_Calloc(n + 1, sizeof *out->edits);
    bool ok = out->edits || !PyErr_NoMemory();
    while (ok && out->n < n && (ok = read_edit(state, PyTuple_GetItem(items, (Py_ssize_t)out->n), &out->edits[out->n])))
        out->n++;
    Py_DECREF(items);
    if (!ok)
        edits_free(out);
    return ok;
}

bool numbers_read(PyObject *value, int64_t **numbers, size_t *count) {
    PyObject *items = PySequence_Tuple(value);
    *count = items ? (size_t)PyTuple_Size(items) : 0;
    *numbers = items ? PyMem_Calloc(*count + 1, sizeof **numbers) : NULL;
    bool ok = *numbers != NULL;
    if (items && !ok)
        PyErr_NoMemory();
    for (size_t i = 0; ok && i < *count; i++) {
        (*numbers)[i] = PyLong_AsLongLong(PyTuple_GetItem(items, (Py_ssize_t)i));
        ok = (*numbers)[i] != -1 || !PyErr_Occurred();
    }
    Py_XDECREF(items);
    return ok;
}

/* ---- methods of Model ---- */
PyObject *py_model_activations(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    if (!model)
        return NULL;
    gm_model_retain(model); /* making the list may run a finalizer, which may close the model */
    PyObject *list = PyList_New(0);
    gm_activation_info a;
    for (int64_t i = 0; list && i < gm_model_activations(model); i++) {
        if (!gm_model_activation(model, i, -1, &a))
            continue;
        PyObject *shape = a.ndim == 3 ? Py_BuildValue("(LLL)", (long long)a.shape[0], (long long)a.shape[1],
                                                      (long long)a.shape[2])
                                      : Py_BuildValue("(LL)", (long long)a.shape[0], (long long)a.shape[1]);
        PyObject *item = Py_BuildValue("(LsNOi)", (long long)i, a.name, shape, a.editable ? Py_True : Py_False,
                                       a.source);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    gm_model_release(model);
    return list;
}

static PyObject *results(module_state *state, const gm_inspection *inspection, size_t n) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        gm_scope *scope = gm_scope_open();
        gm_array *node = NULL;
        if (scope) {
            Py_BEGIN_ALLOW_THREADS node = gm_inspect_result(scope, inspection, i);
            Py_END_ALLOW_THREADS
        }
        PyObject *array = py_array_result(state, scope, node);
        if (!array)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, array);
    }
    return list;
}

PyObject *py_model_inspect(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"inspect", 0, 2, 3, {"ids", "activations", "edits", "exact", "adapters", NULL}};
    module_state *state = py_model_state(self);
    PyObject *v[5], *list = NULL;
    share_list adapters = {NULL, 0, NULL};
    int32_t *ids = NULL;
    int64_t *numbers = NULL;
    size_t n_ids, n_numbers;
    edit_list edits = {NULL, 0};
    int exact = 0;
    bool read = read_arguments(&sig, args, n, kwnames, v) && read_ids(v[0], &ids, &n_ids) &&
                numbers_read(v[1], &numbers, &n_numbers) && (!v[2] || edits_read(state, v[2], &edits)) &&
                (exact = v[3] ? PyObject_IsTrue(v[3]) : 0) >= 0 && shares_read(v[4], &adapters);
    gm_model *model = read ? py_model_open(self) : NULL;
    if (model) {
        gm_model_retain(model);
        const gm_inspect_request request = {ids,     n_ids, numbers,      n_numbers, edits.edits,
                                            edits.n, exact, adapters.all, adapters.n};
        gm_inspection *inspection = NULL;
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_inspect_begin(model, &request, &inspection);
        Py_END_ALLOW_THREADS bool ok = status == GM_OK;
        for (status = GM_AGAIN; ok && status == GM_AGAIN;) {
            Py_BEGIN_ALLOW_THREADS status = gm_inspect_step(inspection, SLICE_MS);
            Py_END_ALLOW_THREADS ok = (status == GM_OK || status == GM_AGAIN) && PyErr_CheckSignals() == 0;
        }
        list = ok ? results(state, inspection, n_numbers) : raise_gm(state);
        Py_BEGIN_ALLOW_THREADS gm_inspect_free(inspection);
        gm_model_release(model);
        Py_END_ALLOW_THREADS
    }
    edits_free(&edits);
    shares_free(&adapters);
    PyMem_Free(numbers);
    PyMem_Free(ids);
    return list;
}

PyObject *py_model_head(PyObject *self, PyObject *value) {
    module_state *state = py_model_state(self);
    gm_model *model = py_model_open(self);
    gm_array *x = model ? py_array_node(state, value) : NULL;
    if (model && !x)
        PyErr_Format(PyExc_TypeError, "head: expected an array, found %R", (PyObject *)Py_TYPE(value));
    if (!x)
        return NULL;
    gm_scope *scope = gm_scope_open();
    return py_array_result(state, scope, scope ? gm_model_head(scope, model, x) : NULL);
}
