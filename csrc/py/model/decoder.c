/* decoder.c - Decoder: several TokenStreams of a model, one token of any of them a step.
 *  (1) A decoder holds its streams until their last event. While a step runs without the GIL the decoder and all its
 *      streams are busy; of a stream that is closed meanwhile the step is the end (stream.c, 1). */
#include "py/model/stream.h"

typedef struct {
    PyObject_HEAD gm_decoder *decoder;
    PyObject *streams; /* a list */
    bool busy;
    gm_profile profile; /* of all passes with rows of a stream that has one */
} decoder_object;

static void decoder_dealloc(PyObject *self);

PyObject *py_model_new_decoder(PyObject *self, PyObject *unused) {
    (void)unused;
    module_state *state = py_model_state(self);
    gm_model *model = py_model_open(self);
    gm_decoder *c_decoder = NULL;
    if (!model)
        return NULL;
    if (gm_decoder_new(model, &c_decoder) != GM_OK)
        return raise_gm(state);
    PyObject *streams = PyList_New(0);
    decoder_object *decoder = streams ? (decoder_object *)PyType_GenericAlloc(state->decoder_type, 0) : NULL;
    if (!decoder) {
        gm_decoder_free(c_decoder);
        Py_XDECREF(streams);
        return NULL;
    }
    decoder->decoder = c_decoder;
    decoder->streams = streams;
    gm_decoder_set_profile(c_decoder, &decoder->profile);
    return (PyObject *)decoder;
}

static bool is_free(const decoder_object *decoder) {
    if (decoder->busy)
        PyErr_SetString(PyExc_ValueError, "the decoder is in use by another thread");
    return !decoder->busy;
}

static PyObject *decoder_add(PyObject *self, PyObject *value) {
    decoder_object *decoder = (decoder_object *)self;
    module_state *state = state_of(self, decoder_dealloc);
    stream_object *stream = (stream_object *)value;
    if (!Py_IS_TYPE(value, state->stream_type)) {
        PyErr_Format(PyExc_TypeError, "expected a TokenStream, not %R", (PyObject *)Py_TYPE(value));
        return NULL;
    }
    if (!is_free(decoder))
        return NULL;
    if (!stream->stream || stream->busy) {
        PyErr_SetString(PyExc_ValueError, stream->busy ? "stream is in use by another thread" : "the stream has ended");
        return NULL;
    }
    if (PyList_Append(decoder->streams, value) < 0)
        return NULL;
    if (gm_decoder_add(decoder->decoder, stream->stream) != GM_OK) {
        Py_ssize_t n = PyList_Size(decoder->streams);
        PyList_SetSlice(decoder->streams, n - 1, n, NULL);
        return raise_gm(state);
    }
    stream->member = true;
    Py_RETURN_NONE;
}

static stream_object *member(const decoder_object *decoder, Py_ssize_t i) {
    return (stream_object *)PyList_GetItem(decoder->streams, i);
}

static void mark_busy(decoder_object *decoder, bool busy) {
    decoder->busy = busy;
    for (Py_ssize_t i = 0; i < PyList_Size(decoder->streams); i++)
        member(decoder, i)->busy = busy;
}

/* Streams that were closed, or have had their last event, leave the list. An exception that is set stays. */
static bool let_go(decoder_object *decoder) {
    PyObject *type, *value, *traceback;
    bool ok = true;
    PyErr_Fetch(&type, &value, &traceback);
    decoder->busy = true; /* what a stream holds may have a finalizer, which must not come back here */
    for (Py_ssize_t i = PyList_Size(decoder->streams); ok && i-- > 0;) {
        stream_object *stream = member(decoder, i);
        if (stream->doomed)
            py_stream_release(stream);
        ok = stream->stream || PyList_SetSlice(decoder->streams, i, i + 1, NULL) == 0;
    }
    decoder->busy = false;
    if (ok || type)
        PyErr_Restore(type, value, traceback);
    return ok;
}

/* The exception that is set, as a value. It is a member's own even where a callback of it asks for an exit. */
static PyObject *caught(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

static stream_object *member_of(const decoder_object *decoder, const gm_stream *which) {
    for (Py_ssize_t i = 0; which && i < PyList_Size(decoder->streams); i++)
        if (member(decoder, i)->stream == which)
            return (stream_object *)Py_NewRef((PyObject *)member(decoder, i));
    return NULL;
}

/* (stream, Token) or (stream, exception) of an event of the engine, which is of a member; NULL with an exception set:
 * it is not a member's own. */
static PyObject *event_of(PyObject *self, gm_status status, const gm_stream *which, gm_token *token) {
    decoder_object *decoder = (decoder_object *)self;
    module_state *state = state_of(self, decoder_dealloc);
    stream_object *stream = member_of(decoder, which);
    if (status == GM_LOGITS && stream)
        status = py_stream_process(stream, token);
    PyObject *event = NULL;
    if (status == GM_OK)
        event = py_token_from(state, token); /* before the text's memory goes */
    else
        raise_gm(state);
    if (!event && stream)
        event = caught();
    if (stream && (status != GM_OK || token->finish != GM_FINISH_NONE)) {
        stream->busy = false;
        py_stream_release(stream);
    }
    PyObject *result = event && stream ? PyTuple_Pack(2, (PyObject *)stream, event) : NULL;
    Py_XDECREF(event);
    Py_XDECREF((PyObject *)stream);
    return result;
}

static PyObject *decoder_step(PyObject *self, PyObject *unused) {
    (void)unused;
    decoder_object *decoder = (decoder_object *)self;
    gm_token token = {.id = -1};
    gm_stream *which;
    gm_status status;
    if (!is_free(decoder) || !let_go(decoder))
        return NULL;
    mark_busy(decoder, true);
    do {
        Py_BEGIN_ALLOW_THREADS status = gm_decoder_next(decoder->decoder, STREAM_SLICE_MS, &which, &token);
        Py_END_ALLOW_THREADS
    } while (status == GM_AGAIN && PyErr_CheckSignals() == 0);
    if (status == GM_AGAIN) {
        Py_BEGIN_ALLOW_THREADS gm_decoder_pause(decoder->decoder);
        Py_END_ALLOW_THREADS
    }
    PyObject *result = status == GM_AGAIN ? NULL
                       : status == GM_END ? Py_NewRef(Py_None)
                                          : event_of(self, status, which, &token);
    mark_busy(decoder, false);
    if (!let_go(decoder)) /* after an interrupt, too */
        Py_CLEAR(result);
    return result;
}

/* Adds to the list the events that the last pass left. */
static bool take_events(PyObject *self, PyObject *events) {
    decoder_object *decoder = (decoder_object *)self;
    for (;;) {
        gm_token token = {.id = -1};
        gm_stream *which;
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_decoder_event(decoder->decoder, &which, &token);
        Py_END_ALLOW_THREADS if (status == GM_END) return true;
        PyObject *event = event_of(self, status, which, &token);
        const bool ok = event && PyList_Append(events, event) == 0;
        Py_XDECREF(event);
        if (!ok)
            return false;
    }
}

static PyObject *decoder_events(PyObject *self, PyObject *unused) {
    (void)unused;
    decoder_object *decoder = (decoder_object *)self;
    if (!is_free(decoder) || !let_go(decoder))
        return NULL;
    if (PyList_Size(decoder->streams) == 0)
        Py_RETURN_NONE;
    PyObject *events = PyList_New(0);
    if (!events)
        return NULL;
    mark_busy(decoder, true);
    bool ok = take_events(self, events);
    if (ok && PyList_Size(events) == 0) {
        gm_token token = {.id = -1};
        gm_stream *which;
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_decoder_pass(decoder->decoder, STREAM_SLICE_MS, &which);
        Py_END_ALLOW_THREADS if (status != GM_OK && status != GM_AGAIN && status != GM_END) {
            PyObject *event = event_of(self, status, which, &token);
            ok = event && PyList_Append(events, event) == 0;
            Py_XDECREF(event);
        }
        ok = ok && take_events(self, events);
    }
    mark_busy(decoder, false);
    if (!let_go(decoder) || !ok)
        Py_CLEAR(events);
    return events;
}

/* Where in the list a stream is that has not ended; -1 with an exception set. */
static Py_ssize_t index_of(const decoder_object *decoder, const PyObject *value) {
    if (!is_free(decoder))
        return -1;
    for (Py_ssize_t i = 0; i < PyList_Size(decoder->streams); i++)
        if ((PyObject *)member(decoder, i) == value && member(decoder, i)->stream)
            return i;
    PyErr_SetString(PyExc_ValueError, "the stream is not of this decoder, or has ended");
    return -1;
}

static PyObject *decoder_preempt(PyObject *self, PyObject *value) {
    decoder_object *decoder = (decoder_object *)self;
    const Py_ssize_t i = index_of(decoder, value);
    if (i < 0)
        return NULL;
    stream_object *stream = member(decoder, i);
    if (gm_decoder_remove(decoder->decoder, stream->stream) != GM_OK || gm_stream_yield(stream->stream) != GM_OK)
        return raise_gm(state_of(self, decoder_dealloc));
    stream->member = false;
    if (PyList_SetSlice(decoder->streams, i, i + 1, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *decoder_fork(PyObject *self, PyObject *value) {
    decoder_object *decoder = (decoder_object *)self;
    const Py_ssize_t i = index_of(decoder, value);
    gm_session *made;
    if (i < 0)
        return NULL;
    if (gm_decoder_fork(decoder->decoder, member(decoder, i)->stream, &made) != GM_OK)
        return raise_gm(state_of(self, decoder_dealloc));
    return py_session_of(((session_object *)member(decoder, i)->session)->model, made);
}

static PyObject *decoder_running(PyObject *self, void *unused) {
    (void)unused;
    return is_free((decoder_object *)self) ? PyBool_FromLong(gm_decoder_is_running(((decoder_object *)self)->decoder))
                                           : NULL;
}

static PyObject *decoder_limit(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rows", "gap_ms", NULL};
    long long rows;
    double gap;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ld:limit", names, &rows, &gap) || !is_free((decoder_object *)self))
        return NULL;
    if (gm_decoder_limit(((decoder_object *)self)->decoder, rows, gap) != GM_OK)
        return raise_gm(state_of(self, decoder_dealloc));
    Py_RETURN_NONE;
}

static PyObject *decoder_cache_bytes(PyObject *self, PyObject *unused) {
    (void)unused;
    int64_t bytes;
    if (!is_free((decoder_object *)self))
        return NULL;
    if (gm_decoder_cache_bytes(((decoder_object *)self)->decoder, &bytes) != GM_OK)
        return raise_gm(state_of(self, decoder_dealloc));
    return PyLong_FromLongLong(bytes);
}

static PyObject *decoder_profile(PyObject *self, PyObject *unused) {
    (void)unused;
    return is_free((decoder_object *)self) ? py_profile_from(&((decoder_object *)self)->profile) : NULL;
}

static int decoder_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((decoder_object *)self)->streams);
    return 0;
}

static int decoder_clear(PyObject *self) {
    decoder_object *decoder = (decoder_object *)self;
    PyObject *streams = decoder->streams;
    gm_decoder_free(decoder->decoder); /* first: no stream must leave a decoder that is gone */
    decoder->decoder = NULL;
    decoder->streams = NULL;
    Py_XDECREF(streams);
    return 0;
}

static void decoder_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    decoder_clear(self);
    object_free(self);
}

#define SIG(text, doc) text "\n--\n\n" doc
static PyMethodDef decoder_methods[] = {
    {"add", decoder_add, METH_O,
     SIG("add($self, stream, /)", "Takes a stream of the same model in, until its last event.")},
    {"step", decoder_step, METH_NOARGS,
     SIG("step($self)", "(stream, Token) of any of the streams, or (stream, the exception that ended it); None: there "
                        "are not streams.")},
    {"events", decoder_events, METH_NOARGS,
     SIG("events($self)",
         "All of (stream, Token) and (stream, the exception that ended it) that there are after one "
         "forward pass, or after 20 ms of one: then the list is empty, and streams may be added before "
         "the pass goes on. None: there are no streams.")},
    {"preempt", decoder_preempt, METH_O,
     SIG("preempt($self, stream, /)", "Takes a stream out, whose cache is given back. add() goes on with it, to the "
                                      "same tokens: its ids are computed again.")},
    {"fork", decoder_fork, METH_O,
     SIG("fork($self, stream, /)", "A Session with what a stream has computed so far; between forward passes.")},
    {"limit", FUNCTION(decoder_limit), METH_VARARGS | METH_KEYWORDS,
     SIG("limit($self, rows, gap_ms)",
         "At most `rows` rows of prompts in a forward pass, 1 to 512, or 0 for 512, and while streams decode as many "
         "as keep it "
         "under "
         "gap_ms milliseconds by what passes took so far, but a few in any case; 0: no such bound.")},
    {"cache_bytes", decoder_cache_bytes, METH_NOARGS,
     SIG("cache_bytes($self)", "Bytes of all streams' keys, values and states; what several share counts once.")},
    {"profile", decoder_profile, METH_NOARGS,
     SIG("profile($self)", "What the forward passes did, all together, that streams with a profile took part in.")},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef decoder_getset[] = {
    {"running", decoder_running, NULL, "Whether a forward pass is under way, which events() goes on with.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Streams of one model that are decoded together."},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_traverse, decoder_traverse},
    {Py_tp_methods, decoder_methods},
    {Py_tp_getset, decoder_getset},
    {0, NULL},
};
PyType_Spec py_decoder_spec = {"gomlx._gomlx.Decoder", sizeof(decoder_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               decoder_slots};
