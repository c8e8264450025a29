/* session.c - Session: the tokens of one sequence and their KV cache.
 *  (1) A Session holds its Model, which has a list of those that are open; what ends a Session takes it off the list.
 *  (2) A C session is freed after its C stream, and not while it is saved: whoever wants to meanwhile leaves doomed. */
#include "py/stream.h"

static void session_dealloc(PyObject *self);

/* The object of a C session, which it takes, also on failure. Its memory may start a garbage collection, and with it
 * any Python code: a Model that is closed by now has no sessions. */
static PyObject *session_object_of(PyObject *self, gm_session *c_session) {
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
    return session_object_of(self, c_session);
}

PyObject *py_model_restore_session(PyObject *self, PyObject *value) {
    gm_session *c_session = NULL;
    gm_status status;
    /* What is read without the GIL must not change: of anything but bytes it is a copy. */
    PyObject *saved = PyBytes_FromObject(value);
    gm_model *model = saved ? py_model_open(self) : NULL;       /* after what may run Python code */
    if (!model) {
        Py_XDECREF(saved);
        return NULL;
    }
    const char *bytes = PyBytes_AsString(saved);
    size_t size = (size_t)PyBytes_Size(saved);
    gm_model_retain(model);                 /* another thread may close it meanwhile */
    Py_BEGIN_ALLOW_THREADS
    status = gm_session_restore(model, bytes, size, &c_session);
    gm_model_release(model);
    Py_END_ALLOW_THREADS
    Py_DECREF(saved);
    if (status != GM_OK)
        return raise_gm(py_model_state(self));
    return session_object_of(self, c_session);
}

void py_session_release(session_object *session) {
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

void py_session_shut(session_object *session) {
    session_unlink(session);
    if (!session->session)
        return;
    session->doomed = true;
    if (session->stream)
        py_stream_shut(session->stream);
    else if (!session->saving)
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
    return session_object_of(((session_object *)self)->model, copy);
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
    if (object->saving) {
        Py_DECREF(bytes);
        PyErr_SetString(PyExc_ValueError, "the session is being saved by another thread");
        return NULL;
    }
    object->saving = true;
    Py_BEGIN_ALLOW_THREADS
    status = gm_session_save(session, to, &size);
    Py_END_ALLOW_THREADS
    object->saving = false;
    if (status != GM_OK) {
        Py_CLEAR(bytes);
        raise_gm(state_of(self, session_dealloc));
    }
    if (object->doomed && !object->stream)
        py_session_release(object);
    return bytes;
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

static PyObject *session_length(PyObject *self, void *unused) {
    (void)unused;
    gm_session *session = py_session_open(self);
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
    {"truncate", session_truncate, METH_O,
     SIG("truncate($self, length, /)",
         "Forgets the tokens from length on, and gives the number that is left: less where a sliding window or a "
         "recurrent layer cannot go back to length. What was forgotten is computed again.")},
    {"fork", session_fork, METH_NOARGS,
     SIG("fork($self)", "A Session of its own with the same tokens. Memory is copied only where one of both goes on.")},
    {"save", session_save, METH_NOARGS,
     SIG("save($self)", "The tokens and their cache as bytes for Model.restore_session, in another process too.")},
    {"close", session_close, METH_NOARGS, SIG("close($self)", "Gives the KV cache back; twice is fine.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef session_properties[] = {
    {"length", session_length, NULL, "Tokens in the KV cache.", NULL},
    {"nbytes", session_nbytes, NULL, "Bytes of memory that its cache holds; what forks share counts in each.", NULL},
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
