/* stream.c - Session, TokenStream and Token: generation, one token for each next().
 *  (1) Objects hold each other one way: stream -> session -> model, stream -> tokenizer. Back pointers are borrowed.
 *  (2) A C stream is used by one thread at a time: busy is set, under the GIL, while a step runs without it. Only
 *      cancel may come in between. Whoever wants to free the C stream meanwhile leaves doomed, and the step frees it.
 *  (3) A C session is freed after its C stream. */
#include "py/py.h"
#include <string.h>

typedef struct stream_object stream_object;
typedef struct session_object {
    PyObject_HEAD
    gm_session *session;                    /* NULL when closed */
    PyObject *model;
    struct session_object *previous, *next; /* the model's open sessions */
    stream_object *stream;                  /* the open one, borrowed */
    bool doomed;                            /* to be freed with its stream */
} session_object;
struct stream_object {
    PyObject_HEAD
    gm_stream *stream;                      /* NULL when closed or at its end */
    PyObject *session, *tokenizer;
    bool busy, doomed;
    gm_stream_stats stats;                  /* the last ones, once stream is NULL */
};

static void session_dealloc(PyObject *self);
static void stream_dealloc(PyObject *self);

/* ---- sessions ---- */

PyObject *py_model_new_session(PyObject *self, PyObject *unused) {
    (void)unused;
    module_state *state = py_model_state(self);
    model_object *model = (model_object *)self;
    if (!model->model) {
        PyErr_SetString(PyExc_ValueError, "the model is closed");
        return NULL;
    }
    gm_session *c_session = NULL;
    if (gm_session_new(model->model, &c_session) != GM_OK)
        return raise_gm(state);
    session_object *session = (session_object *)PyType_GenericAlloc(state->session_type, 0);
    if (!session) {
        gm_session_free(c_session);
        return NULL;
    }
    session->session = c_session;
    session->model = Py_NewRef(self);
    session->next = model->sessions;
    if (session->next)
        session->next->previous = session;
    model->sessions = session;
    return (PyObject *)session;
}

/* Frees the C session, and off the model's list with it. Only when no C stream uses it. */
static void session_release(session_object *session) {
    gm_session *c_session = session->session;
    session->session = NULL;
    Py_BEGIN_ALLOW_THREADS
    gm_session_free(c_session);
    Py_END_ALLOW_THREADS
}

static void session_unlink(session_object *session) {
    model_object *model = (model_object *)session->model;
    if (session->previous)
        session->previous->next = session->next;
    else if (model && model->sessions == session)
        model->sessions = session->next;
    if (session->next)
        session->next->previous = session->previous;
    session->previous = session->next = NULL;
}

/* Frees the C stream now; the statistics stay. Not while a step runs. */
static void stream_release(stream_object *stream) {
    gm_stream *c_stream = stream->stream;
    session_object *session = (session_object *)stream->session;
    if (!c_stream)
        return;
    stream->stats = gm_stream_get_stats(c_stream);
    stream->stream = NULL;
    Py_BEGIN_ALLOW_THREADS
    gm_stream_free(c_stream);
    Py_END_ALLOW_THREADS
    if (session->stream != stream)      /* another stream was opened while we freed this one */
        return;
    session->stream = NULL;
    if (session->doomed)
        session_release(session);
}

/* Frees the C stream, or has the thread that runs a step do it. */
static void stream_shut(stream_object *stream) {
    if (stream->busy) {
        stream->doomed = true;
        gm_stream_cancel(stream->stream);
    } else {
        stream_release(stream);
    }
}

void py_session_shut(session_object *session) {
    session_unlink(session);
    if (!session->session)
        return;
    session->doomed = true;
    if (session->stream)
        stream_shut(session->stream);
    else
        session_release(session);
}

static gm_session *open_session(PyObject *self) {
    session_object *session = (session_object *)self;
    if (!session->session || session->doomed) {
        PyErr_SetString(PyExc_ValueError, "the session is closed");
        return NULL;
    }
    return session->session;
}

static PyObject *session_close(PyObject *self, PyObject *unused) {
    (void)unused;
    py_session_shut((session_object *)self);
    Py_RETURN_NONE;
}

static PyObject *session_truncate(PyObject *self, PyObject *value) {
    gm_session *session = open_session(self);
    if (!session)
        return NULL;
    long long length = PyLong_AsLongLong(value);
    if (length == -1 && PyErr_Occurred())
        return NULL;
    if (gm_session_truncate(session, length) != GM_OK)
        return raise_gm(state_of(self, session_dealloc));
    Py_RETURN_NONE;
}

static PyObject *session_length(PyObject *self, void *unused) {
    (void)unused;
    gm_session *session = open_session(self);
    return session ? PyLong_FromLongLong(gm_session_length(session)) : NULL;
}

static PyObject *session_model(PyObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(((session_object *)self)->model);
}

static int session_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((session_object *)self)->model);
    return 0;
}

static void session_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    session_object *session = (session_object *)self;     /* no stream: it would hold the session */
    session_unlink(session);
    gm_session_free(session->session);
    Py_XDECREF(session->model);
    object_free(self);
}

#define SIG(text, doc) text "\n--\n\n" doc
static PyMethodDef session_methods[] = {
    {"truncate", session_truncate, METH_O, SIG("truncate($self, length, /)", "Forgets the tokens from length on.")},
    {"close", session_close, METH_NOARGS, SIG("close($self)", "Gives the KV cache back; twice is fine.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef session_properties[] = {
    {"length", session_length, NULL, "Tokens in the KV cache.", NULL},
    {"model", session_model, NULL, "The engine's model that made it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot session_slots[] = {
    {Py_tp_doc, "One sequence of a model: its tokens and their KV cache."},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_traverse, session_traverse},
    {Py_tp_methods, session_methods},
    {Py_tp_getset, session_properties},
    {0, NULL},
};
PyType_Spec py_session_spec = {"gomlx._gomlx.Session", sizeof(session_object), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, session_slots};

/* ---- tokens ---- */

static PyStructSequence_Field token_fields[] = {
    {"id", "The token, or -1 when only text that was held back comes."},
    {"text", "What became certain with it."},
    {"logprob", "Its log probability, before temperature."},
    {"finish_reason", "On the last one 'stop', 'length', 'context' or 'cancelled'; else None."},
    {NULL, NULL},
};
static PyStructSequence_Desc token_description = {"gomlx.Token", "One step of a TokenStream.", token_fields, 4};

bool py_token_type_add(PyObject *module, module_state *state) {
    state->token_type = PyStructSequence_NewType(&token_description);
    return state->token_type && PyModule_AddObjectRef(module, "Token", (PyObject *)state->token_type) == 0;
}

const char *finish_name(gm_finish finish) {
    static const char *const names[] = {
        [GM_FINISH_NONE] = NULL,         [GM_FINISH_STOP] = "stop",           [GM_FINISH_LENGTH] = "length",
        [GM_FINISH_CONTEXT] = "context", [GM_FINISH_CANCELLED] = "cancelled",
    };
    return names[finish];
}

static PyObject *token_from(module_state *state, const gm_token *token) {
    const char *finish = finish_name(token->finish);
    PyObject *items[4] = {
        PyLong_FromLong(token->id),
        PyUnicode_DecodeUTF8(token->text ? token->text : "", (Py_ssize_t)token->length, "replace"),
        PyFloat_FromDouble((double)token->logprob),
        finish ? PyUnicode_FromString(finish) : Py_NewRef(Py_None),
    };
    bool ok = items[0] && items[1] && items[2] && items[3];
    PyObject *result = ok ? PyStructSequence_New(state->token_type) : NULL;
    for (int i = 0; i < 4; i++) {
        if (result)
            PyStructSequence_SetItem(result, i, items[i]);
        else
            Py_XDECREF(items[i]);
    }
    return result;
}

/* ---- streams ---- */

typedef struct {
    gm_generate_options options;
    int32_t *prompt, *stop_ids;
    size_t n_prompt;
    PyObject *texts;
    const char **stop_texts;
} request;

static void request_free(request *r) {
    PyMem_Free(r->prompt);
    PyMem_Free(r->stop_ids);
    PyMem_Free(r->stop_texts);
    Py_XDECREF(r->texts);
}

static bool read_stop_texts(PyObject *value, request *r) {
    if (PyUnicode_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "stop_texts must be a sequence of str");
        return false;
    }
    r->texts = PySequence_Tuple(value);
    Py_ssize_t n = r->texts ? PyTuple_Size(r->texts) : 0;
    r->stop_texts = PyMem_Calloc((size_t)n + 1, sizeof *r->stop_texts);
    if (!r->texts || !r->stop_texts)
        return r->texts ? PyErr_NoMemory() != NULL : false;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t length;
        r->stop_texts[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(r->texts, i), &length);
        if (!r->stop_texts[i])
            return false;
        if (strlen(r->stop_texts[i]) != (size_t)length) {
            PyErr_SetString(PyExc_ValueError, "a stop text with a NUL in it");
            return false;
        }
    }
    r->options.stop_texts = r->stop_texts;
    r->options.n_stop_texts = (size_t)n;
    return true;
}

static bool read_request(PyObject *const *v, request *r) {
    gm_generate_options *o = &r->options;
    double temperature = (double)o->temperature, top_p = (double)o->top_p, min_p = (double)o->min_p;
    double penalty = (double)o->repetition_penalty;
    if (!read_ids(v[2], &r->prompt, &r->n_prompt) || !read_float(v[3], "temperature", &temperature)
        || !read_int(v[4], "top_k", &o->top_k) || !read_float(v[5], "top_p", &top_p)
        || !read_float(v[6], "min_p", &min_p) || !read_float(v[7], "repetition_penalty", &penalty))
        return false;
    o->temperature = (float)temperature;
    o->top_p = (float)top_p;
    o->min_p = (float)min_p;
    o->repetition_penalty = (float)penalty;
    if (v[8]) {
        o->seed = PyLong_AsUnsignedLongLongMask(v[8]);
        if (PyErr_Occurred())
            return false;
    }
    if (v[9]) {
        o->max_tokens = PyLong_AsLongLong(v[9]);
        if (PyErr_Occurred())
            return false;
    }
    if (v[10] && !read_ids(v[10], &r->stop_ids, &o->n_stop_ids))
        return false;
    o->stop_ids = r->stop_ids;
    return !v[11] || read_stop_texts(v[11], r);
}

static bool is_tokenizer(module_state *state, PyObject *value) {
    if (value == Py_None || PyType_IsSubtype(Py_TYPE(value), state->tokenizer_type))
        return true;
    PyErr_Format(PyExc_TypeError, "tokenizer must be a Tokenizer or None, not %R", (PyObject *)Py_TYPE(value));
    return false;
}

PyObject *open_stream(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"stream", 0, 12, 7,
                                  {"session", "tokenizer", "prompt_ids", "temperature", "top_k", "top_p", "min_p",
                                   "repetition_penalty", "seed", "max_tokens", "stop_ids", "stop_texts", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *v[12];
    if (!read_arguments(&sig, args, n, kwnames, v) || !is_tokenizer(state, v[1]))
        return NULL;
    if (!Py_IS_TYPE(v[0], state->session_type)) {
        PyErr_Format(PyExc_TypeError, "session must be a Session, not %R", (PyObject *)Py_TYPE(v[0]));
        return NULL;
    }
    request r = {.prompt = NULL};
    gm_generate_defaults(&r.options);
    stream_object *stream = NULL;
    session_object *session = (session_object *)v[0];
    bool ok =
        read_request(v, &r) && open_session(v[0]); /* reading may run Python code: the session is looked at last */
    if (ok && (stream = (stream_object *)PyType_GenericAlloc(state->stream_type, 0))) {
        gm_tokenizer *tokenizer = v[1] == Py_None ? NULL : ((tokenizer_object *)v[1])->tokenizer;
        if (gm_stream_open(session->session, tokenizer, r.prompt, r.n_prompt, &r.options, &stream->stream) == GM_OK) {
            stream->session = Py_NewRef(v[0]);
            stream->tokenizer = Py_NewRef(v[1]);
            session->stream = stream;
        } else {
            stream->stream = NULL;
            raise_gm(state);
            Py_CLEAR(stream);
        }
    }
    request_free(&r);
    return (PyObject *)stream;
}

static PyObject *stream_next(PyObject *self) {
    stream_object *stream = (stream_object *)self;
    if (stream->busy) {
        PyErr_SetString(PyExc_ValueError, "stream is in use by another thread");
        return NULL;
    }
    if (!stream->stream)
        return NULL;
    gm_token token = {.id = -1};
    gm_status status;
    stream->busy = true;
    do {
        Py_BEGIN_ALLOW_THREADS
        status = gm_stream_next(stream->stream, STREAM_SLICE_MS, &token);
        Py_END_ALLOW_THREADS
    } while (status == GM_AGAIN && PyErr_CheckSignals() == 0);
    stream->busy = false;
    PyObject *result = NULL;
    if (status == GM_OK)
        result = token_from(state_of(self, stream_dealloc), &token);     /* before the text's memory goes */
    else if (status != GM_END && status != GM_AGAIN)
        raise_gm(state_of(self, stream_dealloc));
    if (status != GM_OK || token.finish != GM_FINISH_NONE || stream->doomed)
        stream_release(stream);        /* an interrupted step is dropped; the session keeps what was committed */
    return result;
}

static PyObject *stream_cancel(PyObject *self, PyObject *unused) {
    (void)unused;
    stream_object *stream = (stream_object *)self;
    if (stream->stream)
        gm_stream_cancel(stream->stream);
    Py_RETURN_NONE;
}

static PyObject *stream_close(PyObject *self, PyObject *unused) {
    (void)unused;
    stream_shut((stream_object *)self);
    Py_RETURN_NONE;
}

static PyObject *stream_stats(PyObject *self, PyObject *unused) {
    (void)unused;
    stream_object *stream = (stream_object *)self;
    if (stream->busy) {
        PyErr_SetString(PyExc_ValueError, "stream is in use by another thread");
        return NULL;
    }
    gm_stream_stats s = stream->stream ? gm_stream_get_stats(stream->stream) : stream->stats;
    return Py_BuildValue("{sLsLsLsLsdsdszsisi}",
                         "prompt_tokens", (long long)s.prompt_tokens,
                         "cached_tokens", (long long)s.cached_tokens,
                         "generated_tokens", (long long)s.generated_tokens,
                         "decode_steps", (long long)s.decode_steps,
                         "prefill_seconds", s.prefill_seconds,
                         "decode_seconds", s.decode_seconds,
                         "finish_reason", finish_name(s.finish),
                         "stop_id", (int)s.stop_id,
                         "stop_text", (int)s.stop_text);
}

static PyObject *stream_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    return Py_NewRef(self);
}

static int stream_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((stream_object *)self)->session);
    Py_VISIT(((stream_object *)self)->tokenizer);
    return 0;
}

static void stream_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    stream_object *stream = (stream_object *)self;
    if (stream->session)
        stream_release(stream);
    Py_XDECREF(stream->session);
    Py_XDECREF(stream->tokenizer);
    object_free(self);
}

static PyMethodDef stream_methods[] = {
    {"cancel", stream_cancel, METH_NOARGS, SIG("cancel($self)", "From any thread: the next token is the last.")},
    {"close", stream_close, METH_NOARGS,
     SIG("close($self)", "Ends the stream and frees its session for the next one.")},
    {"stats", stream_stats, METH_NOARGS, SIG("stats($self)", "Counts and seconds of prompt and decoding, as a dict.")},
    {"__enter__", stream_enter, METH_NOARGS, NULL},
    {"__exit__", stream_close, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot stream_slots[] = {
    {Py_tp_doc, "An iterator of Token, made by stream()."},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, stream_next},
    {Py_tp_methods, stream_methods},
    {0, NULL},
};
PyType_Spec py_stream_spec = {"gomlx._gomlx.TokenStream", sizeof(stream_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, stream_slots};
