/* module.c - the extension module gomlx._gomlx: its state, its types, machine and memory functions. */
#include "py/text/tokenizer.h"

module_state *state_of(PyObject *self, destructor own) {
    PyTypeObject *type = Py_TYPE(self);
    while (type && (destructor)PyType_GetSlot(type, Py_tp_dealloc) != own)
        type = PyType_GetSlot(type, Py_tp_base);
    return type ? PyType_GetModuleState(type) : NULL;
}

void object_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

PyTypeObject *type_add(PyObject *module, PyType_Spec *spec, bool public_name) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && public_name && PyModule_AddType(module, type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    return type;
}

/* ---- machine ---- */

static PyObject *isa(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(gm_isa());
}

static PyObject *multiplies_bfloat16(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(gm_multiplies_bfloat16());
}

static PyObject *isa_reason(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(gm_isa_reason());
}

static PyObject *default_threads(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(gm_default_threads());
}

static PyObject *default_threads_reason(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(gm_default_threads_reason());
}

static PyObject *set_threads(PyObject *module, PyObject *value) {
    int n;
    if (!read_int(value, "the number of threads", &n))
        return NULL;
    if (gm_set_threads(n) != GM_OK)
        return raise_gm(PyModule_GetState(module));
    Py_RETURN_NONE;
}

static PyObject *get_promised_memory(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromSize_t(gm_promised_memory());
}

static PyObject *keep_memory(PyObject *module, PyObject *on) {
    const int keep = PyObject_IsTrue(on);
    (void)module;
    if (keep < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS gm_keep_memory(keep);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* ---- for the Python files of the package ---- */

static PyObject *synchronize(PyObject *module, PyObject *unused) {
    gm_status status;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS status = gm_synchronize();
    Py_END_ALLOW_THREADS if (status != GM_OK) return raise_gm(PyModule_GetState(module));
    Py_RETURN_NONE;
}

static PyObject *check_stream(PyObject *module, PyObject *value) {
    stream_place place;
    (void)module;
    if (!place_enter(value, &place))
        return NULL;
    place_leave(&place);
    Py_RETURN_NONE;
}

static PyObject *promote(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *a, *b;
    gm_dtype x = GM_DTYPE_COUNT, y = GM_DTYPE_COUNT;
    if (!PyArg_ParseTuple(args, "O!O!", state->dtype_type, &a, state->dtype_type, &b) || !read_dtype(state, a, &x) ||
        !read_dtype(state, b, &y))
        return NULL;
    return Py_NewRef(state->dtypes[gm_promote(x, y)]);
}

/* The precision of printing, changed unless the value is None. */
static PyObject *set_print_precision(PyObject *module, PyObject *value) {
    module_state *state = PyModule_GetState(module);
    if (value != Py_None && !read_int(value, "precision", &state->print_precision))
        return NULL;
    return PyLong_FromLong(state->print_precision);
}

/* ---- arrays from other libraries ---- */

static PyObject *from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"from_dlpack", 1, 1, 1, {"x", "copy", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[2];
    bool copy = true;
    if (!read_arguments(&sig, args, n, kwnames, v) || (v[1] != Py_None && !read_bool(v[1], &copy)))
        return NULL;
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? node_from_dlpack(state, scope, v[0], copy) : NULL;
    if (node && gm_array_dtype(node) == GM_FLOAT64 && copy)
        node = astype_on_host(scope, node, GM_FLOAT32); /* as array() does */
    return py_array_result(state, scope, node);
}

/* Without a copy only what is an array, or has a buffer or DLPack in one of our dtypes. */
static gm_array *shared_node(module_state *state, gm_scope *scope, PyObject *value, gm_dtype type) {
    gm_array *node = py_array_node(state, value);
    if (!node && PyObject_CheckBuffer(value))
        node = node_sharing_buffer(scope, value);
    else if (!node && PyObject_HasAttrString(value, "__dlpack__"))
        node = node_from_dlpack(state, scope, value, false);
    if (node ? type != GM_DTYPE_COUNT && gm_array_dtype(node) != type : !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "asarray: copy=False, but this needs a copy");
        return NULL;
    }
    return node;
}

static PyObject *asarray(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"asarray", 0, 2, 1, {"a", "dtype", "copy", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[3];
    gm_dtype type = GM_DTYPE_COUNT;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_dtype(state, v[1], &type))
        return NULL;
    bool share = v[2] && v[2] != Py_None && PyObject_IsTrue(v[2]) == 0;
    gm_scope *scope = gm_scope_open();
    if (!scope)
        return raise_gm(state);
    return py_array_result(state, scope,
                           share ? shared_node(state, scope, v[0], type) : node_from_value(state, scope, v[0], type));
}

/* The inverse of array.__reduce__. */
static PyObject *unpickle(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *class, *dtype, *shape_object, *bytes;
    if (!PyArg_ParseTuple(args, "OOOO!", &class, &dtype, &shape_object, &PyBytes_Type, &bytes))
        return NULL;
    gm_dtype type = GM_DTYPE_COUNT;
    int ndim;
    int64_t shape[GM_MAX_NDIM];
    if (!read_dtype(state, dtype, &type) || !read_shape(shape_object, &ndim, shape))
        return NULL;
    int is_array = PyObject_IsSubclass(class, (PyObject *)state->array_type);
    if (is_array < 0)
        return NULL;
    size_t want = type == GM_DTYPE_COUNT ? 0 : gm_dtype_size(type);
    for (int i = 0; i < ndim && want; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(want, (size_t)shape[i], &want))
            is_array = 0;
    if (!is_array || type == GM_DTYPE_COUNT || want != (size_t)PyBytes_Size(bytes)) {
        PyErr_SetString(PyExc_ValueError, "a pickled array whose bytes do not match its shape and dtype");
        return NULL;
    }
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? gm_array_from(scope, type, ndim, shape, PyBytes_AsString(bytes)) : NULL;
    if (node)
        gm_retain(node);
    gm_scope_close(scope);
    return node ? py_array_handle((PyTypeObject *)class, node) : raise_gm(state);
}

#define SIG(text, doc) text "\n--\n\n" doc
/* Names of MLX: these go into __all__, which gomlx.core re-exports. */
static PyMethodDef core_functions[] = {
    {"eval", FUNCTION(eval_trees), METH_FASTCALL,
     SIG("eval(*trees)", "Computes every array in lists, tuples and dicts of arrays.")},
    {"async_eval", FUNCTION(async_eval_trees), METH_FASTCALL,
     SIG("async_eval(*trees)", "Starts computing every array in lists, tuples and dicts of arrays, and returns.")},
    {"from_dlpack", FUNCTION(from_dlpack), FASTCALL,
     SIG("from_dlpack(x, /, *, copy=None)", "An array of any object with DLPack, or of a DLPack capsule, copied; "
                                            "float64 becomes float32. copy=False shares the\n"
                                            "memory, in its own dtype: what its owner writes then, the array shows.")},
    {"asarray", FUNCTION(asarray), FASTCALL,
     SIG("asarray(a, dtype=None, *, copy=None)",
         "An array of anything array() takes; copy=False shares memory or raises.")},
    {"get_array_buffer_size", FUNCTION(memory_of_trees), METH_FASTCALL,
     SIG("get_array_buffer_size(*trees)", "Bytes of the memory behind evaluated arrays, each block counted once.")},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef module_functions[] = {
    {"eval_or_drop", FUNCTION(eval_or_drop_trees), METH_FASTCALL,
     SIG("eval_or_drop(*trees)", "eval() that a signal whose handler raises ends at once: arrays without a value then "
                                 "stay so.")},
    {"multiplies_bfloat16", multiplies_bfloat16, METH_NOARGS,
     SIG("multiplies_bfloat16()",
         "Whether the instruction set in use does: then activations that meet weights in bfloat16 "
         "are rounded to it by default.")},
    {"isa", isa, METH_NOARGS,
     SIG("isa()", "The instruction set in use: generic, avx2, avxvnni, avx512, "
                  "avx512vnni, avx512bf16, avx512amx, neon or neon_i8mm.")},
    {"isa_reason", isa_reason, METH_NOARGS, SIG("isa_reason()", "Why that one.")},
    {"default_threads", default_threads, METH_NOARGS, SIG("default_threads()", "Threads unless told otherwise.")},
    {"default_threads_reason", default_threads_reason, METH_NOARGS, SIG("default_threads_reason()", "Why that many.")},
    {"keep_memory", keep_memory, METH_O,
     SIG("keep_memory(on, /)",
         "From True to False, which are counted, freed memory is kept for reuse beyond the cache's limit, but no more "
         "than was in use at once in that time, and an eighth.")},
    {"get_promised_memory", get_promised_memory, METH_NOARGS,
     SIG("get_promised_memory()", "Bytes that loaded models take before their second pass, not active yet.")},
    {"set_threads", set_threads, METH_O,
     SIG("set_threads(n, /)", "Threads for evaluating arrays; models have their own number.")},
    {"load_model", FUNCTION(load_model), FASTCALL,
     SIG("load_model(path, *, context_length=0, dtype=None, kv_dtype=None, activations=None, threads=0, progress=None, "
         "context_policy=None, device=0, host_layers=0)",
         "Loads a model folder or a GGUF file, its first host_layers layers on the processor whatever the device.")},
    {"describe", FUNCTION(describe_model), FASTCALL,
     SIG("describe(path, *, dtype=None, kv_dtype=None, activations=None)",
         "What loading a model folder or a GGUF file takes, by the headers of its files alone: a dict.")},
    {"describe_cache", describe_cache, METH_NOARGS,
     SIG("describe_cache()", "How KV caches keep positions: a dict of numbers.")},
    {"architectures", describe_architectures, METH_NOARGS,
     SIG("architectures()", "The architectures: a list of dicts with the names of their weights and hyperparameters.")},
    {"formats", describe_formats, METH_NOARGS,
     SIG("formats()", "The formats of weights: a list of dicts with the sizes of their blocks and GGUF's ids.")},
    {"session_bytes", bytes_of_sessions, METH_O,
     SIG("session_bytes(sessions, /)",
         "Bytes of memory that the caches of several hold; what they share counts once.")},
    {"stream", FUNCTION(open_stream), FASTCALL,
     SIG("stream(session, tokenizer, prompt_ids, *, max_tokens=-1, min_tokens=0, stop_ids=(), stop_texts=(), "
         "top_logprobs=0, processors=(), timeout=0, prefill='auto', edits=(), activations=(), profile=False, "
         "adapters=(), mask=None, prompt_logprobs=-1, checkpoint=0, **sampling)",
         "Generates from the ids: an iterator of Token. mask: called with the ids so far, as int32, before each token "
         "is "
         "drawn; gives the bits of those that may come, uint32 [(vocab + 31) // 32], or None for all. checkpoint: how "
         "many of the ids other prompts begin with, which recurrent layers shall be able to go back to. sampling: as "
         "in "
         "sample().")},
    {"sample", FUNCTION(sample_ids), FASTCALL,
     SIG("sample(logits, ids=(), *, n_prompt=None, step=0, n=1, **sampling)",
         "n ids drawn from logits [vocab]: draws number step, step + 1, ... after ids, of which the first n_prompt "
         "(all) "
         "are the prompt's.")},
    {"sample_probabilities", FUNCTION(sample_probabilities), FASTCALL,
     SIG("sample_probabilities(logits, ids=(), *, n_prompt=None, step=0, **sampling)",
         "The distribution that sample() draws from: float32 [vocab].")},
    {"_adam", adam_of_many, METH_VARARGS, NULL},
    {"_file_arrays", file_arrays, METH_VARARGS, NULL},
    {"_exchange", exchange, METH_VARARGS, NULL},
    {"_set_carrier", set_carrier, METH_O, NULL},
    {"_synchronize", synchronize, METH_NOARGS, NULL},
    {"_promote", promote, METH_VARARGS, NULL},
    {"_check_stream", check_stream, METH_O, NULL},
    {"_set_print_precision", set_print_precision, METH_O, NULL},
    {"_unpickle", unpickle, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static bool names_add(PyObject *names, const char *name) {
    PyObject *text = PyUnicode_FromString(name);
    bool ok = text && PyList_Append(names, text) == 0;
    Py_XDECREF(text);
    return ok;
}

static bool types_add(PyObject *module, module_state *state, PyObject *names) {
    return (state->array_type = type_add(module, &py_array_spec, true)) && names_add(names, "array") &&
           (state->dtype_type = type_add(module, &py_dtype_spec, true)) && names_add(names, "Dtype") &&
           (state->graph_type = type_add(module, &py_graph_spec, false)) &&
           (state->exporter_type = type_add(module, &py_exporter_spec, false)) &&
           (state->array_iterator_type = type_add(module, &py_array_iterator_spec, true)) &&
           names_add(names, "ArrayIterator") && (state->array_at_type = type_add(module, &py_array_at_spec, true)) &&
           names_add(names, "ArrayAt") && (state->tokenizer_type = type_add(module, &py_tokenizer_spec, true)) &&
           (state->detokenizer_type = type_add(module, &py_detokenizer_spec, true)) &&
           (state->encoding_type = type_add(module, &py_encoding_spec, true)) &&
           (state->ids_type = type_add(module, &py_ids_spec, false)) &&
           (state->model_type = type_add(module, &py_model_spec, true)) &&
           (state->session_type = type_add(module, &py_session_spec, true)) &&
           (state->stream_type = type_add(module, &py_stream_spec, true)) &&
           (state->decoder_type = type_add(module, &py_decoder_spec, true)) && py_token_type_add(module, state);
}

static int module_execute(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    state->print_precision = -1;
    if (!py_errors_add(module, state))
        return -1;
    if (gm_init() != GM_OK) {
        raise_gm(state);
        return -1;
    }
    gm_scope *scope = gm_scope_open();
    state->blank = gm_retain(scope ? gm_array_from(scope, GM_FLOAT32, 1, &(int64_t){0}, NULL) : NULL);
    gm_scope_close(scope);
    if (!state->blank) {
        raise_gm(state);
        return -1;
    }
    PyObject *names = PyList_New(0);
    bool ok = names && types_add(module, state, names) && py_dtypes_add(module, state, names) &&
              ops_add(module, names) && PyModule_AddFunctions(module, core_functions) == 0 &&
              PyModule_AddFunctions(module, memory_functions) == 0 &&
              PyModule_AddFunctions(module, device_functions) == 0 &&
              PyModule_AddFunctions(module, transform_functions) == 0 &&
              PyModule_AddFunctions(module, graph_functions) == 0 &&
              PyModule_AddFunctions(module, export_functions) == 0 &&
              PyModule_AddStringConstant(module, "version", GM_VERSION) == 0;
    for (PyMethodDef *f = core_functions; ok && f->ml_name; f++)
        ok = names_add(names, f->ml_name);
    for (PyMethodDef *f = memory_functions; ok && f->ml_name; f++)
        ok = names_add(names, f->ml_name);
    ok = ok && PyModule_AddObjectRef(module, "__all__", names) == 0;
    Py_XDECREF(names);
    return ok ? 0 : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
#define X(name) Py_VISIT(state->name##_type);
    STATE_TYPES(X)
#undef X
    Py_VISIT(state->error);
    Py_VISIT(state->axis_error);
    Py_VISIT(state->context_exceeded);
    Py_VISIT(state->no_state);
    Py_VISIT(state->no_model);
    Py_VISIT(state->numpy_asarray);
    for (int i = 0; i < GM_DTYPE_COUNT; i++)
        Py_VISIT(state->dtypes[i]);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
#define X(name) Py_CLEAR(state->name##_type);
    STATE_TYPES(X)
#undef X
    Py_CLEAR(state->error);
    Py_CLEAR(state->axis_error);
    Py_CLEAR(state->context_exceeded);
    Py_CLEAR(state->no_state);
    Py_CLEAR(state->no_model);
    Py_CLEAR(state->numpy_asarray);
    for (int i = 0; i < GM_DTYPE_COUNT; i++)
        Py_CLEAR(state->dtypes[i]);
    return 0;
}

static void module_free(void *module) {
    module_state *state = PyModule_GetState(module);
    module_clear(module);
    gm_release(state->blank);
    state->blank = NULL;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_execute},
    {0, NULL},
};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "gomlx._gomlx",  "The engine of gomlx.", sizeof(module_state), module_functions,
    module_slots,          module_traverse, module_clear,           module_free,
};

PyMODINIT_FUNC PyInit__gomlx(void) { return PyModuleDef_Init(&module_definition); }
