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

/* The exception that is set, as a value; NULL, and it stays set, when it is none that a member may have. */
static PyObject *caught(void) {
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

static PyObject *decoder_step(PyObject *self, PyObject *unused) {
    (void)unused;
    decoder_object *decoder = (decoder_object *)self;
    module_state *state = state_of(self, decoder_dealloc);
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
    stream_object *stream = NULL;
    for (Py_ssize_t i = 0; which && i < PyList_Size(decoder->streams) && !stream; i++)
        if (member(decoder, i)->stream == which)
            stream = member(decoder, i);
    Py_XINCREF((PyObject *)stream);
    if (status == GM_LOGITS && stream)
        status = py_stream_process(stream, &token);
    PyObject *event = NULL;
    if (status == GM_OK)
        event = py_token_from(state, &token); /* before the text's memory goes */
    else if (status == GM_END)
        event = Py_NewRef(Py_None);
    else if (status != GM_AGAIN)
        raise_gm(state);
    if (!event && stream)
        event = caught();
    mark_busy(decoder, false);
    if (stream && (status != GM_OK || token.finish != GM_FINISH_NONE))
        py_stream_release(stream);
    if (!let_go(decoder)) /* after an interrupt, too */
        Py_CLEAR(event);
    PyObject *result = event && stream ? PyTuple_Pack(2, (PyObject *)stream, event) : Py_XNewRef(event);
    Py_XDECREF(event);
    Py_XDECREF((PyObject *)stream);
    return result;
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
    {"profile", decoder_profile, METH_NOARGS,
     SIG("profile($self)", "What the forward passes did, all together, that streams with a profile took part in.")},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Streams of one model that are decoded together."},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_traverse, decoder_traverse},
    {Py_tp_methods, decoder_methods},
    {0, NULL},
};
PyType_Spec py_decoder_spec = {"gomlx._gomlx.Decoder", sizeof(decoder_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               decoder_slots};
