/* tokenizer.c - Tokenizer and its incremental counterpart. A Tokenizer never changes, so any thread may use it at any
 * time. */
#include "py/text/tokenizer.h"
#include <string.h>

static void tokenizer_dealloc(PyObject *self) {
    tokenizer_object *t = (tokenizer_object *)self;
    int64_t vocab_size = t->numbers ? gm_tokenizer_vocab_size(t->tokenizer) : 0;
    for (int64_t i = 0; i < vocab_size; i++)
        Py_XDECREF(t->numbers[i]);
    PyMem_Free(t->numbers);
    gm_tokenizer_release(t->tokenizer);
    object_free(self);
}

module_state *tokenizer_state(PyObject *self) { return state_of(self, tokenizer_dealloc); }

gm_tokenizer *tokenizer_of(PyObject *self) { return ((tokenizer_object *)self)->tokenizer; }

static PyObject *tokenizer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "a Tokenizer is made by from_file, from_json, from_sentencepiece or from_gguf");
    return NULL;
}

/* An object of the class (a subclass, maybe) around the C tokenizer, which it takes over. */
static PyObject *tokenizer_wrap(PyObject *class, gm_tokenizer *tokenizer) {
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)class, Py_tp_alloc);
    tokenizer_object *self = (tokenizer_object *)allocate((PyTypeObject *)class, 0);
    if (self)
        self->tokenizer = tokenizer;
    else
        gm_tokenizer_release(tokenizer);
    return (PyObject *)self;
}

/* The module's state from the class itself: no instance is there yet. */
static module_state *state_of_class(PyObject *class) {
    PyTypeObject *type = (PyTypeObject *)class;
    while ((destructor)PyType_GetSlot(type, Py_tp_dealloc) != tokenizer_dealloc)
        type = PyType_GetSlot(type, Py_tp_base);
    return PyType_GetModuleState(type);
}

static PyObject *from_json(PyObject *class, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"from_json", 0, 2, 1, {"json", "name", NULL}};
    PyObject *v[2];
    const char *name = "tokenizer.json";
    if (!read_arguments(&sig, args, n, kwnames, v) || (v[1] && !(name = PyUnicode_AsUTF8AndSize(v[1], NULL))))
        return NULL;
    Py_buffer json;
    if (PyObject_GetBuffer(v[0], &json, PyBUF_SIMPLE) < 0)
        return NULL;
    gm_tokenizer *tokenizer = NULL;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS status = gm_tokenizer_from_json(json.buf, (size_t)json.len, name, &tokenizer);
    Py_END_ALLOW_THREADS PyBuffer_Release(&json);
    return status == GM_OK ? tokenizer_wrap(class, tokenizer) : raise_gm(state_of_class(class));
}

static PyObject *from_sentencepiece(PyObject *class, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {
        "from_sentencepiece", 0, 5, 1, {"model", "parts", "add_bos", "add_eos", "name", NULL}};
    PyObject *v[5];
    const char *name = "tokenizer.model";
    bool add_bos = false, add_eos = false;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[2], &add_bos) || !read_bool(v[3], &add_eos) ||
        (v[4] && !(name = PyUnicode_AsUTF8AndSize(v[4], NULL))))
        return NULL;
    Py_buffer data, parts = {0};
    if (PyObject_GetBuffer(v[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (v[1] && PyObject_GetBuffer(v[1], &parts, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    const gm_sentencepiece_options options = {parts.buf, (size_t)parts.len, add_bos, add_eos};
    gm_tokenizer *tokenizer = NULL;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS status = gm_tokenizer_from_sentencepiece(data.buf, (size_t)data.len, &options, name,
                                                                    &tokenizer);
    Py_END_ALLOW_THREADS PyBuffer_Release(&parts);
    PyBuffer_Release(&data);
    return status == GM_OK ? tokenizer_wrap(class, tokenizer) : raise_gm(state_of_class(class));
}

static PyObject *pre_type(const gm_gguf_pre *pre) {
    Py_ssize_t n = 0;
    while (pre->patterns[n])
        n++;
    PyObject *patterns = PyTuple_New(n);
    for (Py_ssize_t i = 0; patterns && i < n; i++) {
        PyObject *pattern = PyUnicode_FromString(pre->patterns[i]);
        if (!pattern || PyTuple_SetItem(patterns, i, pattern) < 0)
            Py_CLEAR(patterns);
    }
    if (!patterns)
        return NULL;
    return Py_BuildValue("(NNNN)", patterns, PyBool_FromLong(pre->nfc), PyBool_FromLong(pre->ignore_merges),
                         PyBool_FromLong(pre->add_bos));
}

static PyObject *gguf_pre_types(PyObject *class, PyObject *unused) {
    (void)class, (void)unused;
    gm_gguf_pre pre;
    PyObject *types = PyDict_New();
    for (size_t i = 0; types && gm_gguf_pre_type(i, &pre); i++) {
        PyObject *value = pre_type(&pre);
        if (!value || PyDict_SetItemString(types, pre.name, value) < 0)
            Py_CLEAR(types);
        Py_XDECREF(value);
    }
    return types;
}

static PyObject *from_gguf(PyObject *class, PyObject *path) {
    PyObject *bytes;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    gm_tokenizer *tokenizer = NULL;
    gm_status status;
    const char *name = PyBytes_AsString(bytes);
    Py_BEGIN_ALLOW_THREADS status = gm_tokenizer_from_gguf(name, &tokenizer);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    return status == GM_OK ? tokenizer_wrap(class, tokenizer) : raise_gm(state_of_class(class));
}

/* ---- encoding ---- */

static PyObject *encode(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {
        "encode", 0, 3, 1, {"text", "add_special_tokens", "parse_special", "truncation", "padding", "as_arrays", NULL}};
    PyObject *v[6], *owner;
    encode_arguments a = {0};
    bool as_arrays = false, truncated = false;
    gm_text text;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[5], &as_arrays) || !read_text(v[0], &text, &owner))
        return NULL;
    int32_t *ids = NULL;
    size_t count = 0;
    PyObject *result = NULL;
    if (encode_arguments_read(self, &a, v[1], v[2], v[3], v[4])) {
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_tokenizer_encode(tokenizer_of(self), &text, NULL, &a.options, &ids, &count,
                                                            &truncated);
        Py_END_ALLOW_THREADS if (status != GM_OK) raise_gm(tokenizer_state(self));
        else if (truncated && a.from_file && !warn_truncated(&a)) gm_buffer_free(ids);
        else if (as_arrays) result = ids_array(tokenizer_state(self), ids, count);
        else {
            result = ids_list(self, ids, count);
            gm_buffer_free(ids);
        }
    }
    encode_arguments_free(&a);
    Py_DECREF(owner);
    return result;
}

static PyObject *encoding(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {
        "encoding", 0, 4, 1, {"text", "pair", "add_special_tokens", "parse_special", "truncation", "padding", NULL}};
    PyObject *v[6], *owners[2] = {NULL, NULL}, *result = NULL;
    encode_arguments a = {0};
    gm_text texts[2];
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    bool has_pair = v[1] && v[1] != Py_None;
    gm_encoding *made = NULL;
    if (read_text(v[0], &texts[0], &owners[0]) && (!has_pair || read_text(v[1], &texts[1], &owners[1])) &&
        encode_arguments_read(self, &a, v[2], v[3], v[4], v[5])) {
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_tokenizer_encoding(tokenizer_of(self), &texts[0],
                                                              has_pair ? &texts[1] : NULL, &a.options, &made);
        Py_END_ALLOW_THREADS result = status == GM_OK ? encoding_wrap(self, made) : raise_gm(tokenizer_state(self));
    }
    encode_arguments_free(&a);
    Py_XDECREF(owners[0]);
    Py_XDECREF(owners[1]);
    return result;
}

/* ---- many texts ---- */

typedef struct {
    gm_text *texts;
    PyObject **owners;
    size_t n;
} text_list;

static void text_list_free(text_list *list) {
    for (size_t i = 0; i < list->n; i++)
        Py_XDECREF(list->owners[i]);
    PyMem_Free(list->owners);
    PyMem_Free(list->texts);
}

/* text_list_free in any case. */
static bool text_list_read(PyObject *value, const char *what, text_list *list) {
    if (PyUnicode_Check(value) || PyBytes_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be a sequence of texts, not one", what);
        return false;
    }
    PyObject *items = PySequence_Tuple(value);
    if (!items)
        return false;
    size_t n = (size_t)PyTuple_Size(items);
    list->texts = PyMem_Calloc(n + 1, sizeof *list->texts);
    list->owners = PyMem_Calloc(n + 1, sizeof *list->owners);
    bool ok = list->texts && list->owners;
    if (!ok)
        PyErr_NoMemory();
    for (size_t i = 0; ok && i < n; i++, list->n++)
        ok = read_text(PyTuple_GetItem(items, (Py_ssize_t)i), &list->texts[i], &list->owners[i]);
    Py_DECREF(items);
    return ok;
}

/* The rows as views of one array for each block. */
static PyObject *array_rows(PyObject *self, gm_encode_batch *batch, size_t n) {
    size_t n_blocks = gm_encode_blocks(batch);
    PyObject **blocks = PyMem_Calloc(n_blocks + 1, sizeof *blocks), *rows = blocks ? PyList_New((Py_ssize_t)n) : NULL;
    bool ok = rows != NULL;
    if (!blocks)
        PyErr_NoMemory();
    for (size_t k = 0; ok && k < n_blocks; k++) {
        size_t count;
        int32_t *ids = gm_encode_take(batch, k, &count);
        ok = (blocks[k] = ids_array(tokenizer_state(self), ids, count)) != NULL;
    }
    for (size_t i = 0; ok && i < n; i++) {
        gm_encoded r = gm_encode_result(batch, i);
        PyObject *row = PySequence_GetSlice(blocks[r.block], (Py_ssize_t)r.start, (Py_ssize_t)(r.start + r.count));
        ok = row && PyList_SetItem(rows, (Py_ssize_t)i, row) == 0;
    }
    for (size_t k = 0; blocks && k < n_blocks; k++)
        Py_XDECREF(blocks[k]);
    PyMem_Free(blocks);
    if (!ok)
        Py_CLEAR(rows);
    return rows;
}

static PyObject *list_rows(PyObject *self, gm_encode_batch *batch, size_t n) {
    PyObject *rows = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; rows && i < n; i++) {
        gm_encoded r = gm_encode_result(batch, i);
        PyObject *row = ids_list(self, gm_encode_ids(batch, i), r.count);
        if (row)
            PyList_SetItem(rows, (Py_ssize_t)i, row);
        else
            Py_CLEAR(rows);
    }
    return rows;
}

static PyObject *encoding_rows(PyObject *self, gm_encode_batch *batch, size_t n) {
    PyObject *rows = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; rows && i < n; i++) {
        PyObject *row = encoding_wrap(self, gm_encode_encoding(batch, i));
        if (row)
            PyList_SetItem(rows, (Py_ssize_t)i, row);
        else
            Py_CLEAR(rows);
    }
    return rows;
}

/* Steps a batch to its end. false with an exception. */
static bool run_batch(PyObject *self, gm_encode_batch *batch) {
    gm_status status;
    do {
        Py_BEGIN_ALLOW_THREADS status = gm_encode_step(batch, SLICE_MS);
        Py_END_ALLOW_THREADS
    } while (status == GM_AGAIN && PyErr_CheckSignals() == 0);
    if (status == GM_OK)
        return true;
    if (!PyErr_Occurred())
        raise_gm(tokenizer_state(self));
    return false;
}

static bool warn_of_batch(const encode_arguments *a, const gm_encode_batch *batch, size_t n) {
    for (size_t i = 0; a->from_file && i < n; i++)
        if (gm_encode_result(batch, i).truncated)
            return warn_truncated(a);
    return true;
}

typedef enum { ROWS_LISTS, ROWS_ARRAYS, ROWS_ENCODINGS } row_kind;

static PyObject *encode_many(PyObject *self, PyObject *texts, PyObject *pairs, const encode_arguments *a, int threads,
                             row_kind kind) {
    text_list first = {0}, second = {0};
    bool has_pairs = pairs && pairs != Py_None;
    gm_encode_batch *batch = NULL;
    PyObject *rows = NULL;
    bool ok = text_list_read(texts, "texts", &first) && (!has_pairs || text_list_read(pairs, "pairs", &second));
    if (ok && has_pairs && second.n != first.n) {
        PyErr_Format(PyExc_ValueError, "%zu texts but %zu pairs", first.n, second.n);
        ok = false;
    }
    const gm_encode_request request = {first.texts, has_pairs ? second.texts : NULL, first.n, kind == ROWS_ENCODINGS,
                                       threads};
    if (ok && gm_encode_begin(tokenizer_of(self), &request, &a->options, &batch) != GM_OK) {
        raise_gm(tokenizer_state(self));
        ok = false;
    }
    if (ok && run_batch(self, batch) && (kind == ROWS_ENCODINGS || warn_of_batch(a, batch, first.n)))
        rows = kind == ROWS_ENCODINGS ? encoding_rows(self, batch, first.n)
               : kind == ROWS_ARRAYS  ? array_rows(self, batch, first.n)
                                      : list_rows(self, batch, first.n);
    gm_encode_free(batch);
    text_list_free(&first);
    text_list_free(&second);
    return rows;
}

static PyObject *encode_batch(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"encode_batch",
                                  0,
                                  3,
                                  1,
                                  {"texts", "add_special_tokens", "parse_special", "truncation", "padding", "as_arrays",
                                   "pairs", "threads", NULL}};
    PyObject *v[8], *rows = NULL;
    encode_arguments a = {0};
    bool as_arrays = false;
    int threads = 0;
    if (read_arguments(&sig, args, n, kwnames, v) && read_bool(v[5], &as_arrays) &&
        read_int(v[7], "threads", &threads) && encode_arguments_read(self, &a, v[1], v[2], v[3], v[4]))
        rows = encode_many(self, v[0], v[6], &a, threads, as_arrays ? ROWS_ARRAYS : ROWS_LISTS);
    encode_arguments_free(&a);
    return rows;
}

static PyObject *encoding_batch(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {
        "encoding_batch",
        0,
        4,
        1,
        {"texts", "pairs", "add_special_tokens", "parse_special", "truncation", "padding", "threads", NULL}};
    PyObject *v[7], *rows = NULL;
    encode_arguments a = {0};
    int threads = 0;
    if (read_arguments(&sig, args, n, kwnames, v) && read_int(v[6], "threads", &threads) &&
        encode_arguments_read(self, &a, v[2], v[3], v[4], v[5]))
        rows = encode_many(self, v[0], v[1], &a, threads, ROWS_ENCODINGS);
    encode_arguments_free(&a);
    return rows;
}

/* ---- decoding and looking up ---- */

static PyObject *decode(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"decode", 0, 2, 1, {"ids", "skip_special_tokens", "as_bytes", NULL}};
    PyObject *v[3], *result = NULL;
    bool skip_special = false, as_bytes = false;
    int32_t *ids;
    size_t count, length = 0;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[1], &skip_special) || !read_bool(v[2], &as_bytes))
        return NULL;
    PyObject *several = PyLong_Check(v[0]) ? PyTuple_Pack(1, v[0]) : Py_NewRef(v[0]); /* one id, or some */
    bool read = several && read_ids(several, &ids, &count);
    Py_XDECREF(several);
    if (!read)
        return NULL;
    char *text = NULL;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS status =
        as_bytes ? gm_tokenizer_decode_bytes(tokenizer_of(self), ids, count, skip_special, &text, &length)
                 : gm_tokenizer_decode(tokenizer_of(self), ids, count, skip_special, &text, &length);
    Py_END_ALLOW_THREADS PyMem_Free(ids);
    if (status != GM_OK)
        return raise_gm(tokenizer_state(self));
    result = as_bytes ? PyBytes_FromStringAndSize(text, (Py_ssize_t)length)
                      : PyUnicode_DecodeUTF8(text ? text : "", (Py_ssize_t)length, "replace");
    gm_buffer_free(text);
    return result;
}

static PyObject *list_of_bytes(const char *bytes, const size_t *ends, size_t n) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0, start = 0; list && i < n; start = ends[i++]) {
        PyObject *one = PyBytes_FromStringAndSize(bytes + start, (Py_ssize_t)(ends[i] - start));
        if (!one || PyList_SetItem(list, (Py_ssize_t)i, one) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* The bytes of tokens, by id; first: ids with text of their own. */
static PyObject *bytes_of_tokens(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"bytes_of_tokens", 0, 2, 2, {"ids", "first", NULL}};
    PyObject *v[2], *list = NULL;
    int32_t *ids = NULL, *first = NULL;
    size_t count, n_first;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_ids(v[0], &ids, &count))
        return NULL;
    size_t *ends = PyMem_Malloc(sizeof *ends * (count + 1));
    if (!ends)
        PyErr_NoMemory();
    if (ends && read_ids(v[1], &first, &n_first)) {
        char *bytes = NULL;
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_tokenizer_token_bytes(tokenizer_of(self), ids, count, first, n_first, ends,
                                                                 &bytes);
        Py_END_ALLOW_THREADS list = status == GM_OK ? list_of_bytes(bytes ? bytes : "", ends, count)
                                                    : raise_gm(tokenizer_state(self));
        gm_buffer_free(bytes);
    }
    PyMem_Free(first);
    PyMem_Free(ends);
    PyMem_Free(ids);
    return list;
}

/* Ids of the special tokens, in order. */
static PyObject *special_ids(PyObject *self, PyObject *unused) {
    (void)unused;
    int64_t n = gm_tokenizer_vocab_size(tokenizer_of(self));
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list && i < n; i++) {
        PyObject *id = gm_tokenizer_is_special(tokenizer_of(self), (int32_t)i) ? PyLong_FromLongLong(i) : NULL;
        if ((id && PyList_Append(list, id) < 0) || PyErr_Occurred())
            Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

static PyObject *token_to_id(PyObject *self, PyObject *token) {
    gm_text text;
    PyObject *owner;
    if (!read_text(token, &text, &owner))
        return NULL;
    int32_t id = gm_tokenizer_id(tokenizer_of(self), text.data, text.length);
    Py_DECREF(owner);
    if (id < 0)
        Py_RETURN_NONE;
    return PyLong_FromLong(id);
}

static PyObject *id_to_token(PyObject *self, PyObject *value) {
    int id;
    size_t length = 0;
    if (!read_int(value, "token id", &id))
        return NULL;
    const char *token = gm_tokenizer_token(tokenizer_of(self), id, &length);
    if (!token)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(token, (Py_ssize_t)length, "replace");
}

static PyObject *is_special(PyObject *self, PyObject *value) {
    int id;
    if (!read_int(value, "token id", &id))
        return NULL;
    return PyBool_FromLong(gm_tokenizer_is_special(tokenizer_of(self), id));
}

static PyObject *get_vocab_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(gm_tokenizer_vocab_size(tokenizer_of(self)));
}

static PyObject *get_base_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(gm_tokenizer_base_size(tokenizer_of(self)));
}

/* ---- streaming ---- */

typedef struct {
    PyObject_HEAD gm_detokenizer *detokenizer;
    PyObject *tokenizer;
} detokenizer_object;

static PyObject *detokenizer_stream(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"stream", 0, 1, 0, {"skip_special_tokens", "strict", NULL}};
    module_state *state = tokenizer_state(self);
    PyObject *v[2];
    bool skip_special = true, strict = false;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[0], &skip_special) || !read_bool(v[1], &strict))
        return NULL;
    gm_detokenizer *detokenizer = NULL;
    if (gm_detokenizer_new(tokenizer_of(self), skip_special, strict, &detokenizer) != GM_OK)
        return raise_gm(state);
    detokenizer_object *stream = (detokenizer_object *)PyType_GenericAlloc(state->detokenizer_type, 0);
    if (!stream) {
        gm_detokenizer_free(detokenizer);
        return NULL;
    }
    stream->detokenizer = detokenizer;
    stream->tokenizer = Py_NewRef(self);
    return (PyObject *)stream;
}

static int detokenizer_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((detokenizer_object *)self)->tokenizer);
    return 0;
}

static void detokenizer_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    detokenizer_object *stream = (detokenizer_object *)self;
    gm_detokenizer_free(stream->detokenizer);
    Py_XDECREF(stream->tokenizer);
    object_free(self);
}

static PyObject *text_or_raise(PyObject *self, gm_status status, const char *text, size_t length) {
    if (status != GM_OK)
        return raise_gm(state_of(self, detokenizer_dealloc));
    return PyUnicode_DecodeUTF8(text ? text : "", (Py_ssize_t)length, "replace");
}

static PyObject *push(PyObject *self, PyObject *value) {
    int id;
    const char *text = NULL;
    size_t length = 0;
    if (!read_int(value, "token id", &id))
        return NULL;
    gm_status status = gm_detokenizer_push(((detokenizer_object *)self)->detokenizer, id, &text, &length);
    return text_or_raise(self, status, text, length);
}

static PyObject *finish(PyObject *self, PyObject *unused) {
    (void)unused;
    const char *text = NULL;
    size_t length = 0;
    gm_status status = gm_detokenizer_finish(((detokenizer_object *)self)->detokenizer, &text, &length);
    return text_or_raise(self, status, text, length);
}

#define SIG(text, doc) text "\n--\n\n" doc
static PyMethodDef detokenizer_methods[] = {
    {"push", push, METH_O,
     SIG("push($self, id, /)", "The text that is certain once this token is there; never half a character.")},
    {"finish", finish, METH_NOARGS, SIG("finish($self)", "The text that was held back.")},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot detokenizer_slots[] = {
    {Py_tp_doc, "Decodes tokens one by one; all pieces together are what Tokenizer.decode gives."},
    {Py_tp_dealloc, detokenizer_dealloc},
    {Py_tp_traverse, detokenizer_traverse},
    {Py_tp_methods, detokenizer_methods},
    {0, NULL},
};
PyType_Spec py_detokenizer_spec = {"gomlx._gomlx.Detokenizer", sizeof(detokenizer_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   detokenizer_slots};

static PyMethodDef tokenizer_methods[] = {
    {"from_json", FUNCTION(from_json), FASTCALL | METH_CLASS,
     SIG("from_json($type, json, name='tokenizer.json')", "From the bytes of a tokenizer.json; name is for messages.")},
    {"from_sentencepiece", FUNCTION(from_sentencepiece), FASTCALL | METH_CLASS,
     SIG("from_sentencepiece($type, model, parts=b'', add_bos=False, add_eos=False, name='tokenizer.model')",
         "From the bytes of a SentencePiece model. parts: a tokenizer.json without a model, for added tokens.")},
    {"gguf_pre_types", gguf_pre_types, METH_NOARGS | METH_STATIC,
     SIG("gguf_pre_types()", "What tokenizer.ggml.pre may be: {name: (patterns, NFC before them, whole pieces before "
                             "merges, start token by default)}.")},
    {"from_gguf", from_gguf, METH_O | METH_CLASS,
     SIG("from_gguf($type, path, /)", "From the metadata of a GGUF file.")},
    {"encode", FUNCTION(encode), FASTCALL,
     SIG("encode($self, text, add_special_tokens=True, parse_special=True, *, truncation=None, padding=None, "
         "as_arrays=False)",
         "The ids of a text, a list of ints; as_arrays: an int32 NumPy array [n].\n\n"
         "text                str, of which lone surrogates count as U+FFFD; or bytes, of which what is not UTF-8\n"
         "                    becomes the tokens of its bytes (ValueError where the vocabulary has none)\n"
         "add_special_tokens  what the post-processor adds, such as BOS\n"
         "parse_special       text of special tokens becomes those tokens; else it is text like any other\n"
         "truncation          None: as the file declares it (.truncation), with a warning when that cuts a text;\n"
         "                    False: none; a number of tokens; a dict of max_length, stride, strategy\n"
         "                    ('longest_first', 'only_first', 'only_second'), direction ('left', 'right')\n"
         "padding             None: as the file declares it (.padding); False: none; True: to the longest of the\n"
         "                    texts; a dict of length, pad_id, pad_token, pad_type_id, pad_to_multiple_of, direction")},
    {"encode_batch", FUNCTION(encode_batch), FASTCALL,
     SIG("encode_batch($self, texts, add_special_tokens=True, parse_special=True, *, truncation=None, padding=None, "
         "as_arrays=False, pairs=None, threads=0)",
         "encode() of many texts, on the engine's threads (threads=0: as many as set_threads says): a list of lists,\n"
         "or of int32 NumPy arrays, which may be views of a common one. pairs: a second text for each.")},
    {"encoding", FUNCTION(encoding), FASTCALL,
     SIG("encoding($self, text, pair=None, add_special_tokens=True, parse_special=True, *, truncation=None, "
         "padding=None)",
         "The Encoding of a text, or of a pair of texts; options as in encode().")},
    {"encoding_batch", FUNCTION(encoding_batch), FASTCALL,
     SIG("encoding_batch($self, texts, pairs=None, add_special_tokens=True, parse_special=True, *, truncation=None, "
         "padding=None, threads=0)",
         "A list of the Encodings of many texts, or pairs.")},
    {"decode", FUNCTION(decode), FASTCALL,
     SIG("decode($self, ids, skip_special_tokens=False, *, as_bytes=False)",
         "The text of ids, a sequence of ints, an array of them or one int; what is not UTF-8 becomes U+FFFD.\n"
         "as_bytes: the bytes of the tokens, in a byte-level vocabulary (NotImplementedError in any other).")},
    {"bytes_of_tokens", FUNCTION(bytes_of_tokens), FASTCALL,
     SIG("bytes_of_tokens($self, ids, first)",
         "A list of the bytes that each id adds to a text that others have begun. first: one or two ids with text of\n"
         "their own; a byte-level vocabulary needs none.")},
    {"token_to_id", token_to_id, METH_O,
     SIG("token_to_id($self, token, /)", "The id of a token's own string, or None.")},
    {"id_to_token", id_to_token, METH_O, SIG("id_to_token($self, id, /)", "The token's own string, or None.")},
    {"special_ids", special_ids, METH_NOARGS, SIG("special_ids($self)", "The ids of the special tokens, in order.")},
    {"is_special", is_special, METH_O, SIG("is_special($self, id, /)", "Whether the token is a special one.")},
    {"stream", FUNCTION(detokenizer_stream), FASTCALL,
     SIG("stream($self, skip_special_tokens=True, *, strict=False)",
         "A Detokenizer, for decoding token by token; strict: it always gives what decode() gives, for which it holds "
         "runs of byte tokens back to their end.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef tokenizer_properties[] = {
    {"truncation", get_truncation, NULL, "What the file declares, a dict, or None.", NULL},
    {"padding", get_padding, NULL, "What the file declares, a dict, or None.", NULL},
    {"vocab_size", get_vocab_size, NULL, "The largest id + 1, added tokens included.", NULL},
    {"base_vocab_size", get_base_size, NULL, "The largest id + 1 of the tokens that are not added ones.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot tokenizer_slots[] = {
    {Py_tp_doc,
     "Tokenizer()\n--\n\nText to token ids and back; made by from_file, from_json, from_sentencepiece or from_gguf."},
    {Py_tp_new, tokenizer_new},
    {Py_tp_dealloc, tokenizer_dealloc},
    {Py_tp_methods, tokenizer_methods},
    {Py_tp_getset, tokenizer_properties},
    {0, NULL},
};
PyType_Spec py_tokenizer_spec = {"gomlx._gomlx.Tokenizer", sizeof(tokenizer_object), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, tokenizer_slots};
