/* sampling.c - how the options of sampling are read, for every function that takes them; sample() and
 * sample_probabilities(), which draw from given logits. */
#include "py/py.h"
#include <string.h>

/* ---- options by name ---- */
typedef bool (*reader)(sampling_arguments *a, PyObject *value, const char *name, void *field);

static void *keep_block(sampling_arguments *a, size_t bytes) {
    void *block = PyMem_Calloc(1, bytes + 1);
    if (!block)
        PyErr_NoMemory();
    else
        a->blocks[a->n_blocks++] = block;
    return block;
}

static bool read_float_field(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)a;
    double number = 0;
    if (!read_float(value, name, &number))
        return false;
    *(float *)field = (float)number;
    return true;
}

static bool read_int_field(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)a;
    int number = 0;
    if (!read_int(value, name, &number))
        return false;
    *(int32_t *)field = number;
    return true;
}

bool read_count(PyObject *value, const char *name, int64_t *out) {
    PyObject *index = PyNumber_Index(value);
    if (!index) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be an int, not %R", name, (PyObject *)Py_TYPE(value));
        return false;
    }
    *out = PyLong_AsLongLong(index);
    Py_DECREF(index);
    return *out != -1 || !PyErr_Occurred();
}

static bool read_seed(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)a;
    PyObject *index = PyNumber_Index(value);
    if (!index) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be an int, not %R", name, (PyObject *)Py_TYPE(value));
        return false;
    }
    unsigned long long seed = PyLong_AsUnsignedLongLong(index);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s is %S, expected 0 to 2**64 - 1", name, index);
    }
    Py_DECREF(index);
    *(uint64_t *)field = seed;
    return !PyErr_Occurred();
}

static bool read_penalty_prompt(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)name, (void)field;
    bool all;
    if (!read_bool(value, &all))
        return false;
    a->options.repetition_of_prompt = a->options.counts_of_prompt = all;
    return true;
}

/* A tuple of an iterable that is not text. */
static PyObject *tuple_of(PyObject *value, const char *name, const char *expected) {
    PyObject *items = PyUnicode_Check(value) || PyBytes_Check(value) ? NULL : PySequence_Tuple(value);
    if (!items && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)))
        PyErr_Format(PyExc_TypeError, "%s must be %s, not %R", name, expected, (PyObject *)Py_TYPE(value));
    return items;
}

static int sampler_named(PyObject *name) {
    for (int kind = 0; kind < GM_SAMPLER_KINDS; kind++)
        if (PyUnicode_Check(name) &&
            PyUnicode_CompareWithASCIIString(name, gm_sampler_name((gm_sampler_kind)kind)) == 0)
            return kind;
    PyErr_Format(PyExc_ValueError,
                 "samplers: no sampler %R; there are penalties, dry, top_n_sigma, temperature, "
                 "top_k, top_p, min_p, typical_p, xtc, mirostat",
                 name);
    return -1;
}

static bool read_order(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)field;
    PyObject *items = tuple_of(value, name, "a sequence of names");
    size_t n = items ? (size_t)PyTuple_Size(items) : 0;
    gm_sampler_kind *order = items ? keep_block(a, n * sizeof *order) : NULL;
    bool ok = order != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        int kind = sampler_named(PyTuple_GetItem(items, (Py_ssize_t)i));
        ok = kind >= 0;
        order[i] = ok ? (gm_sampler_kind)kind : GM_SAMPLER_KINDS;
    }
    Py_XDECREF(items);
    a->options.order = order;
    a->options.n_order = n;
    return ok;
}

static bool read_suppressed(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)name, (void)field;
    int32_t *ids = NULL;
    if (!read_ids(value, &ids, &a->options.n_suppressed))
        return false;
    a->options.suppressed = a->blocks[a->n_blocks++] = ids;
    return true;
}

static bool read_biases(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    (void)field;
    PyObject *pairs = PyMapping_Check(value) && !PySequence_Check(value) ? PyMapping_Items(value) : NULL;
    if (!pairs) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s must be a dict of token ids and biases, not %R", name,
                         (PyObject *)Py_TYPE(value));
        return false;
    }
    size_t n = (size_t)PyList_Size(pairs);
    int32_t *ids = keep_block(a, n * sizeof *ids);
    float *biases = ids ? keep_block(a, n * sizeof *biases) : NULL;
    bool ok = biases != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        PyObject *pair = PyList_GetItem(pairs, (Py_ssize_t)i);
        double bias = 0;
        int id = 0;
        ok = PyTuple_Check(pair) && PyTuple_Size(pair) == 2;
        if (!ok)
            PyErr_Format(PyExc_TypeError, "%s: items() gave %R, expected a token id and a bias", name, pair);
        ok = ok && read_int(PyTuple_GetItem(pair, 0), "token id", &id) &&
             read_float(PyTuple_GetItem(pair, 1), name, &bias);
        ids[i] = id;
        biases[i] = (float)bias;
    }
    Py_DECREF(pairs);
    a->options.bias_ids = ids;
    a->options.biases = biases;
    a->options.n_biases = n;
    return ok;
}

/* Sequences of ids, one after another. */
static bool read_sequences(sampling_arguments *a, PyObject *value, const char *name, void *field) {
    PyObject *items = tuple_of(value, name, "a sequence of sequences of token ids");
    size_t n = items ? (size_t)PyTuple_Size(items) : 0, total = 0;
    size_t *lengths = items ? keep_block(a, n * sizeof *lengths) : NULL;
    int32_t **lists = lengths ? PyMem_Calloc(n + 1, sizeof *lists) : NULL, *ids = NULL;
    bool ok = lists != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        ok = read_ids(PyTuple_GetItem(items, (Py_ssize_t)i), &lists[i], &lengths[i]);
        total += ok ? lengths[i] : 0;
    }
    ok = ok && (ids = keep_block(a, total * sizeof *ids));
    for (size_t i = 0, at = 0; lists && i < n; i++) {
        if (ok && lengths[i])
            memcpy(ids + at, lists[i], lengths[i] * sizeof *ids);
        at += lengths[i];
        PyMem_Free(lists[i]);
    }
    PyMem_Free(lists);
    Py_XDECREF(items);
    if (ok)
        *(gm_sequences *)field = (gm_sequences){ids, lengths, n};
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    return ok;
}

#define FIELD(name) offsetof(gm_sampling, name)
static const struct {
    const char *name;
    reader read;
    size_t offset;
} fields[] = {
    {"temperature", read_float_field, FIELD(temperature)},
    {"top_k", read_int_field, FIELD(top_k)},
    {"top_p", read_float_field, FIELD(top_p)},
    {"min_p", read_float_field, FIELD(min_p)},
    {"typical_p", read_float_field, FIELD(typical_p)},
    {"top_n_sigma", read_float_field, FIELD(top_n_sigma)},
    {"xtc_probability", read_float_field, FIELD(xtc_probability)},
    {"xtc_threshold", read_float_field, FIELD(xtc_threshold)},
    {"dry_multiplier", read_float_field, FIELD(dry_multiplier)},
    {"dry_base", read_float_field, FIELD(dry_base)},
    {"dry_allowed_length", read_int_field, FIELD(dry_allowed_length)},
    {"dry_last_n", read_int_field, FIELD(dry_last_n)},
    {"dry_breakers", read_sequences, FIELD(dry_breakers)},
    {"mirostat_tau", read_float_field, FIELD(mirostat_tau)},
    {"mirostat_eta", read_float_field, FIELD(mirostat_eta)},
    {"repetition_penalty", read_float_field, FIELD(repetition_penalty)},
    {"frequency_penalty", read_float_field, FIELD(frequency_penalty)},
    {"presence_penalty", read_float_field, FIELD(presence_penalty)},
    {"penalty_last_n", read_int_field, FIELD(penalty_last_n)},
    {"penalty_prompt", read_penalty_prompt, 0},
    {"logit_bias", read_biases, 0},
    {"bad_words", read_sequences, FIELD(bad_words)},
    {"suppress_tokens", read_suppressed, 0},
    {"samplers", read_order, 0},
    {"seed", read_seed, FIELD(seed)},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* 1: an option of sampling, taken; 0: it is none; -1: an exception. */
static int take_option(sampling_arguments *a, PyObject *name, PyObject *value) {
    for (int i = 0; i < N_FIELDS; i++) {
        if (PyUnicode_CompareWithASCIIString(name, fields[i].name) != 0)
            continue;
        void *field = (char *)&a->options + fields[i].offset;
        return value == Py_None || fields[i].read(a, value, fields[i].name, field) ? 1 : -1;
    }
    return 0;
}

bool sampling_read(sampling_arguments *a, const signature *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                   PyObject **values) {
    memset(a, 0, sizeof *a);
    gm_sampling_defaults(&a->options);
    Py_ssize_t n_named = kwnames ? PyTuple_Size(kwnames) : 0;
    PyObject **rest = PyMem_Calloc((size_t)(n + n_named) + 1, sizeof *rest), *names = PyList_New(0), *tuple = NULL;
    bool ok = rest && names;
    if (!rest)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok && i < n; i++)
        rest[i] = args[i];
    for (Py_ssize_t i = 0, kept = n; ok && i < n_named; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        int taken = take_option(a, name, args[n + i]);
        ok = taken >= 0;
        if (taken == 0) {
            rest[kept++] = args[n + i];
            ok = PyList_Append(names, name) == 0;
        }
    }
    ok = ok && (tuple = PyList_AsTuple(names)) && read_arguments(sig, rest, n, tuple, values);
    Py_XDECREF(tuple);
    Py_XDECREF(names);
    PyMem_Free(rest);
    return ok;
}

void sampling_free(sampling_arguments *a) {
    for (int i = 0; i < a->n_blocks; i++)
        PyMem_Free(a->blocks[i]);
    a->n_blocks = 0;
}

/* ---- from given logits ---- */
typedef struct {
    sampling_arguments sampling;
    gm_array *logits; /* float32 [vocab], evaluated, retained */
    int32_t *ids;
    size_t n_ids, n_prompt;
    uint64_t step;
    int64_t n;
} draw_request;

/* Any array-like as an evaluated float32 vector in order; retained. */
static gm_array *read_logits(module_state *state, PyObject *value) {
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? node_from_value(state, scope, value, GM_FLOAT32) : NULL;
    if (node && (gm_array_ndim(node) != 1 || gm_array_size(node) == 0)) {
        PyErr_Format(PyExc_ValueError, "logits: %d dimensions and %lld numbers, expected one dimension: [vocab]",
                     gm_array_ndim(node), (long long)gm_array_size(node));
        node = NULL;
    }
    if (node)
        node = gm_contiguous(scope, node);
    gm_array *made = NULL, *host = node && evaluate_one(state, node) ? host_node(state, node, &made) : NULL;
    if (host && !made)
        gm_retain(host);
    gm_scope_close(scope);
    if (!host)
        raise_gm(state);
    return host;
}

static void draw_request_free(draw_request *r) {
    sampling_free(&r->sampling);
    gm_release(r->logits);
    PyMem_Free(r->ids);
}

static bool read_draw(module_state *state, const signature *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                      draw_request *r) {
    PyObject *v[5];
    int64_t n_prompt = 0;
    *r = (draw_request){.n = 1};
    bool ok = sampling_read(&r->sampling, sig, args, n, kwnames, v) && (r->logits = read_logits(state, v[0])) &&
              (!v[1] || read_ids(v[1], &r->ids, &r->n_ids));
    n_prompt = (int64_t)r->n_ids;
    ok = ok && (!v[2] || v[2] == Py_None || read_count(v[2], "n_prompt", &n_prompt)) &&
         (!v[3] || read_seed(NULL, v[3], "step", &r->step)) &&
         (!sig->names[4] || !v[4] || read_count(v[4], "n", &r->n));
    if (ok && (n_prompt < 0 || r->n < 0 || r->n > PY_SSIZE_T_MAX / 8)) {
        PyErr_SetString(PyExc_ValueError, "n_prompt and n must be 0 or more");
        ok = false;
    }
    r->n_prompt = (size_t)n_prompt;
    if (!ok)
        draw_request_free(r);
    return ok;
}

static gm_draw draw_of(const draw_request *r) {
    return (gm_draw){.logits = gm_array_data(r->logits),
                     .vocab = gm_array_size(r->logits),
                     .ids = r->ids,
                     .n_ids = r->n_ids,
                     .n_prompt = r->n_prompt,
                     .step = r->step};
}

PyObject *sample_ids(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"sample", 0, 2, 1, {"logits", "ids", "n_prompt", "step", "n", NULL}};
    module_state *state = PyModule_GetState(module);
    draw_request r;
    if (!read_draw(state, &sig, args, n, kwnames, &r))
        return NULL;
    int32_t *drawn = PyMem_Calloc((size_t)r.n + 1, sizeof *drawn);
    PyObject *list = NULL;
    gm_status status = GM_OK;
    if (!drawn) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS const gm_draw draw = draw_of(&r);
        status = gm_sample(&r.sampling.options, &draw, drawn, (size_t)r.n);
        Py_END_ALLOW_THREADS list = status == GM_OK ? PyList_New((Py_ssize_t)r.n) : raise_gm(state);
    }
    for (int64_t i = 0; list && i < r.n; i++) {
        PyObject *id = PyLong_FromLong(drawn[i]);
        if (id)
            PyList_SetItem(list, (Py_ssize_t)i, id);
        else
            Py_CLEAR(list);
    }
    PyMem_Free(drawn);
    draw_request_free(&r);
    return list;
}

PyObject *sample_probabilities(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"sample_probabilities", 0, 2, 1, {"logits", "ids", "n_prompt", "step", NULL}};
    module_state *state = PyModule_GetState(module);
    draw_request r;
    if (!read_draw(state, &sig, args, n, kwnames, &r))
        return NULL;
    int64_t vocab = gm_array_size(r.logits);
    float *out = PyMem_Calloc((size_t)vocab, sizeof *out);
    PyObject *result = NULL;
    gm_status status = GM_OK;
    if (!out) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS const gm_draw draw = draw_of(&r);
        status = gm_sample_probabilities(&r.sampling.options, &draw, out);
        Py_END_ALLOW_THREADS gm_scope *scope = status == GM_OK ? gm_scope_open() : NULL;
        result = py_array_result(state, scope, scope ? gm_array_from(scope, GM_FLOAT32, 1, &vocab, out) : NULL);
    }
    PyMem_Free(out);
    draw_request_free(&r);
    return result;
}
