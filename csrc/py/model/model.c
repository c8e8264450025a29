/* model.c - Model: loading, information, scoring.
 *  (1) A closed Model has no C model; every use but close() is a ValueError. What runs in another thread when it is
 *      closed holds the C model until it is done.
 *  (2) close() also ends the Model's sessions, so that the memory is given back at once and not when they are
 *      collected. */
#include "py/model/adapters.h"
#include "py/model/inspect.h"
#include <string.h>

static void model_dealloc(PyObject *self);

module_state *py_model_state(PyObject *self) { return state_of(self, model_dealloc); }

static PyObject *model_close(PyObject *self, PyObject *unused) {
    (void)unused;
    model_object *object = (model_object *)self;
    while (object->sessions)
        py_session_shut(object->sessions); /* takes it off the list */
    gm_model *model = object->model;
    object->model = NULL;
    Py_BEGIN_ALLOW_THREADS gm_model_release(model);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static void model_dealloc(PyObject *self) {
    gm_model_release(((model_object *)self)->model); /* sessions hold the Model: there are none */
    Py_XDECREF(((model_object *)self)->tokenizer);
    object_free(self);
}

gm_model *py_model_open(PyObject *self) {
    gm_model *model = ((model_object *)self)->model;
    if (!model)
        PyErr_SetString(PyExc_ValueError, "the model is closed");
    return model;
}

/* ---- loading ---- */

/* A Dtype, or its name. */
static bool read_dtype_name(module_state *state, PyObject *value, int *out) {
    gm_dtype type = GM_DTYPE_COUNT;
    if (!value || value == Py_None)
        return true;
    if (!PyUnicode_Check(value)) {
        if (!read_dtype(state, value, &type))
            return false;
        *out = (int)type;
        return true;
    }
    for (int i = 0; i < GM_DTYPE_COUNT; i++) {
        if (PyUnicode_CompareWithASCIIString(value, gm_dtype_name((gm_dtype)i)) == 0) {
            *out = i;
            return true;
        }
    }
    PyErr_Format(PyExc_ValueError, "there is no dtype '%U'", value);
    return false;
}

/* A dtype, or "q8_0". */
static bool read_kv_dtype(module_state *state, PyObject *value, int *out) {
    if (value && PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "q8_0") == 0) {
        *out = GM_KV_Q8_0;
        return true;
    }
    return read_dtype_name(state, value, out);
}

static bool read_activations(PyObject *value, int *out) {
    if (!value || value == Py_None)
        return true;
    bool text = PyUnicode_Check(value);
    if (text && PyUnicode_CompareWithASCIIString(value, "float32") == 0)
        *out = 0;
    else if (text && PyUnicode_CompareWithASCIIString(value, "int8") == 0)
        *out = 1;
    else if (text && PyUnicode_CompareWithASCIIString(value, "bfloat16") == 0)
        *out = 2;
    else
        PyErr_Format(PyExc_ValueError, "activations must be 'int8', 'bfloat16', 'float32' or None, not %R", value);
    return !PyErr_Occurred();
}

static bool read_context_policy(PyObject *value, gm_context_policy *out) {
    static const char *const names[] = {
        [GM_CONTEXT_STOP] = "stop", [GM_CONTEXT_ERROR] = "error", [GM_CONTEXT_ROTATE] = "rotate"};
    if (!value || value == Py_None)
        return true;
    for (int i = 0; PyUnicode_Check(value) && i <= GM_CONTEXT_ROTATE; i++) {
        if (PyUnicode_CompareWithASCIIString(value, names[i]) == 0) {
            *out = (gm_context_policy)i;
            return true;
        }
    }
    PyErr_Format(PyExc_ValueError, "context_policy must be 'stop', 'error' or 'rotate', not %R", value);
    return false;
}

static bool report(PyObject *callable, double progress) {
    if (!callable || callable == Py_None)
        return true;
    PyObject *number = PyFloat_FromDouble(progress);
    PyObject *answer = number ? PyObject_CallFunctionObjArgs(callable, number, NULL) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(answer);
    return answer != NULL;
}

/* Runs the loader to its end. On failure *model is NULL, and an exception or the engine's error is there. */
static bool run_loader(const gm_load_options *options, PyObject *progress, gm_model **model) {
    gm_loader *loader = NULL;
    gm_status status;
    double done = 0;
    Py_BEGIN_ALLOW_THREADS status = gm_loader_open(options, &loader);
    Py_END_ALLOW_THREADS bool ok = status == GM_OK;
    for (status = GM_AGAIN; ok && status == GM_AGAIN;) {
        Py_BEGIN_ALLOW_THREADS status = gm_loader_step(loader, SLICE_MS, &done);
        Py_END_ALLOW_THREADS ok = (status == GM_OK || status == GM_AGAIN) && PyErr_CheckSignals() == 0 &&
                                  report(progress, done);
    }
    if (ok) {
        Py_BEGIN_ALLOW_THREADS ok = gm_loader_finish(loader, model) == GM_OK;
        Py_END_ALLOW_THREADS
    }
    if (loader) {
        Py_BEGIN_ALLOW_THREADS gm_loader_close(loader);
        Py_END_ALLOW_THREADS
    }
    return ok;
}

/* What JSON of the engine's says; frees it. */
static PyObject *parsed(char *json) {
    PyObject *parser = PyImport_ImportModule("json");
    PyObject *text = PyUnicode_DecodeUTF8(json, (Py_ssize_t)strlen(json), "replace"); /* metadata may be anything */
    PyObject *value = parser && text ? PyObject_CallMethod(parser, "loads", "O", text) : NULL;
    Py_XDECREF(text);
    Py_XDECREF(parser);
    gm_buffer_free(json);
    return value;
}

PyObject *describe_model(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"describe", 0, 1, 1, {"path", "dtype", "kv_dtype", "activations", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[4], *path;
    gm_load_options options = {.weight_dtype = -1, .kv_dtype = -1, .activations = -1};
    char *json = NULL;
    gm_status status;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_dtype_name(state, v[1], &options.weight_dtype) ||
        !read_kv_dtype(state, v[2], &options.kv_dtype) || !read_activations(v[3], &options.activations) ||
        !PyUnicode_FSConverter(v[0], &path))
        return NULL;
    options.path = PyBytes_AsString(path);
    Py_BEGIN_ALLOW_THREADS status = gm_describe(&options, &json);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    return status == GM_OK ? parsed(json) : raise_gm(state);
}

PyObject *describe_cache(PyObject *module, PyObject *unused) {
    (void)unused;
    char *json = NULL;
    return gm_describe_cache(&json) == GM_OK ? parsed(json) : raise_gm(PyModule_GetState(module));
}

PyObject *describe_architectures(PyObject *module, PyObject *unused) {
    (void)unused;
    char *json = NULL;
    return gm_architectures(&json) == GM_OK ? parsed(json) : raise_gm(PyModule_GetState(module));
}

PyObject *describe_formats(PyObject *module, PyObject *unused) {
    (void)unused;
    char *json = NULL;
    return gm_formats(&json) == GM_OK ? parsed(json) : raise_gm(PyModule_GetState(module));
}

PyObject *load_model(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"load_model",
                                  0,
                                  1,
                                  1,
                                  {"path", "context_length", "dtype", "kv_dtype", "activations", "threads", "progress",
                                   "context_policy", "device", "host_layers", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[10], *path;
    gm_load_options options = {.weight_dtype = -1, .kv_dtype = -1, .activations = -1};
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_dtype_name(state, v[2], &options.weight_dtype) ||
        !read_kv_dtype(state, v[3], &options.kv_dtype) || !read_activations(v[4], &options.activations) ||
        !read_context_policy(v[7], &options.context_policy) ||
        (v[5] != Py_None && !read_int(v[5], "threads", &options.threads)) ||
        (v[8] && v[8] != Py_None && !read_int(v[8], "device", &options.device)) ||
        (v[9] && v[9] != Py_None && !read_int(v[9], "host_layers", &options.host_layers)))
        return NULL;
    if (v[1] && v[1] != Py_None) {
        options.context_length = PyLong_AsLongLong(v[1]);
        if (options.context_length == -1 && PyErr_Occurred())
            return NULL;
    }
    if (!PyUnicode_FSConverter(v[0], &path))
        return NULL;
    options.path = PyBytes_AsString(path);
    gm_model *model = NULL;
    bool ok = run_loader(&options, v[6], &model);
    Py_DECREF(path);
    if (!ok)
        return raise_gm(state);
    model_object *self = (model_object *)PyType_GenericAlloc(state->model_type, 0);
    if (self)
        self->model = model;
    else
        gm_model_release(model);
    return (PyObject *)self;
}

/* ---- questions ---- */

static PyObject *model_info(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    char *json = NULL;
    if (!model)
        return NULL;
    if (gm_model_info(model, &json) != GM_OK)
        return raise_gm(py_model_state(self));
    return parsed(json);
}

static PyObject *model_weight_names(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    if (!model)
        return NULL;
    gm_model_retain(model); /* making the list may run a finalizer, which may close the model */
    PyObject *list = PyList_New(0);
    const char *name;
    for (int64_t i = 0; list && gm_model_weight_name(model, i, &name) == GM_OK; i++) {
        PyObject *text = PyUnicode_FromString(name);
        if (!text || PyList_Append(list, text) < 0)
            Py_CLEAR(list);
        Py_XDECREF(text);
    }
    gm_model_release(model);
    return list;
}

static PyObject *model_weight(PyObject *self, PyObject *name) {
    gm_model *model = py_model_open(self);
    PyObject *bytes = model ? PyUnicode_AsUTF8String(name) : NULL;
    if (!bytes)
        return NULL;
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? gm_model_weight(scope, model, PyBytes_AsString(bytes)) : NULL;
    Py_DECREF(bytes);
    return py_array_result(py_model_state(self), scope, node);
}

static PyObject *get_vocab_size(PyObject *self, void *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    return model ? PyLong_FromLongLong(gm_model_vocab_size(model)) : NULL;
}

static PyObject *get_context_length(PyObject *self, void *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    return model ? PyLong_FromLongLong(gm_model_context_length(model)) : NULL;
}

static PyObject *get_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((model_object *)self)->model == NULL);
}

static PyObject *get_tokenizer(PyObject *self, void *unused) {
    (void)unused;
    PyObject *tokenizer = ((model_object *)self)->tokenizer;
    return Py_NewRef(tokenizer ? tokenizer : Py_None);
}

static int set_tokenizer(PyObject *self, PyObject *value, void *unused) {
    (void)unused;
    PyObject *old = ((model_object *)self)->tokenizer;
    ((model_object *)self)->tokenizer = value && value != Py_None ? Py_NewRef(value) : NULL;
    Py_XDECREF(old);
    return 0;
}

/* ---- scoring ---- */

typedef struct {
    gm_scored *all;
    size_t n;
} batch;

static void batch_free(batch *b) {
    for (size_t i = 0; i < b->n; i++)
        PyMem_Free((void *)(uintptr_t)b->all[i].ids);
    PyMem_Free(b->all);
}

static bool batch_read(PyObject *value, batch *b) {
    *b = (batch){NULL, 0};
    PyObject *items = PySequence_Tuple(value);
    if (!items)
        return false;
    size_t n = (size_t)PyTuple_Size(items);
    b->all = PyMem_Calloc(n + 1, sizeof *b->all);
    bool ok = b->all != NULL;
    if (!ok)
        PyErr_NoMemory();
    while (ok && b->n < n) {
        int32_t *ids = NULL;
        ok = read_ids(PyTuple_GetItem(items, (Py_ssize_t)b->n), &ids, &b->all[b->n].n);
        b->all[b->n].ids = ids;
        b->n += ok;
    }
    Py_DECREF(items);
    return ok;
}

static PyObject *rows_array(module_state *state, const float *rows, int ndim, const int64_t *shape) {
    gm_scope *scope = gm_scope_open();
    gm_array *node = NULL;
    if (scope) {
        Py_BEGIN_ALLOW_THREADS node = gm_array_from(scope, GM_FLOAT32, ndim, shape, rows);
        Py_END_ALLOW_THREADS
    }
    return py_array_result(state, scope, node);
}

/* The rows of each sequence as an array of its own. */
static PyObject *rows_list(module_state *state, const float *rows, const batch *b, int64_t width, int ndim) {
    PyObject *list = PyList_New((Py_ssize_t)b->n);
    for (size_t i = 0; list && i < b->n; i++) {
        int64_t shape[2] = {(int64_t)b->all[i].n, width};
        PyObject *array = rows_array(state, rows, ndim, shape);
        if (!array)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, array);
        rows += shape[0] * width;
    }
    return list;
}

/* (array [sequences, vocab], a list of the labels' sums for each sequence) */
static PyObject *last_and_labels(module_state *state, const gm_scoring *s, size_t n, size_t n_labels, int64_t vocab) {
    PyObject *last = rows_array(state, gm_score_data(s), 2, (int64_t[]){(int64_t)n, vocab});
    PyObject *sums = last ? PyList_New((Py_ssize_t)n) : NULL;
    for (size_t i = 0; sums && i < n; i++) {
        PyObject *row = PyList_New((Py_ssize_t)n_labels);
        for (size_t k = 0; row && k < n_labels; k++) {
            PyObject *value = PyFloat_FromDouble(gm_score_labels(s)[i * n_labels + k]);
            if (!value)
                Py_CLEAR(row);
            else
                PyList_SetItem(row, (Py_ssize_t)k, value);
        }
        if (!row)
            Py_CLEAR(sums);
        else
            PyList_SetItem(sums, (Py_ssize_t)i, row);
    }
    PyObject *pair = sums ? PyTuple_Pack(2, last, sums) : NULL;
    Py_XDECREF(last);
    Py_XDECREF(sums);
    return pair;
}

static bool read_score_kind(PyObject *value, gm_score_kind *kind) {
    static const char *const names[] = {
        [GM_SCORE_LOGITS] = "logits",
        [GM_SCORE_LAST] = "last",
        [GM_SCORE_LOGPROBS] = "logprobs",
        [GM_SCORE_HIDDEN] = "hidden",
    };
    for (int i = 0; i < 4; i++)
        if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, names[i]) == 0) {
            *kind = (gm_score_kind)i;
            return true;
        }
    PyErr_Format(PyExc_ValueError, "kind is %R, expected 'logits', 'last', 'logprobs' or 'hidden'", value);
    return false;
}

/* adapters NULL: none. */
static PyObject *score(PyObject *self, gm_score_kind kind, PyObject *sequences, PyObject *label_sequences,
                       PyObject *adapters) {
    module_state *state = py_model_state(self);
    batch b = {NULL, 0}, labels = {NULL, 0};
    share_list shares = {NULL, 0, NULL};
    bool read = batch_read(sequences, &b) && (!label_sequences || batch_read(label_sequences, &labels)) &&
                shares_read(adapters, &shares);
    gm_model *model = read ? py_model_open(self) : NULL;
    if (!model) {
        batch_free(&b);
        batch_free(&labels);
        shares_free(&shares);
        return NULL;
    }
    gm_model_retain(model);
    const gm_score_request request = {kind, b.all, labels.all, b.n, labels.n, shares.all, shares.n};
    gm_scoring *scoring = NULL;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS status = gm_score_begin(model, &request, &scoring);
    Py_END_ALLOW_THREADS bool ok = status == GM_OK;
    for (status = GM_AGAIN; ok && status == GM_AGAIN;) {
        Py_BEGIN_ALLOW_THREADS status = gm_score_step(scoring, SLICE_MS);
        Py_END_ALLOW_THREADS ok = (status == GM_OK || status == GM_AGAIN) && PyErr_CheckSignals() == 0;
    }
    PyObject *result = NULL;
    int64_t vocab = gm_model_vocab_size(model);
    if (!ok)
        raise_gm(state);
    else if (kind == GM_SCORE_LAST)
        result = last_and_labels(state, scoring, b.n, labels.n, vocab);
    else
        result = rows_list(state, gm_score_data(scoring), &b,
                           kind == GM_SCORE_LOGITS   ? vocab
                           : kind == GM_SCORE_HIDDEN ? gm_model_hidden_size(model)
                                                     : 1,
                           kind == GM_SCORE_LOGPROBS ? 1 : 2);
    Py_BEGIN_ALLOW_THREADS gm_score_free(scoring);
    gm_model_release(model);
    Py_END_ALLOW_THREADS batch_free(&b);
    batch_free(&labels);
    shares_free(&shares);
    return result;
}

static PyObject *model_score(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"score", 2, 3, 3, {"kind", "sequences", "labels", "adapters", NULL}};
    PyObject *v[4];
    gm_score_kind kind;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_score_kind(v[0], &kind))
        return NULL;
    return score(self, kind, v[1], v[2], v[3]);
}

static PyObject *model_logits(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"logits", 1, 1, 1, {"sequences", "adapters", NULL}};
    PyObject *v[2];
    return read_arguments(&sig, args, n, kwnames, v) ? score(self, GM_SCORE_LOGITS, v[0], NULL, v[1]) : NULL;
}

#define SIG(text, doc) text "\n--\n\n" doc
static PyMethodDef model_methods[] = {
    {"info", model_info, METH_NOARGS, SIG("info($self)", "Everything known about the model, as a dict.")},
    {"new_session", py_model_new_session, METH_NOARGS,
     SIG("new_session($self)", "An empty sequence with its own KV cache.")},
    {"new_decoder", py_model_new_decoder, METH_NOARGS, SIG("new_decoder($self)", "A Decoder without streams.")},
    {"restore_session", py_model_restore_session, METH_O,
     SIG("restore_session($self, saved, /)",
         "The Session that Session.save made of it; gomlx.Error when the bytes are damaged or another model's.")},
    {"logits", FUNCTION(model_logits), FASTCALL,
     SIG("logits($self, sequences, /, *, adapters=())",
         "For each list of ids a float32 array [n, vocab]: the logits after each id. adapters: tuples (name, weight), "
         "which add up, as in score() and inspect().")},
    {"load_adapter", FUNCTION(py_model_load_adapter), FASTCALL,
     SIG("load_adapter($self, name, terms, /)", "Copies an adapter's terms, tuples (layer, a [rank, in], b [out, "
                                                "rank], scale), under a name; with magnitudes as "
                                                "in rows().")},
    {"unload_adapter", py_model_unload_adapter, METH_O,
     SIG("unload_adapter($self, name, /)", "Streams that use it go on to their end.")},
    {"adapters", py_model_adapters, METH_NOARGS,
     SIG("adapters($self)", "A dict for each that is loaded: name, hash of its content, terms, parameters, bytes, "
                            "least_rank, most_rank.")},
    {"score", FUNCTION(model_score), FASTCALL,
     SIG("score($self, kind, sequences, /, labels=(), *, adapters=())",
         "Of each list of ids a float32 array: 'logits' [n, vocab], 'logprobs' [n] of each id after those "
         "before it, 'hidden' [n, hidden]. 'last': the logits after the last ids [sequences, vocab], and for each "
         "sequence the log probability of each label after it.")},
    {"activations", py_model_activations, METH_NOARGS,
     SIG("activations($self)", "A tuple (number, name, shape, editable, source) for each activation; -1 stands for the "
                               "number of tokens, source is the layer whose keys it reads.")},
    {"inspect", FUNCTION(py_model_inspect), FASTCALL,
     SIG("inspect($self, ids, activations, *, edits=(), exact=False, adapters=())",
         "The activations with these numbers, of one pass "
         "over ids; edits are tuples (number, replaces, array, from, to); exact: with float32 activations and cache.")},
    {"head", py_model_head, METH_O,
     SIG("head($self, x, /)", "The logits of a residual stream float32 [n, hidden], lazy.")},
    {"rows", FUNCTION(py_model_rows), FASTCALL,
     SIG("rows($self, ids, lengths, *, terms=(), int8=False, bf16=False, checkpoints=False, sums=None, "
         "dropout=0.0, keys=None, whole=None, groups=None)",
         "The rows of sequences after the final norm, float32 [ids, hidden], lazy: ids of all, and how many each has. "
         "terms: tuples (layer, a [rank, k], b [rows, rank], scale), or with magnitudes (layer, a, b, scale, magnitude "
         "[rows], squares [rows] of the lengths of the matrix's rows), to which gradients go. int8: linear layers "
         "round "
         "what they read as decoders do. bf16: they, attention, and gradients multiply numbers rounded to bfloat16. "
         "checkpoints: backwards, each layer is computed again from its input. sums: for each term None, or gradients "
         "(of a, of b, of magnitude where there is one) in float32 that those of these rows are added to, sequence by "
         "sequence: passes over whole sequences in order, each from the gradients of the one before, end with the bits "
         "of one pass. dropout: the share of what terms read that is left out, drawn by keys, uint32 [sequences, 2]. "
         "whole: weights that are trained themselves, (name, array, None or the gradient so far in float32): matrices "
         "and biases of linear layers, the embedding, vectors of norms.")},
    {"loss", FUNCTION(py_model_loss), FASTCALL,
     SIG("loss($self, rows, targets, *, gradient=False, int8=False, bf16=False)",
         "The cross entropy of each row's logits against its target id, float32 [n], lazy; gradient: as something to "
         "differentiate, computed slice by slice with the loss. int8, bf16: the head rounds as in rows().")},
    {"weight", model_weight, METH_O,
     SIG("weight($self, name, /)",
         "A weight by its Hugging Face name as a lazy float32 array; IndexError when there is none.")},
    {"weight_names", model_weight_names, METH_NOARGS,
     SIG("weight_names($self)", "The names that weight() knows, in the order of the layers.")},
    {"close", model_close, METH_NOARGS, SIG("close($self)", "Gives the memory back; twice is fine.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef model_properties[] = {
    {"vocab_size", get_vocab_size, NULL, "The number of logits.", NULL},
    {"context_length", get_context_length, NULL, "The longest sequence, in tokens.", NULL},
    {"tokenizer", get_tokenizer, set_tokenizer, "What sessions' append() asks for the ids of a text, or None.", NULL},
    {"closed", get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot model_slots[] = {
    {Py_tp_doc, "A model in memory, made by load_model."},
    {Py_tp_dealloc, model_dealloc},
    {Py_tp_methods, model_methods},
    {Py_tp_getset, model_properties},
    {0, NULL},
};
PyType_Spec py_model_spec = {"gomlx._gomlx.Model", sizeof(model_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, model_slots};
