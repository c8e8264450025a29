/* training.c - what training asks of a Model: rows of sequences with gradients to adapters, and the loss of its head.
 */
#include "py/model/adapters.h"

/* (da, db) of a term, with magnitudes (da, db, dm). */
static bool sum_read(module_state *state, PyObject *sums, gm_adapter_term *to) {
    gm_array **const all[3] = {&to->sum_a, &to->sum_b, &to->sum_magnitude};
    const int n = to->magnitude ? 3 : 2;
    bool fits = PyTuple_Check(sums) && PyTuple_Size(sums) == n;
    for (int i = 0; fits && i < n; i++)
        fits = (*all[i] = gm_retain(py_array_node(state, PyTuple_GetItem(sums, i)))) != NULL;
    if (!fits && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "sums: expected None or %s of arrays, found %R",
                     n == 2 ? "pairs" : "with magnitudes triples", sums);
    return fits;
}

/* Sums, or None, one for each term. */
static bool sums_read(module_state *state, PyObject *given, term_list *t) {
    PyObject *items = given && given != Py_None ? PySequence_Tuple(given) : NULL;
    bool fits = !given || given == Py_None;
    if (items && (size_t)PyTuple_Size(items) != t->n)
        PyErr_Format(PyExc_ValueError, "sums: %zd for %zu terms", PyTuple_Size(items), t->n);
    else if (items)
        fits = true;
    for (size_t i = 0; items && fits && i < t->n; i++) {
        PyObject *one = PyTuple_GetItem(items, (Py_ssize_t)i);
        fits = one == Py_None || sum_read(state, one, &t->all[i]);
    }
    Py_XDECREF(items);
    return fits;
}

/* A share, and the keys by which it is drawn; *keys is the caller's, or NULL where nothing is left out. */
static bool dropout_read(module_state *state, PyObject *share, PyObject *given, double *out, gm_array **keys) {
    *out = share ? PyFloat_AsDouble(share) : 0;
    if (PyErr_Occurred())
        return false;
    if (*out == 0)
        return true;
    gm_array *node = given && given != Py_None ? py_array_node(state, given) : NULL;
    *keys = node ? gm_retain(node) : NULL;
    if (!node && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "dropout: expected keys, an array uint32 [sequences, 2]");
    return node != NULL;
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

/* All matrices packed for good, which training reads many times; signals are seen between slices. */
static bool pack_model(module_state *state, gm_model *model) {
    bool held = false;
    gm_status status;
    do {
        Py_BEGIN_ALLOW_THREADS status = gm_model_pack(model, 50, &held);
        Py_END_ALLOW_THREADS if (status == GM_AGAIN && PyErr_CheckSignals() != 0) {
            gm_model_stop_packing(model, &held);
            return false;
        }
    } while (status == GM_AGAIN);
    return status == GM_OK || raise_gm(state) != NULL;
}

PyObject *py_model_rows(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {
        "rows",
        0,
        2,
        3,
        {"ids", "lengths", "terms", "int8", "bf16", "checkpoints", "sums", "dropout", "keys", "whole", "groups", NULL}};
    module_state *state = py_model_state(self);
    PyObject *v[11], *items = NULL, *result = NULL;
    int32_t *ids = NULL, *lengths = NULL, *groups = NULL;
    size_t n_ids, n_lengths, n_groups = 0;
    term_list terms = {NULL, 0};
    whole_list whole = {NULL, 0};
    int int8 = 0, bf16 = 0, checkpoints = 0;
    double dropout = 0;
    gm_array *keys = NULL;
    const bool read = read_arguments(&sig, args, n, kwnames, v) && read_ids(v[0], &ids, &n_ids) &&
                      read_lengths(v[1], &lengths, &n_lengths) &&
                      (items = v[2] ? PySequence_Tuple(v[2]) : PyTuple_New(0)) && terms_read(state, items, &terms) &&
                      (int8 = v[3] ? PyObject_IsTrue(v[3]) : 0) >= 0 &&
                      (bf16 = v[4] ? PyObject_IsTrue(v[4]) : 0) >= 0 &&
                      (checkpoints = v[5] ? PyObject_IsTrue(v[5]) : 0) >= 0 && sums_read(state, v[6], &terms) &&
                      dropout_read(state, v[7], v[8], &dropout, &keys) && whole_read(state, v[9], &whole) &&
                      (!v[10] || v[10] == Py_None || read_lengths(v[10], &groups, &n_groups));
    gm_model *open = read ? py_model_open(self) : NULL, *model = open ? gm_model_retain(open) : NULL;
    if (model && pack_model(state, model)) {
        const gm_training_batch batch = {.tokens = ids,
                                         .lengths = lengths,
                                         .n_sequences = (int64_t)n_lengths,
                                         .groups = groups,
                                         .n_groups = (int64_t)n_groups,
                                         .terms = terms.all,
                                         .n_terms = terms.n,
                                         .whole = whole.all,
                                         .n_whole = whole.n,
                                         .int8 = int8,
                                         .bf16 = bf16,
                                         .checkpoints = checkpoints,
                                         .keys = keys,
                                         .dropout = (float)dropout};
        gm_scope *scope = gm_scope_open();
        const bool fits = scope && check_lengths(&batch, n_ids);
        result = py_array_result(state, scope, fits ? gm_model_rows(scope, model, &batch) : NULL);
    }
    if (model)
        gm_model_release(model); /* a signal handler may have closed it */
    gm_release(keys);
    terms_free(&terms);
    whole_free(&whole);
    Py_XDECREF(items);
    PyMem_Free(ids);
    PyMem_Free(lengths);
    PyMem_Free(groups);
    return result;
}

PyObject *py_model_loss(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"loss", 0, 2, 3, {"rows", "targets", "gradient", "int8", "bf16", NULL}};
    module_state *state = py_model_state(self);
    PyObject *v[5], *result = NULL;
    int32_t *targets = NULL;
    size_t n_targets;
    int gradient = 0, int8 = 0, bf16 = 0;
    const bool read = read_arguments(&sig, args, n, kwnames, v) && read_ids(v[1], &targets, &n_targets) &&
                      (gradient = v[2] ? PyObject_IsTrue(v[2]) : 0) >= 0 &&
                      (int8 = v[3] ? PyObject_IsTrue(v[3]) : 0) >= 0 && (bf16 = v[4] ? PyObject_IsTrue(v[4]) : 0) >= 0;
    gm_array *rows = read ? py_array_node(state, v[0]) : NULL;
    if (read && !rows && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "loss: expected an array, found %R", (PyObject *)Py_TYPE(v[0]));
    gm_model *model = rows ? py_model_open(self) : NULL;
    if (model) {
        gm_scope *scope = gm_scope_open();
        const gm_row_targets all = {targets, (int64_t)n_targets, gradient, int8, bf16};
        result = py_array_result(state, scope, scope ? gm_model_loss(scope, model, rows, &all) : NULL);
    }
    PyMem_Free(targets);
    return result;
}
