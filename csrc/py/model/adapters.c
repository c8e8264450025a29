/* adapters.c - adapters of a Model: loaded, unloaded, listed, and as arguments of what runs with them. */
#include "py/model/adapters.h"
#include "py/model/inspect.h"
#include <string.h>

/* ---- terms ---- */
void terms_free(term_list *t) {
    for (size_t i = 0; i < t->n; i++) {
        PyMem_Free((void *)(uintptr_t)t->all[i].layer);
        gm_release(t->all[i].a);
        gm_release(t->all[i].b);
        gm_release(t->all[i].magnitude);
        gm_release(t->all[i].squares);
        gm_release(t->all[i].sum_a);
        gm_release(t->all[i].sum_b);
        gm_release(t->all[i].sum_magnitude);
    }
    PyMem_Free(t->all);
}

static char *text_copy(PyObject *text, const char *list) {
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "%s: a layer is named by a str, not %R", list, (PyObject *)Py_TYPE(text));
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
        PyErr_Format(PyExc_ValueError, "%s: the layer %R has a zero in its name", list, text);
        PyMem_Free(copy);
        return NULL;
    }
    return copy;
}

/* Arrays of a tuple from `first` on, retained: true when all n of them are arrays. */
static bool arrays_read(module_state *state, PyObject *tuple, Py_ssize_t first, int n, gm_array **const *to) {
    for (int i = 0; i < n; i++)
        if (!(*to[i] = gm_retain(py_array_node(state, PyTuple_GetItem(tuple, first + i)))))
            return false;
    return true;
}

/* One tuple (layer, a, b, scale), with magnitudes perhaps (layer, a, b, scale, magnitude, squares). The nodes are
 * retained: __float__ may run anything, and give the arrays others. */
static bool term_read(module_state *state, PyObject *item, gm_adapter_term *to) {
    const Py_ssize_t n = PyTuple_Check(item) ? PyTuple_Size(item) : 0;
    if (n != 4 && n != 6) {
        PyErr_Format(PyExc_TypeError, "terms: expected tuples (layer, a, b, scale), found %R", item);
        return false;
    }
    to->scale = (float)PyFloat_AsDouble(PyTuple_GetItem(item, 3));
    if (PyErr_Occurred() || !(to->layer = text_copy(PyTuple_GetItem(item, 0), "terms")))
        return false;
    if (arrays_read(state, item, 1, 2, (gm_array * *const[]){&to->a, &to->b}) &&
        (n == 4 || arrays_read(state, item, 4, 2, (gm_array * *const[]){&to->magnitude, &to->squares})))
        return true;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "terms: a%s of %R are not all arrays",
                     n == 4 ? " and b" : ", b, magnitude and squares", PyTuple_GetItem(item, 0));
    return false;
}

bool terms_read(module_state *state, PyObject *items, term_list *t) {
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

/* ---- weights that are trained themselves ---- */
void whole_free(whole_list *w) {
    for (size_t i = 0; i < w->n; i++) {
        PyMem_Free((void *)(uintptr_t)w->all[i].name);
        gm_release(w->all[i].values);
        gm_release(w->all[i].sum);
    }
    PyMem_Free(w->all);
}

static bool trained_read(module_state *state, PyObject *item, gm_trained_weight *to) {
    const bool fits = PyTuple_Check(item) && PyTuple_Size(item) == 3;
    PyObject *sum = fits ? PyTuple_GetItem(item, 2) : NULL;
    if (fits && !(to->name = text_copy(PyTuple_GetItem(item, 0), "whole")))
        return false;
    if (fits && arrays_read(state, item, 1, sum == Py_None ? 1 : 2, (gm_array * *const[]){&to->values, &to->sum}))
        return true;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "whole: expected tuples (name, array, array or None), found %R", item);
    return false;
}

bool whole_read(module_state *state, PyObject *given, whole_list *w) {
    PyObject *items = given && given != Py_None ? PySequence_Tuple(given) : NULL;
    bool fits = !given || given == Py_None;
    if (items) {
        const size_t n = (size_t)PyTuple_Size(items);
        w->all = PyMem_Calloc(n + 1, sizeof *w->all);
        fits = w->all != NULL;
        if (!fits)
            PyErr_NoMemory();
        for (size_t i = 0; fits && i < n; i++) {
            w->n = i + 1; /* what is read of it is given back, also when it fails */
            fits = trained_read(state, PyTuple_GetItem(items, (Py_ssize_t)i), &w->all[i]);
        }
    }
    Py_XDECREF(items);
    return fits;
}

/* ---- shares ---- */
void shares_free(share_list *s) {
    PyMem_Free(s->all);
    Py_CLEAR(s->items);
}

static const char *name_of(PyObject *text) {
    Py_ssize_t length;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "adapters: a name is a str, not %R", (PyObject *)Py_TYPE(text));
        return NULL;
    }
    const char *name = PyUnicode_AsUTF8AndSize(text, &length);
    if (name && strlen(name) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "adapters: the name %R has a zero in it", text);
        return NULL;
    }
    return name;
}

bool shares_read(PyObject *value, share_list *s) {
    *s = (share_list){NULL, 0, NULL};
    if (!value)
        return true;
    s->items = PySequence_Tuple(value);
    const size_t n = s->items ? (size_t)PyTuple_Size(s->items) : 0;
    s->all = s->items ? PyMem_Calloc(n + 1, sizeof *s->all) : NULL;
    if (!s->all)
        return s->items ? PyErr_NoMemory() != NULL : false;
    for (; s->n < n; s->n++) {
        PyObject *item = PyTuple_GetItem(s->items, (Py_ssize_t)s->n);
        gm_adapter_share *to = &s->all[s->n];
        if (!PyTuple_Check(item) || PyTuple_Size(item) != 2) {
            PyErr_Format(PyExc_TypeError, "adapters: expected tuples (name, weight), found %R", item);
            return false;
        }
        to->weight = (float)PyFloat_AsDouble(PyTuple_GetItem(item, 1));
        if (PyErr_Occurred() || !(to->name = name_of(PyTuple_GetItem(item, 0))))
            return false;
    }
    return true;
}

PyObject *py_adapter_uses(const gm_adapter_use *uses, size_t n) {
    PyObject *all = PyTuple_New((Py_ssize_t)n);
    for (size_t i = 0; all && i < n; i++) {
        PyObject *one = Py_BuildValue("(sKd)", uses[i].name, (unsigned long long)uses[i].hash, (double)uses[i].weight);
        if (!one || PyTuple_SetItem(all, (Py_ssize_t)i, one) < 0)
            Py_CLEAR(all);
    }
    return all;
}

/* ---- of a model ---- */
PyObject *py_model_load_adapter(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"load_adapter", 2, 2, 3, {"name", "terms", NULL}};
    module_state *state = py_model_state(self);
    PyObject *v[2], *items = NULL;
    term_list terms = {NULL, 0};
    const bool read = read_arguments(&sig, args, n, kwnames, v) && (items = PySequence_Tuple(v[1])) &&
                      terms_read(state, items, &terms);
    const char *name = read ? name_of(v[0]) : NULL;
    gm_model *model = name ? py_model_open(self) : NULL;
    gm_status status = GM_ESTATE;
    if (model) {
        gm_model_retain(model); /* another thread may close it meanwhile */
        Py_BEGIN_ALLOW_THREADS status = gm_model_load_adapter(model, name, terms.all, terms.n);
        gm_model_release(model);
        Py_END_ALLOW_THREADS
    }
    if (model && status != GM_OK)
        raise_gm(state);
    terms_free(&terms);
    Py_XDECREF(items);
    return status == GM_OK ? Py_NewRef(Py_None) : NULL;
}

PyObject *py_model_unload_adapter(PyObject *self, PyObject *value) {
    const char *name = name_of(value);
    gm_model *model = name ? py_model_open(self) : NULL;
    if (!model)
        return NULL;
    return gm_model_unload_adapter(model, name) == GM_OK ? Py_NewRef(Py_None) : raise_gm(py_model_state(self));
}

PyObject *py_model_adapters(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    if (!model)
        return NULL;
    gm_model_retain(model); /* making the list may run a finalizer, which may close the model */
    PyObject *list = PyList_New(0);
    gm_adapter_info info;
    for (size_t i = 0; list && gm_model_adapter(model, i, &info) == GM_OK; i++) {
        PyObject *one = Py_BuildValue("{sssKsLsLsLsLsL}", "name", info.use.name, "hash",
                                      (unsigned long long)info.use.hash, "terms", (long long)info.terms, "parameters",
                                      (long long)info.parameters, "bytes", (long long)info.bytes, "least_rank",
                                      (long long)info.least_rank, "most_rank", (long long)info.most_rank);
        if (!one || PyList_Append(list, one) < 0)
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    gm_model_release(model);
    return list;
}
