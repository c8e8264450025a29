/* encoding.c - what encoding gives to Python: lists of ids, int32 arrays over the engine's memory, Encoding objects;
 * and the options that such calls take. */
#include "py/text/tokenizer.h"
#include <limits.h>
#include <string.h>

/* ---- lists of ids ---- */

/* A new reference; ids of the vocabulary are made once, for there are many of each. */
static PyObject *number_of(tokenizer_object *t, size_t vocab_size, int32_t id) {
    if ((size_t)(uint32_t)id >= vocab_size)
        return PyLong_FromLong(id);
    if (!t->numbers[id])
        t->numbers[id] = PyLong_FromLong(id);
    return Py_XNewRef(t->numbers[id]);
}

PyObject *ids_list(PyObject *self, const int32_t *ids, size_t n) {
    tokenizer_object *t = (tokenizer_object *)self;
    size_t vocab_size = (size_t)gm_tokenizer_vocab_size(t->tokenizer);
    if (!t->numbers)
        t->numbers = PyMem_Calloc(vocab_size + 1, sizeof *t->numbers);
    PyObject *list = t->numbers ? PyList_New((Py_ssize_t)n) : PyErr_NoMemory();
    for (size_t i = 0; list && i < n; i++) {
        PyObject *id = number_of(t, vocab_size, ids[i]);
        if (id)
            PyList_SetItem(list, (Py_ssize_t)i, id);
        else
            Py_CLEAR(list);
    }
    return list;
}

/* ---- arrays of ids ---- */

/* Ids in the engine's memory, for NumPy, through the buffer protocol. */
typedef struct {
    PyObject_HEAD int32_t *ids;
    Py_ssize_t n;
} ids_object;

static void ids_dealloc(PyObject *self) {
    gm_buffer_free(((ids_object *)self)->ids);
    object_free(self);
}

static int ids_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    ids_object *o = (ids_object *)self;
    static Py_ssize_t stride = sizeof(int32_t);
    static int32_t nothing;
    *view = (Py_buffer){.obj = Py_NewRef(self),
                        .buf = o->ids ? o->ids : &nothing,
                        .len = o->n * (Py_ssize_t)sizeof(int32_t),
                        .itemsize = sizeof(int32_t),
                        .ndim = 1};
    view->format = flags & PyBUF_FORMAT ? "i" : NULL;
    view->shape = flags & PyBUF_ND ? &o->n : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &stride : NULL;
    return 0;
}

static PyType_Slot ids_slots[] = {
    {Py_tp_doc, "int32 ids in the engine's memory."},
    {Py_tp_dealloc, ids_dealloc},
    {Py_bf_getbuffer, ids_getbuffer},
    {0, NULL},
};
PyType_Spec py_ids_spec = {"gomlx._gomlx._Ids", sizeof(ids_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, ids_slots};

PyObject *ids_array(module_state *state, int32_t *ids, size_t n) {
    ids_object *o = (ids_object *)PyType_GenericAlloc(state->ids_type, 0);
    if (!o) {
        gm_buffer_free(ids);
        return NULL;
    }
    o->ids = ids;
    o->n = (Py_ssize_t)n;
    if (!state->numpy_asarray) {
        PyObject *numpy = PyImport_ImportModule("numpy");
        state->numpy_asarray = numpy ? PyObject_GetAttrString(numpy, "asarray") : NULL;
        Py_XDECREF(numpy);
    }
    PyObject *array = state->numpy_asarray ? PyObject_CallFunctionObjArgs(state->numpy_asarray, (PyObject *)o, NULL)
                                           : NULL;
    Py_DECREF(o);
    return array;
}

/* ---- texts ---- */

bool read_text(PyObject *value, gm_text *out, PyObject **owner) {
    Py_ssize_t n = 0;
    *owner = NULL;
    *out = (gm_text){0};
    if (PyBytes_Check(value)) {
        *owner = Py_NewRef(value);
        *out = (gm_text){PyBytes_AsString(value), (size_t)PyBytes_Size(value), .raw = true};
        return true;
    }
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "a text must be a str or bytes, not %R", (PyObject *)Py_TYPE(value));
        return false;
    }
    const char *text = PyUnicode_AsUTF8AndSize(value, &n);
    if (text) {
        *owner = Py_NewRef(value);
        *out = (gm_text){text, (size_t)n, .valid = true};
        return true;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return false;
    /* Lone surrogates, which UTF-8 has no form for, become U+FFFD: three bytes for three. */
    PyErr_Clear();
    PyObject *bytes = PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass");
    if (!bytes)
        return false;
    unsigned char *p = (unsigned char *)PyBytes_AsString(bytes); /* ours alone so far */
    n = PyBytes_Size(bytes);
    for (Py_ssize_t i = 0; i + 2 < n; i++)
        if (p[i] == 0xED && p[i + 1] >= 0xA0)
            memcpy(p + i, "\xEF\xBF\xBD", 3);
    *owner = bytes;
    *out = (gm_text){(const char *)p, (size_t)n, .valid = true};
    return true;
}

/* ---- truncation and padding ---- */

static const char *const strategies[] = {"longest_first", "only_first", "only_second"};

/* An entry of a dict, which may be absent: then *out stays. */
static bool read_entry(PyObject *dict, const char *key, int64_t least, int64_t *out) {
    PyObject *value = PyDict_GetItemString(dict, key);
    if (!value || value == Py_None)
        return true;
    if (!read_count(value, key, out))
        return false;
    if (*out >= least && *out <= INT32_MAX)
        return true;
    PyErr_Format(PyExc_ValueError, "%s is %lld, expected %lld to %d", key, (long long)*out, (long long)least,
                 INT32_MAX);
    return false;
}

static bool read_direction(PyObject *dict, bool *left) {
    PyObject *value = PyDict_GetItemString(dict, "direction");
    if (!value || value == Py_None)
        return true;
    *left = PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "left") == 0;
    if (*left || (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "right") == 0))
        return true;
    PyErr_Format(PyExc_ValueError, "direction is %R, expected 'left' or 'right'", value);
    return false;
}

/* The dict has none but these keys. */
static bool check_keys(PyObject *dict, const char *what, const char *const *keys) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        int k = 0;
        while (keys[k] && !(PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, keys[k]) == 0))
            k++;
        if (!keys[k]) {
            PyErr_Format(PyExc_ValueError, "%s has no setting %R", what, key);
            return false;
        }
    }
    return true;
}

static bool read_truncation(PyObject *value, gm_truncation *out) {
    static const char *const keys[] = {"max_length", "stride", "strategy", "direction", NULL};
    int64_t max_length = -1, stride = 0;
    if (PyIndex_Check(value) && !PyBool_Check(value)) {
        if (!read_count(value, "truncation", &max_length))
            return false;
    } else if (!PyDict_Check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "truncation is %R, expected None, False, a number of tokens, or a dict of "
                     "max_length, stride, strategy, direction",
                     value);
        return false;
    } else {
        PyObject *strategy = PyDict_GetItemString(value, "strategy");
        int k = 0;
        if (!check_keys(value, "truncation", keys) || !read_entry(value, "max_length", 0, &max_length) ||
            !read_entry(value, "stride", 0, &stride) || !read_direction(value, &out->left))
            return false;
        while (strategy && k < 3 &&
               !(PyUnicode_Check(strategy) && PyUnicode_CompareWithASCIIString(strategy, strategies[k]) == 0))
            k++;
        if (k == 3) {
            PyErr_Format(PyExc_ValueError, "strategy is %R, expected longest_first, only_first or only_second",
                         strategy);
            return false;
        }
        out->strategy = (gm_truncation_strategy)k;
    }
    if (max_length < 0) {
        PyErr_SetString(PyExc_ValueError, "truncation needs a max_length of 0 or more");
        return false;
    }
    out->max_length = (size_t)max_length;
    out->stride = (size_t)stride;
    return true;
}

/* The token that fills up: of the call, of the file, of the model's settings. */
static bool find_pad_token(PyObject *self, encode_arguments *a, PyObject *token, bool has_id) {
    gm_padding *out = &a->padding;
    const gm_padding *file = gm_tokenizer_padding(tokenizer_of(self));
    Py_ssize_t n = 0;
    if (!token && !has_id && file) {
        out->id = file->id;
        out->token = file->token;
        out->token_length = file->token_length;
        return true;
    }
    a->pad_token = token ? Py_NewRef(token) : has_id ? NULL : PyObject_GetAttrString(self, "pad_token");
    if (!a->pad_token) {
        if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_AttributeError))
            return !PyErr_Occurred();
        PyErr_Clear();
    }
    const char *text = a->pad_token && a->pad_token != Py_None ? PyUnicode_AsUTF8AndSize(a->pad_token, &n) : NULL;
    if (PyErr_Occurred())
        return false;
    out->token = text;
    out->token_length = (size_t)n;
    if (has_id)
        return true;
    out->id = text ? gm_tokenizer_id(tokenizer_of(self), text, (size_t)n) : -1;
    if (out->id >= 0)
        return true;
    PyErr_SetString(PyExc_ValueError, "this tokenizer has no padding token; padding={'pad_id': ...} names one");
    return false;
}

static bool read_padding(PyObject *self, PyObject *value, encode_arguments *a) {
    static const char *const keys[] = {"length",    "pad_id", "pad_type_id", "pad_token", "pad_to_multiple_of",
                                       "direction", NULL};
    gm_padding *out = &a->padding;
    const gm_padding *file = gm_tokenizer_padding(tokenizer_of(self));
    int64_t length = -1, id = -1, type_id = file ? file->type_id : 0, multiple_of = 0;
    PyObject *token = NULL;
    out->left = file && file->left;
    if (PyDict_Check(value)) {
        token = PyDict_GetItemString(value, "pad_token");
        if (!check_keys(value, "padding", keys) || !read_entry(value, "length", 0, &length) ||
            !read_entry(value, "pad_id", 0, &id) || !read_entry(value, "pad_type_id", 0, &type_id) ||
            !read_entry(value, "pad_to_multiple_of", 0, &multiple_of) || !read_direction(value, &out->left))
            return false;
    } else if (value != Py_True) {
        PyErr_Format(PyExc_TypeError,
                     "padding is %R, expected None, False, True, or a dict of length, pad_id, "
                     "pad_type_id, pad_token, pad_to_multiple_of, direction",
                     value);
        return false;
    }
    out->fixed = length >= 0;
    out->length = length >= 0 ? (size_t)length : 0;
    out->multiple_of = (size_t)multiple_of;
    out->id = (int32_t)id;
    out->type_id = (int32_t)type_id;
    return find_pad_token(self, a, token == Py_None ? NULL : token, id >= 0);
}

bool encode_arguments_read(PyObject *self, encode_arguments *a, PyObject *add_special, PyObject *parse_special,
                           PyObject *truncation, PyObject *padding) {
    *a = (encode_arguments){.options = {.add_special = true, .parse_special = true}};
    if (!read_bool(add_special, &a->options.add_special) || !read_bool(parse_special, &a->options.parse_special))
        return false;
    if (!truncation || truncation == Py_None) {
        a->options.truncation = gm_tokenizer_truncation(tokenizer_of(self));
        a->from_file = a->options.truncation != NULL;
    } else if (truncation != Py_False) {
        if (!read_truncation(truncation, &a->truncation))
            return false;
        a->options.truncation = &a->truncation;
    }
    if (!padding || padding == Py_None) {
        a->options.padding = gm_tokenizer_padding(tokenizer_of(self));
    } else if (padding != Py_False) {
        if (!read_padding(self, padding, a))
            return false;
        a->options.padding = &a->padding;
    }
    return true;
}

void encode_arguments_free(encode_arguments *a) { Py_CLEAR(a->pad_token); }

bool warn_truncated(const encode_arguments *a) {
    return PyErr_WarnFormat(PyExc_UserWarning, 1,
                            "the tokenizer's file declares truncation to %zu tokens, and text "
                            "was cut off; truncation=False encodes all of it, tok(text).overflowing has the rest",
                            a->options.truncation->max_length) == 0;
}

PyObject *get_truncation(PyObject *self, void *unused) {
    (void)unused;
    const gm_truncation *t = gm_tokenizer_truncation(tokenizer_of(self));
    if (!t)
        Py_RETURN_NONE;
    return Py_BuildValue("{s:n,s:n,s:s,s:s}", "max_length", (Py_ssize_t)t->max_length, "stride", (Py_ssize_t)t->stride,
                         "strategy", strategies[t->strategy], "direction", t->left ? "left" : "right");
}

PyObject *get_padding(PyObject *self, void *unused) {
    (void)unused;
    const gm_padding *p = gm_tokenizer_padding(tokenizer_of(self));
    if (!p)
        Py_RETURN_NONE;
    PyObject *dict = Py_BuildValue("{s:O,s:O,s:i,s:s#,s:i,s:s}", "length", Py_None, "pad_to_multiple_of", Py_None,
                                   "pad_id", (int)p->id, "pad_token", p->token ? p->token : "",
                                   (Py_ssize_t)p->token_length, "pad_type_id", (int)p->type_id, "direction",
                                   p->left ? "left" : "right");
    const struct {
        const char *key;
        bool given;
        size_t value;
    } sizes[] = {{"length", p->fixed, p->length}, {"pad_to_multiple_of", p->multiple_of > 0, p->multiple_of}};
    for (int i = 0; i < 2 && dict; i++) {
        PyObject *value = sizes[i].given ? PyLong_FromSize_t(sizes[i].value) : NULL;
        if (sizes[i].given && (!value || PyDict_SetItemString(dict, sizes[i].key, value) < 0))
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

/* ---- Encoding ---- */

/* A whole encoding, or a part of one that the parent keeps. */
typedef struct {
    PyObject_HEAD gm_encoding *own;
    const gm_encoding *encoding, *whole;
    PyObject *tokenizer, *parent;
} encoding_object;

static int encoding_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((encoding_object *)self)->tokenizer);
    Py_VISIT(((encoding_object *)self)->parent);
    return 0;
}

static void encoding_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    encoding_object *o = (encoding_object *)self;
    gm_encoding_free(o->own);
    Py_XDECREF(o->tokenizer);
    Py_XDECREF(o->parent);
    object_free(self);
}

PyObject *encoding_wrap(PyObject *tokenizer, gm_encoding *encoding) {
    encoding_object *o = (encoding_object *)PyType_GenericAlloc(tokenizer_state(tokenizer)->encoding_type, 0);
    if (!o) {
        gm_encoding_free(encoding);
        return NULL;
    }
    o->own = encoding;
    o->encoding = o->whole = encoding;
    o->tokenizer = Py_NewRef(tokenizer);
    return (PyObject *)o;
}

static const gm_encoding *encoding_of(PyObject *self) { return ((encoding_object *)self)->encoding; }

static Py_ssize_t encoding_length(PyObject *self) { return (Py_ssize_t)gm_encoding_size(encoding_of(self)); }

/* A list with one item for each token. */
static PyObject *listed(PyObject *self, PyObject *(*item)(encoding_object *o, size_t i, gm_token_info info)) {
    size_t n = gm_encoding_size(encoding_of(self));
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *one = item((encoding_object *)self, i, gm_encoding_token(encoding_of(self), i));
        if (one)
            PyList_SetItem(list, (Py_ssize_t)i, one);
        else
            Py_CLEAR(list);
    }
    return list;
}

#define LISTED(name, expression)                                                                                       \
    static PyObject *name##_item(encoding_object *o, size_t i, gm_token_info info) {                                   \
        (void)o, (void)i, (void)info;                                                                                  \
        return expression;                                                                                             \
    }                                                                                                                  \
    static PyObject *get_##name(PyObject *self, void *unused) {                                                        \
        (void)unused;                                                                                                  \
        return listed(self, name##_item);                                                                              \
    }
LISTED(ids, PyLong_FromLong(info.id))
LISTED(type_ids, PyLong_FromLong(info.type_id))
LISTED(offsets, Py_BuildValue("(ii)", (int)info.start, (int)info.end))
LISTED(special_mask, PyLong_FromLong(info.special))
LISTED(attention_mask, PyLong_FromLong(info.attention))
LISTED(word_ids, info.word < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(info.word))

static PyObject *token_text(encoding_object *o, size_t i) {
    size_t n = 0;
    const char *text = gm_encoding_text(o->whole, o->encoding, i, tokenizer_of(o->tokenizer), &n);
    return PyUnicode_DecodeUTF8(text ? text : "", (Py_ssize_t)n, "replace");
}
LISTED(tokens, token_text(o, i))

static PyObject *get_sequence_ids(PyObject *self, void *unused) {
    (void)unused;
    size_t n = gm_encoding_size(encoding_of(self));
    int32_t *ids = PyMem_Malloc((n + 1) * sizeof *ids);
    PyObject *list = ids ? PyList_New((Py_ssize_t)n) : PyErr_NoMemory();
    if (ids)
        gm_encoding_sequences(encoding_of(self), ids);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *one = ids[i] < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(ids[i]);
        if (one)
            PyList_SetItem(list, (Py_ssize_t)i, one);
        else
            Py_CLEAR(list);
    }
    PyMem_Free(ids);
    return list;
}

static PyObject *get_overflowing(PyObject *self, void *unused) {
    (void)unused;
    encoding_object *o = (encoding_object *)self;
    size_t n = gm_encoding_overflowing(o->encoding);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        encoding_object *part = (encoding_object *)PyType_GenericAlloc(Py_TYPE(self), 0);
        if (!part) {
            Py_CLEAR(list);
            break;
        }
        part->encoding = gm_encoding_overflow(o->encoding, i);
        part->whole = o->whole;
        part->tokenizer = Py_NewRef(o->tokenizer);
        part->parent = Py_NewRef(self);
        PyList_SetItem(list, (Py_ssize_t)i, (PyObject *)part);
    }
    return list;
}

static PyObject *get_truncated(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(gm_encoding_overflowing(encoding_of(self)) > 0);
}

static PyObject *encoding_repr(PyObject *self) {
    return PyUnicode_FromFormat("<Encoding of %zd tokens%s>", encoding_length(self),
                                gm_encoding_overflowing(encoding_of(self)) ? ", truncated" : "");
}

static PyGetSetDef encoding_properties[] = {
    {"ids", get_ids, NULL, "Token ids, a list of n ints.", NULL},
    {"tokens", get_tokens, NULL, "What the vocabulary calls them, a list of n strs.", NULL},
    {"offsets", get_offsets, NULL,
     "(start, end) of each token's text, n pairs: characters of a str, bytes of a bytes; (0, 0) of what was "
     "added.",
     NULL},
    {"special_mask", get_special_mask, NULL, "1 for what was added to the text, padding too, else 0; n ints.", NULL},
    {"attention_mask", get_attention_mask, NULL, "0 for padding, else 1; n ints.", NULL},
    {"type_ids", get_type_ids, NULL, "The tokens' segments as the post-processor numbers them; n ints.", NULL},
    {"word_ids", get_word_ids, NULL, "The number of the token's word in its text, None of added ones; n items.", NULL},
    {"sequence_ids", get_sequence_ids, NULL, "0 or 1 for text and pair, None of added tokens; n items.", NULL},
    {"overflowing", get_overflowing, NULL, "The Encodings of what truncation cut off.", NULL},
    {"truncated", get_truncated, NULL, "Whether truncation cut anything off.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot encoding_slots[] = {
    {Py_tp_doc, "What a text became: ids, and for each where it comes from. len() is the number of tokens, n."},
    {Py_tp_dealloc, encoding_dealloc},
    {Py_tp_traverse, encoding_traverse},
    {Py_tp_repr, encoding_repr},
    {Py_sq_length, encoding_length},
    {Py_tp_getset, encoding_properties},
    {0, NULL},
};
PyType_Spec py_encoding_spec = {"gomlx._gomlx.Encoding", sizeof(encoding_object), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                encoding_slots};
