/* session.c - Session: the ids of one sequence and their KV cache.
 *  (1) A Session holds its Model, which has a list of those that are open; what ends a Session takes it off the list.
 *  (2) A C session is freed after its C stream, and not while a call works on it without the GIL: whoever wants to
 *      meanwhile leaves doomed. */
#include "py/model/stream.h"
#include <string.h>

static void session_dealloc(PyObject *self);

/* The object of a C session, which it takes, also on failure. Its memory may start a garbage collection, and with it
 * any Python code: a Model that is closed by now has no sessions. */
PyObject *py_session_of(PyObject *self, gm_session *c_session) {
    model_object *model = (model_object *)self;
    session_object *session = (session_object *)PyType_GenericAlloc(py_model_state(self)->session_type, 0);
    if (!session || !py_model_open(self)) {
        gm_session_free(c_session);
        Py_XDECREF((PyObject *)session);
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

PyObject *py_model_new_session(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_model *model = py_model_open(self);
    gm_session *c_session = NULL;
    if (!model)
        return NULL;
    if (gm_session_new(model, &c_session) != GM_OK)
        return raise_gm(py_model_state(self));
    return py_session_of(self, c_session);
}

PyObject *py_model_restore_session(PyObject *self, PyObject *value) {
    gm_session *c_session = NULL;
    gm_status status;
    /* What is read without the GIL must not change: of anything but bytes it is a copy. */
    PyObject *saved = PyBytes_FromObject(value);
    gm_model *model = saved ? py_model_open(self) : NULL; /* after what may run Python code */
    if (!model) {
        Py_XDECREF(saved);
        return NULL;
    }
    const char *bytes = PyBytes_AsString(saved);
    size_t size = (size_t)PyBytes_Size(saved);
    gm_model_retain(model); /* another thread may close it meanwhile */
    Py_BEGIN_ALLOW_THREADS status = gm_session_restore(model, bytes, size, &c_session);
    gm_model_release(model);
    Py_END_ALLOW_THREADS Py_DECREF(saved);
    if (status != GM_OK)
        return raise_gm(py_model_state(self));
    return py_session_of(self, c_session);
}

void py_session_release(session_object *session) {
    gm_session *c_session = session->session;
    session->session = NULL;
    Py_BEGIN_ALLOW_THREADS gm_session_free(c_session);
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

void py_session_shut(session_object *session) {
    session_unlink(session);
    if (!session->session)
        return;
    session->doomed = true;
    if (session->stream)
        py_stream_shut(session->stream);
    else if (!session->working)
        py_session_release(session);
}

gm_session *py_session_open(PyObject *self) {
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
    long long length = PyLong_AsLongLong(value);
    if (length == -1 && PyErr_Occurred())
        return NULL;
    gm_session *session = py_session_open(self);
    if (!session)
        return NULL;
    if (gm_session_truncate(session, length) != GM_OK)
        return raise_gm(state_of(self, session_dealloc));
    return PyLong_FromLongLong(gm_session_length(session));
}

static PyObject *session_fork(PyObject *self, PyObject *unused) {
    (void)unused;
    gm_session *session = py_session_open(self), *copy = NULL;
    if (!session)
        return NULL;
    if (gm_session_fork(session, &copy) != GM_OK)
        return raise_gm(state_of(self, session_dealloc));
    return py_session_of(((session_object *)self)->model, copy);
}

/* Whether another thread changes the session now, without the GIL: what it holds must not be looked at. */
static bool in_use(const session_object *session) {
    if (!session->working && !(session->stream && session->stream->busy && !session->stream->processing))
        return false;
    PyErr_SetString(PyExc_ValueError, "the session is in use by another thread");
    return true;
}

/* What the caller does without the GIL is the session's only use until end_work. */
static bool begin_work(session_object *session) {
    if (session->working) {
        PyErr_SetString(PyExc_ValueError, "the session is in use by another thread");
        return false;
    }
    return session->working = true;
}

static void end_work(session_object *session) {
    session->working = false;
    if (session->doomed && !session->stream)
        py_session_release(session);
}

static PyObject *session_save(PyObject *self, PyObject *unused) {
    (void)unused;
    session_object *object = (session_object *)self;
    gm_session *session = py_session_open(self);
    size_t size = 0;
    gm_status status;
    if (!session)
        return NULL;
    if (gm_session_save(session, NULL, &size) != GM_OK)
        return raise_gm(state_of(self, session_dealloc));
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!bytes)
        return NULL;
    char *to = PyBytes_AsString(bytes);
    if (!begin_work(object)) {
        Py_DECREF(bytes);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = gm_session_save(session, to, &size);
    Py_END_ALLOW_THREADS if (status != GM_OK) {
        Py_CLEAR(bytes);
        raise_gm(state_of(self, session_dealloc));
    }
    end_work(object);
    return bytes;
}

/* ---- ids, and going on from them ---- */

static PyObject *session_ids(PyObject *self, void *unused) {
    (void)unused;
    session_object *object = (session_object *)self;
    gm_session *session = py_session_open(self);
    if (!session || in_use(object))
        return NULL;
    size_t n = 0;
    const int32_t *borrowed = gm_session_ids(session, &n);
    int32_t *ids = PyMem_Malloc((n + 1) *
                                sizeof *ids); /* making a list may run a finalizer, which may use the session */
    if (!ids)
        return PyErr_NoMemory();
    if (n)
        memcpy(ids, borrowed, n * sizeof *ids);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, id);
    }
    PyMem_Free(ids);
    return list;
}

/* Computes what the stream has to: GM_OK, or GM_LOGITS where it hands them out; GM_AGAIN with an exception set. */
static gm_status run(gm_stream *stream) {
    gm_token token;
    gm_status status;
    do {
        Py_BEGIN_ALLOW_THREADS status = gm_stream_next(stream, STREAM_SLICE_MS, &token);
        Py_END_ALLOW_THREADS
    } while (status == GM_AGAIN && PyErr_CheckSignals() == 0);
    return status;
}

/* Computes ids after those that the session has. The logits after the last, where they are wanted, else None. What
 * fails or is interrupted leaves the session with the ids that it had. */
static PyObject *extend(PyObject *self, const int32_t *ids, size_t n, bool logits) {
    session_object *object = (session_object *)self;
    module_state *state = state_of(self, session_dealloc);
    gm_session *session = py_session_open(self);
    gm_generate_options options;
    gm_stream *stream = NULL;
    size_t n_before = 0;
    if (!session || in_use(object) || !begin_work(object))
        return NULL;
    const int32_t *before = gm_session_ids(session, &n_before);
    if (n_before + n == 0) {
        PyErr_SetString(state->no_state, "the session is empty: there is no token to go on from");
        end_work(object);
        return NULL;
    }
    int32_t *all = PyMem_Malloc((n_before + n + 1) * sizeof *all);
    gm_generate_defaults(&options);
    options.max_tokens = 0;
    options.hand_out_logits = logits;
    options.session_adapters = true;
    gm_status status = GM_ENOMEM;
    if (all) {
        if (n_before)
            memcpy(all, before, n_before * sizeof *all);
        if (n)
            memcpy(all + n_before, ids, n * sizeof *all);
        status = gm_stream_open(session, NULL, all, n_before + n, &options, &stream);
        if (status == GM_OK)
            status = run(stream);
    } else {
        PyErr_NoMemory();
    }
    PyObject *result = NULL;
    if (status == GM_OK) {
        result = Py_NewRef(Py_None);
    } else if (status == GM_LOGITS) {
        gm_pending_logits pending = {0};
        gm_stream_logits(stream, &pending);
        gm_scope *scope = gm_scope_open();
        gm_array *node = scope ? gm_array_from(scope, GM_FLOAT32, 1, &pending.vocab, pending.logits) : NULL;
        result = py_array_result(state, scope, node);
    } else if (status != GM_AGAIN) {
        raise_gm(state);
    }
    if (stream) {
        Py_BEGIN_ALLOW_THREADS gm_stream_free(stream);
        gm_error unused;
        if (!result && gm_session_truncate(session, (int64_t)n_before) != GM_OK)
            gm_take_error(&unused); /* another thread goes on with it already */
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(all);
    end_work(object);
    return result;
}

static PyObject *session_step(PyObject *self, PyObject *value) {
    int32_t *ids = NULL, one;
    size_t n = 0;
    if (PyLong_Check(value))
        return read_int(value, "token id", &one) ? extend(self, &one, 1, true) : NULL;
    if (!read_ids(value, &ids, &n))
        return NULL;
    PyObject *logits = extend(self, ids, n, true);
    PyMem_Free(ids);
    return logits;
}

/* A text's ids after those of the session, as a sequence; what else it is, as it is. */
static PyObject *ids_after(PyObject *self, gm_session *session, PyObject *value) {
    PyObject *tokenizer = ((model_object *)((session_object *)self)->model)->tokenizer;
    size_t n_before = 0;
    if (!PyUnicode_Check(value))
        return Py_NewRef(value);
    if (!tokenizer) {
        PyErr_SetString(PyExc_ValueError, "the session's model has no tokenizer: append token ids");
        return NULL;
    }
    gm_session_ids(session, &n_before);
    return PyObject_CallMethod(tokenizer, n_before ? "encode_after" : "encode_prompt", "O", value);
}

static PyObject *session_append(PyObject *self, PyObject *value) {
    gm_session *session = py_session_open(self);
    const bool free = session && !in_use((session_object *)self);
    PyObject *given = free ? ids_after(self, session, value) : NULL, *done = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    if (given && read_ids(given, &ids, &n))
        done = n ? extend(self, ids, n, false) : Py_NewRef(Py_None);
    Py_XDECREF(given);
    PyMem_Free(ids);
    if (!done)
        return NULL;
    Py_DECREF(done);
    return PyLong_FromSize_t(n);
}

static PyObject *session_nbytes(PyObject *self, void *unused) {
    (void)unused;
    gm_session *session = py_session_open(self);
    int64_t bytes = 0;
    if (!session)
        return NULL;
    if (gm_session_bytes(session, &bytes) != GM_OK)
        return raise_gm(state_of(self, session_dealloc));
    return PyLong_FromLongLong(bytes);
}

/* Its C session for a call that works on several at once. */
static gm_session *session_from(module_state *state, PyObject *value) {
    if (!PyObject_TypeCheck(value, (PyTypeObject *)state->session_type)) {
        PyErr_SetString(PyExc_TypeError, "session_bytes: expected a sequence of sessions");
        return NULL;
    }
    return py_session_open(value);
}

PyObject *bytes_of_sessions(PyObject *module, PyObject *value) {
    module_state *state = PyModule_GetState(module);
    PyObject *given = PySequence_Tuple(value), *made = NULL;
    const Py_ssize_t n = given ? PyTuple_Size(given) : 0;
    gm_session **sessions = given ? PyMem_Malloc(((size_t)n + 1) * sizeof(gm_session *)) : NULL;
    Py_ssize_t at = 0;
    int64_t bytes = 0;
    if (given && !sessions)
        PyErr_NoMemory();
    while (sessions && at < n && (sessions[at] = session_from(state, PyTuple_GetItem(given, at))))
        at++;
    if (sessions && at == n)
        made = gm_sessions_bytes(sessions, (size_t)n, &bytes) == GM_OK ? PyLong_FromLongLong(bytes) : raise_gm(state);
    PyMem_Free(sessions);
    Py_XDECREF(given);
    return made;
}

static PyObject *session_length(PyObject *self, void *unused) {
    (void)unused;
    gm_session *session = py_session_open(self);
    return session ? PyLong_FromLongLong(gm_session_length(session)) : NULL;
}

static PyObject *session_adapters(PyObject *self, void *unused) {
    (void)unused;
    gm_session *session = py_session_open(self);
    size_t n = 0;
    if (!session || in_use((session_object *)self))
        return NULL;
    const gm_adapter_use *uses = gm_session_adapters(session, &n);
    gm_adapter_use *copy = PyMem_Malloc((n + 1) * sizeof *copy); /* making a tuple may run a finalizer, as in ids */
    if (!copy)
        return PyErr_NoMemory();
    if (n)
        memcpy(copy, uses, n * sizeof *copy);
    PyObject *all = py_adapter_uses(copy, n);
    PyMem_Free(copy);
    return all;
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
    session_object *session = (session_object *)self; /* no stream: it would hold the session */
    session_unlink(session);
    gm_session_free(session->session);
    Py_XDECREF(session->model);
    object_free(self);
}

#define SIG(text, doc) text "\n--\n\n" doc
static PyMethodDef session_methods[] = {
    {"truncate", session_truncate, METH_O,
     SIG("truncate($self, length, /)",
         "Forgets the ids from length on, and gives the number that is left in the cache: less where a sliding window "
         "or "
         "a recurrent layer cannot go back to length. What is missing there is computed again.")},
    {"append", session_append, METH_O,
     SIG("append($self, text, /)", "Computes a text, or token ids, after what the session has, and gives the number of "
                                   "tokens. A text gets no BOS "
                                   "but where the session is empty; special tokens in it are read as such.")},
    {"step", session_step, METH_O,
     SIG("step($self, ids, /)",
         "Computes token ids, or one, after what the session has: the logits after the last, float32 [vocab]. No ids: "
         "the logits after what it has. ValueError for none at all, ContextLengthExceeded for too many.")},
    {"fork", session_fork, METH_NOARGS,
     SIG("fork($self)", "A Session of its own with the same tokens. Memory is copied only where one of both goes on.")},
    {"save", session_save, METH_NOARGS,
     SIG("save($self)", "The ids and their cache as bytes for Model.restore_session, in another process too.")},
    {"close", session_close, METH_NOARGS, SIG("close($self)", "Gives the KV cache back; twice is fine.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef session_properties[] = {
    {"length", session_length, NULL, "How many of the ids are in the KV cache.", NULL},
    {"ids", session_ids, NULL,
     "The sequence's token ids, a list: what was appended, prompts and output without stop tokens. Of the last ones "
     "some "
     "may not be in the cache yet: what was drawn last is computed when the sequence goes on.",
     NULL},
    {"nbytes", session_nbytes, NULL, "Bytes of memory that its cache holds; what forks share counts in each.", NULL},
    {"adapters", session_adapters, NULL,
     "What its keys were computed with: (name, hash of the content, weight) of each adapter.", NULL},
    {"model", session_model, NULL, "The engine's model that made it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot session_slots[] = {
    {Py_tp_doc, "One sequence of a model: its token ids and their KV cache."},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_traverse, session_traverse},
    {Py_tp_methods, session_methods},
    {Py_tp_getset, session_properties},
    {0, NULL},
};
PyType_Spec py_session_spec = {"gomlx._gomlx.Session", sizeof(session_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               session_slots};
