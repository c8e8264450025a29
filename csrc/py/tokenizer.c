/* tokenizer.c - Tokenizer and its incremental counterpart. A Tokenizer never changes, so any thread may use it at any
 * time. */
#include "py/py.h"
#include <string.h>

static void tokenizer_dealloc(PyObject *self) {
    gm_tokenizer_release(((tokenizer_object *)self)->tokenizer);
    object_free(self);
}

static module_state *tokenizer_state(PyObject *self) {
    return state_of(self, tokenizer_dealloc);
}

static gm_tokenizer *tokenizer_of(PyObject *self) {
    return ((tokenizer_object *)self)->tokenizer;
}

static PyObject *tokenizer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "a Tokenizer is made by from_json or from_gguf");
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
    Py_BEGIN_ALLOW_THREADS
    status = gm_tokenizer_from_json(json.buf, (size_t)json.len, name, &tokenizer);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&json);
    return status == GM_OK ? tokenizer_wrap(class, tokenizer) : raise_gm(state_of_class(class));
}

static PyObject *from_gguf(PyObject *class, PyObject *path) {
    PyObject *bytes;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    gm_tokenizer *tokenizer = NULL;
    gm_status status;
    const char *name = PyBytes_AsString(bytes);
    Py_BEGIN_ALLOW_THREADS
    status = gm_tokenizer_from_gguf(name, &tokenizer);
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    return status == GM_OK ? tokenizer_wrap(class, tokenizer) : raise_gm(state_of_class(class));
}

/* UTF-8 of a str as bytes. Lone surrogates, which UTF-8 has no form for, become U+FFFD: three bytes for three. */
static PyObject *utf8_of(PyObject *text) {
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "text must be a str, not %R", (PyObject *)Py_TYPE(text));
        return NULL;
    }
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    if (bytes || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return bytes;
    PyErr_Clear();
    bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    if (!bytes)
        return NULL;
    unsigned char *p = (unsigned char *)PyBytes_AsString(bytes);     /* ours alone so far */
    for (Py_ssize_t i = 0, n = PyBytes_Size(bytes); i + 2 < n; i++)
        if (p[i] == 0xED && p[i + 1] >= 0xA0)
            memcpy(p + i, "\xEF\xBF\xBD", 3);
    return bytes;
}

static PyObject *encode(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"encode", 0, 3, 1, {"text", "add_special_tokens", "parse_special", NULL}};
    PyObject *v[3];
    bool add_special = true, parse_special = true;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[1], &add_special)
        || !read_bool(v[2], &parse_special))
        return NULL;
    PyObject *bytes = utf8_of(v[0]);
    if (!bytes)
        return NULL;
    const char *text = PyBytes_AsString(bytes);
    size_t length = (size_t)PyBytes_Size(bytes), count = 0;
    int32_t *ids = NULL;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_tokenizer_encode(tokenizer_of(self), text, length, add_special, parse_special, &ids, &count);
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (status != GM_OK)
        return raise_gm(tokenizer_state(self));
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, id);
    }
    gm_buffer_free(ids);
    return list;
}

static PyObject *decode(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"decode", 0, 2, 1, {"ids", "skip_special_tokens", NULL}};
    PyObject *v[2], *result = NULL;
    bool skip_special = false;
    int32_t *ids;
    size_t count, length = 0;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[1], &skip_special) || !read_ids(v[0], &ids, &count))
        return NULL;
    char *text = NULL;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_tokenizer_decode(tokenizer_of(self), ids, count, skip_special, &text, &length);
    Py_END_ALLOW_THREADS
    PyMem_Free(ids);
    if (status != GM_OK)
        return raise_gm(tokenizer_state(self));
    result = PyUnicode_DecodeUTF8(text ? text : "", (Py_ssize_t)length, "replace");
    gm_buffer_free(text);
    return result;
}

static PyObject *token_to_id(PyObject *self, PyObject *token) {
    PyObject *bytes = utf8_of(token);
    if (!bytes)
        return NULL;
    int32_t id = gm_tokenizer_id(tokenizer_of(self), PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
    Py_DECREF(bytes);
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

typedef struct { PyObject_HEAD gm_detokenizer *detokenizer; PyObject *tokenizer; } detokenizer_object;

static PyObject *detokenizer_stream(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"stream", 0, 1, 0, {"skip_special_tokens", NULL}};
    module_state *state = tokenizer_state(self);
    PyObject *v[1];
    bool skip_special = true;
    if (!read_arguments(&sig, args, n, kwnames, v) || !read_bool(v[0], &skip_special))
        return NULL;
    gm_detokenizer *detokenizer = NULL;
    if (gm_detokenizer_new(tokenizer_of(self), skip_special, &detokenizer) != GM_OK)
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
    {"from_gguf", from_gguf, METH_O | METH_CLASS,
     SIG("from_gguf($type, path, /)", "From the metadata of a GGUF file.")},
    {"encode", FUNCTION(encode), FASTCALL,
     SIG("encode($self, text, add_special_tokens=True, parse_special=True)", "The ids of a text.")},
    {"decode", FUNCTION(decode), FASTCALL, SIG("decode($self, ids, skip_special_tokens=False)", "The text of ids.")},
    {"token_to_id", token_to_id, METH_O,
     SIG("token_to_id($self, token, /)", "The id of a token's own string, or None.")},
    {"id_to_token", id_to_token, METH_O, SIG("id_to_token($self, id, /)", "The token's own string, or None.")},
    {"is_special", is_special, METH_O, SIG("is_special($self, id, /)", "Whether the token is a special one.")},
    {"stream", FUNCTION(detokenizer_stream), FASTCALL,
     SIG("stream($self, skip_special_tokens=True)", "A Detokenizer, for decoding token by token.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef tokenizer_properties[] = {
    {"vocab_size", get_vocab_size, NULL, "The largest id + 1, added tokens included.", NULL},
    {"base_vocab_size", get_base_size, NULL, "The largest id + 1 of the tokens that are no added ones.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot tokenizer_slots[] = {
    {Py_tp_doc, "Text to token ids and back."},
    {Py_tp_new, tokenizer_new},
    {Py_tp_dealloc, tokenizer_dealloc},
    {Py_tp_methods, tokenizer_methods},
    {Py_tp_getset, tokenizer_properties},
    {0, NULL},
};
PyType_Spec py_tokenizer_spec = {"gomlx._gomlx.Tokenizer", sizeof(tokenizer_object), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, tokenizer_slots};
