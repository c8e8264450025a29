/* stream.c - TokenStream and Token: generation, one token for each next().
 *  (1) A C stream is used by one thread at a time: busy is set, under the GIL, while a step runs without it. Only
 *      cancel may come in between. Whoever wants to free the C stream meanwhile leaves doomed, and the step frees it.
 *      busy lasts until the event is made: what is allocated for it may start a garbage collection, and with it any
 *      Python code.
 *  (2) Logits processors and the mask run between two calls of the engine, while busy is set. They see memory of a
 * bytearray; a view that one of them keeps keeps that bytearray, and the next token gets another. */
#include "py/model/stream.h"
#include <math.h>
#include <string.h>

static void stream_dealloc(PyObject *self);

/* ---- tokens ---- */

static PyStructSequence_Field token_fields[] = {
    {"id", "The token, or -1 when only text that was held back comes."},
    {"text", "What became certain with it."},
    {"logprob", "The logarithm of its probability in the model's own distribution, before any sampler."},
    {"finish_reason", "On the last one 'stop', 'length', 'context', 'cancelled' or 'timeout'; else None."},
    {"top_logprobs", "As many of the likeliest tokens as were asked for, best first: (id, logprob) each."},
    {NULL, NULL},
};
static PyStructSequence_Desc token_description = {"gomlx.Token", "One step of a TokenStream.", token_fields, 5};

bool py_token_type_add(PyObject *module, module_state *state) {
    state->token_type = PyStructSequence_NewType(&token_description);
    return state->token_type && PyModule_AddObjectRef(module, "Token", (PyObject *)state->token_type) == 0;
}

const char *finish_name(gm_finish finish) {
    static const char *const names[] = {
        [GM_FINISH_NONE] = NULL,         [GM_FINISH_STOP] = "stop",           [GM_FINISH_LENGTH] = "length",
        [GM_FINISH_CONTEXT] = "context", [GM_FINISH_CANCELLED] = "cancelled", [GM_FINISH_TIMEOUT] = "timeout",
    };
    return names[finish];
}

static PyObject *likeliest(const gm_logprob *top, int32_t n) {
    PyObject *all = PyTuple_New(n);
    for (int32_t i = 0; all && i < n; i++) {
        PyObject *pair = Py_BuildValue("(id)", (int)top[i].id, (double)top[i].logprob);
        if (!pair || PyTuple_SetItem(all, i, pair) < 0)
            Py_CLEAR(all);
    }
    return all;
}

PyObject *py_token_from(module_state *state, const gm_token *token) {
    enum { FIELDS = 5 };
    const char *finish = finish_name(token->finish);
    PyObject *items[FIELDS] = {
        PyLong_FromLong(token->id),
        PyUnicode_DecodeUTF8(token->text ? token->text : "", (Py_ssize_t)token->length, "replace"),
        PyFloat_FromDouble((double)token->logprob),
        finish ? PyUnicode_FromString(finish) : Py_NewRef(Py_None),
        likeliest(token->top, token->n_top),
    };
    bool ok = items[0] && items[1] && items[2] && items[3] && items[4];
    PyObject *result = ok ? PyStructSequence_New(state->token_type) : NULL;
    for (int i = 0; i < FIELDS; i++) {
        if (result)
            PyStructSequence_SetItem(result, i, items[i]);
        else
            Py_XDECREF(items[i]);
    }
    return result;
}

/* ---- streams ---- */

void py_stream_release(stream_object *stream) {
    gm_stream *c_stream = stream->stream;
    session_object *session = (session_object *)stream->session;
    if (!c_stream)
        return;
    stream->stats = gm_stream_get_stats(c_stream);
    stream->prompt = gm_stream_take_prompt_logprobs(c_stream);
    stream->stream = NULL;
    if (stream->member) { /* it leaves a decoder that others may use */
        gm_stream_free(c_stream);
    } else {
        Py_BEGIN_ALLOW_THREADS gm_stream_free(c_stream);
        Py_END_ALLOW_THREADS
    }
    if (session->stream != stream) /* another stream was opened while we freed this one */
        return;
    session->stream = NULL;
    if (session->doomed && !session->working)
        py_session_release(session);
}

void py_stream_shut(stream_object *stream) {
    if (stream->busy) {
        stream->doomed = true;
        gm_stream_cancel(stream->stream);
    } else if (stream->stream) {       /* which an object that is being deallocated has no more */
        Py_INCREF((PyObject *)stream); /* its owner may drop it, and its session with it, while the GIL is released */
        py_stream_release(stream);
        Py_DECREF((PyObject *)stream);
    }
}

typedef struct {
    gm_generate_options options;
    sampling_arguments sampling;
    int32_t *prompt, *stop_ids;
    size_t n_prompt;
    PyObject *texts, *processors;
    PyObject *mask; /* borrowed */
    const char **stop_texts;
    edit_list edits;
    share_list adapters;
    int64_t *activations;
    size_t n_activations;
} request;

static void request_free(request *r) {
    sampling_free(&r->sampling);
    Py_XDECREF(r->processors);
    PyMem_Free(r->prompt);
    PyMem_Free(r->stop_ids);
    PyMem_Free(r->stop_texts);
    PyMem_Free(r->activations);
    edits_free(&r->edits);
    shares_free(&r->adapters);
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

static bool read_processors(PyObject *value, request *r) {
    r->processors = PySequence_Tuple(value);
    for (Py_ssize_t i = 0; r->processors && i < PyTuple_Size(r->processors); i++)
        if (!PyCallable_Check(PyTuple_GetItem(r->processors, i))) {
            PyErr_Format(PyExc_TypeError, "processors: expected callables, found %R",
                         (PyObject *)Py_TYPE(PyTuple_GetItem(r->processors, i)));
            return false;
        }
    r->options.hand_out_logits = r->processors && PyTuple_Size(r->processors) > 0;
    return r->processors != NULL;
}

static bool read_mask(PyObject *value, request *r) {
    if (!value || value == Py_None)
        return true;
    if (!PyCallable_Check(value)) {
        PyErr_Format(PyExc_TypeError, "mask: expected a callable or None, not %R", (PyObject *)Py_TYPE(value));
        return false;
    }
    r->mask = value;
    r->options.hand_out_logits = true;
    return true;
}

static bool read_prefill(PyObject *value, gm_prefill *out) {
    static const char *const names[] = {"auto", "batched", "token"};
    static const gm_prefill modes[] = {GM_PREFILL_BATCHED, GM_PREFILL_BATCHED, GM_PREFILL_TOKEN};
    for (int i = 0; value && i < 3; i++)
        if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, names[i]) == 0) {
            *out = modes[i];
            return true;
        }
    if (value)
        PyErr_Format(PyExc_ValueError, "prefill is %R, expected 'auto', 'batched', 'token' or 'validate'", value);
    return !value;
}

/* The arguments of stream() in order. Those up to prompt_ids are required and may be given by position. */
/* clang-format off */
#define ARGUMENTS(X)                                                                                                   \
    X(session) X(tokenizer) X(prompt_ids) X(max_tokens) X(min_tokens) X(stop_ids) X(stop_texts) X(top_logprobs)        \
    X(processors) X(timeout) X(prefill) X(edits) X(activations) X(profile) X(adapters) X(mask)       \
    X(prompt_logprobs) X(checkpoint)
/* clang-format on */
#define INDEX(name) arg_##name,
#define TEXT(name) #name,
enum { ARGUMENTS(INDEX) N_ARGUMENTS };

static bool read_request(module_state *state, PyObject *const *v, request *r) {
    gm_generate_options *o = &r->options;
    o->sampling = r->sampling.options;
    if (!read_ids(v[arg_prompt_ids], &r->prompt, &r->n_prompt) ||
        (v[arg_max_tokens] && !read_count(v[arg_max_tokens], "max_tokens", &o->max_tokens)) ||
        (v[arg_min_tokens] && !read_count(v[arg_min_tokens], "min_tokens", &o->min_tokens)) ||
        (v[arg_checkpoint] && !read_count(v[arg_checkpoint], "checkpoint", &o->checkpoint)) ||
        (v[arg_stop_ids] && !read_ids(v[arg_stop_ids], &r->stop_ids, &o->n_stop_ids)) ||
        (v[arg_stop_texts] && !read_stop_texts(v[arg_stop_texts], r)) ||
        !read_int(v[arg_top_logprobs], "top_logprobs", &o->top_logprobs) ||
        !read_int(v[arg_prompt_logprobs], "prompt_logprobs", &o->prompt_logprobs) ||
        !read_float(v[arg_timeout], "timeout", &o->timeout_seconds) || !read_prefill(v[arg_prefill], &o->prefill) ||
        (v[arg_edits] && !edits_read(state, v[arg_edits], &r->edits)) ||
        (v[arg_activations] && !numbers_read(v[arg_activations], &r->activations, &r->n_activations)) ||
        !shares_read(v[arg_adapters], &r->adapters))
        return false;
    o->adapters = r->adapters.all;
    o->n_adapters = r->adapters.n;
    o->edits = r->edits.edits;
    o->n_edits = r->edits.n;
    o->activations = r->activations;
    o->n_activations = r->n_activations;
    o->stop_ids = r->stop_ids;
    if ((v[arg_processors] && !read_processors(v[arg_processors], r)) || !read_mask(v[arg_mask], r))
        return false;
    o->hand_out_logits = o->hand_out_logits && o->max_tokens != 0; /* they are called for tokens */
    return true;
}

static bool is_tokenizer(module_state *state, PyObject *value) {
    if (value == Py_None || PyType_IsSubtype(Py_TYPE(value), state->tokenizer_type))
        return true;
    PyErr_Format(PyExc_TypeError, "tokenizer must be a Tokenizer or None, not %R", (PyObject *)Py_TYPE(value));
    return false;
}

PyObject *open_stream(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"stream", 0, 3, 7, {ARGUMENTS(TEXT) NULL}};
    module_state *state = PyModule_GetState(module);
    bool profiled = false;
    PyObject *v[N_ARGUMENTS];
    request r = {.prompt = NULL};
    gm_generate_defaults(&r.options);
    if (!sampling_read(&r.sampling, &sig, args, n, kwnames, v) || !is_tokenizer(state, v[arg_tokenizer])) {
        request_free(&r);
        return NULL;
    }
    if (!Py_IS_TYPE(v[arg_session], state->session_type)) {
        PyErr_Format(PyExc_TypeError, "session must be a Session, not %R", (PyObject *)Py_TYPE(v[arg_session]));
        request_free(&r);
        return NULL;
    }
    stream_object *stream = NULL;
    session_object *session = (session_object *)v[arg_session];
    bool ok = read_request(state, v, &r) && read_bool(v[arg_profile], &profiled) &&
              (stream = (stream_object *)PyType_GenericAlloc(state->stream_type, 0));
    if (ok && profiled && !(stream->profile = PyMem_Calloc(1, sizeof *stream->profile)))
        ok = PyErr_NoMemory() != NULL;
    /* reading and allocating may run Python code: the session is looked at last */
    if (ok && (ok = py_session_open(v[arg_session]) != NULL)) {
        r.options.profile = stream->profile;
        gm_tokenizer *tokenizer = v[arg_tokenizer] == Py_None ? NULL
                                                              : ((tokenizer_object *)v[arg_tokenizer])->tokenizer;
        if (gm_stream_open(session->session, tokenizer, r.prompt, r.n_prompt, &r.options, &stream->stream) == GM_OK) {
            stream->session = Py_NewRef(v[arg_session]);
            stream->tokenizer = Py_NewRef(v[arg_tokenizer]);
            stream->processors = r.options.hand_out_logits ? Py_XNewRef(r.processors) : NULL;
            stream->mask = r.options.hand_out_logits ? Py_XNewRef(r.mask) : NULL;
            stream->n_activations = r.n_activations;
            session->stream = stream;
        } else {
            stream->stream = NULL;
            ok = raise_gm(state) != NULL;
        }
    }
    if (!ok)
        Py_CLEAR(stream);
    request_free(&r);
    return (PyObject *)stream;
}

/* ---- logits processors and masks ---- */

/* memoryview(bytes).cast(format) */
static PyObject *cast_view(PyObject *bytes, const char *format) {
    PyObject *view = bytes ? PyMemoryView_FromObject(bytes) : NULL;
    PyObject *cast = view ? PyObject_CallMethod(view, "cast", "s", format) : NULL;
    Py_XDECREF(view);
    return cast;
}

/* A writable float32 view of a copy of the logits, in a bytearray of the stream's that nobody else holds. */
static PyObject *view_logits(stream_object *stream, const gm_pending_logits *pending) {
    Py_ssize_t bytes = (Py_ssize_t)pending->vocab * (Py_ssize_t)sizeof *pending->logits;
    if (!stream->logits && !(stream->logits = PyByteArray_FromStringAndSize(NULL, bytes)))
        return NULL;
    memcpy(PyByteArray_AsString(stream->logits), pending->logits, (size_t)bytes);
    return cast_view(stream->logits, "f");
}

/* Ends the view; a bytearray that something else looks at, an array made of the view say, is left to it. */
static void end_view(stream_object *stream, PyObject *view) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = view ? PyObject_CallMethod(view, "release", NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(view);
    PyErr_Restore(type, value, traceback);
    if (stream->logits && Py_REFCNT(stream->logits) > 1)
        Py_CLEAR(stream->logits);
}

/* What a processor returned, when it is not None, takes the place of the logits. */
static bool take_returned(stream_object *stream, PyObject *view, PyObject *returned) {
    Py_buffer buffer;
    if (returned == Py_None || returned == view)
        return true;
    if (PyObject_GetBuffer(returned, &buffer, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "a logits processor returned %R, expected None or float32 [vocab]",
                         (PyObject *)Py_TYPE(returned));
        return false;
    }
    Py_ssize_t bytes = PyByteArray_Size(stream->logits);
    bool ok = buffer.format && strcmp(buffer.format, "f") == 0 && buffer.len == bytes;
    if (ok)
        memmove(PyByteArray_AsString(stream->logits), buffer.buf, (size_t)bytes);
    else
        PyErr_Format(PyExc_ValueError, "a logits processor returned %zd bytes of format '%s', expected %zd of float32",
                     buffer.len, buffer.format ? buffer.format : "B", bytes);
    PyBuffer_Release(&buffer);
    return ok;
}

/* StopIteration would look like the stream's own end: it becomes RuntimeError, as in a generator. */
static void replace_stop_iteration(const char *what) {
    if (!PyErr_ExceptionMatches(PyExc_StopIteration))
        return;
    PyErr_Clear();
    PyErr_Format(PyExc_RuntimeError, "a %s raised StopIteration", what);
}

static bool run_processors(stream_object *stream, PyObject *ids, PyObject *view) {
    bool ok = view != NULL;
    Py_ssize_t n = stream->processors ? PyTuple_Size(stream->processors) : 0; /* none left: collected as garbage */
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *processor = PyTuple_GetItem(stream->processors, i);
        PyObject *returned = PyObject_CallFunctionObjArgs(processor, ids, view, NULL);
        ok = returned && take_returned(stream, view, returned);
        Py_XDECREF(returned);
        if (!returned)
            replace_stop_iteration("logits processor");
    }
    return ok;
}

/* The bits of what may come next, in *bits, which is then to be released; bits->obj NULL: anything may. */
static bool call_mask(stream_object *stream, PyObject *ids, int64_t vocab, Py_buffer *bits) {
    const Py_ssize_t bytes = (Py_ssize_t)((vocab + 31) / 32 * (int64_t)sizeof(uint32_t));
    PyObject *mask = Py_XNewRef(stream->mask), *returned = mask ? PyObject_CallFunctionObjArgs(mask, ids, NULL) : NULL;
    Py_XDECREF(mask);
    if (!returned && mask)
        replace_stop_iteration("mask");
    bool ok = returned || !mask;
    if (returned && returned != Py_None) {
        ok = PyObject_GetBuffer(returned, bits, PyBUF_SIMPLE) == 0;
        if (ok && (bits->len != bytes || (uintptr_t)bits->buf % sizeof(uint32_t) != 0)) {
            PyErr_Format(PyExc_ValueError,
                         "a mask has %zd bytes, expected %zd, aligned as uint32: a bit for each of %lld tokens",
                         bits->len, bytes, (long long)vocab);
            PyBuffer_Release(bits);
            *bits = (Py_buffer){.obj = NULL};
            ok = false;
        }
    }
    Py_XDECREF(returned);
    return ok;
}

/* The answer to GM_LOGITS: the mask, the processors, one after another, and the draw. With processors the GIL is held,
 * so that nobody changes the logits meanwhile. GM_ESTATE with an exception set: a processor's, or the mask's. */
gm_status py_stream_process(stream_object *stream, gm_token *token) {
    gm_pending_logits pending;
    Py_buffer bits = {.obj = NULL};
    gm_status status = gm_stream_logits(stream->stream, &pending);
    if (status != GM_OK)
        return status;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)pending.ids,
                                                (Py_ssize_t)(pending.n_ids * sizeof *pending.ids));
    PyObject *ids = cast_view(bytes, "i"), *view = NULL;
    const bool processed = stream->processors && PyTuple_Size(stream->processors) > 0;
    stream->processing = true;
    bool ok = ids && call_mask(stream, ids, pending.vocab, &bits);
    if (ok && processed)
        ok = run_processors(stream, ids, view = view_logits(stream, &pending));
    stream->processing = false;
    if (!ok) {
        status = GM_ESTATE;
    } else if (processed) {
        status = gm_stream_sample(stream->stream, (const float *)(void *)PyByteArray_AsString(stream->logits), bits.buf,
                                  token);
    } else {
        Py_BEGIN_ALLOW_THREADS status = gm_stream_sample(stream->stream, NULL, bits.buf, token);
        Py_END_ALLOW_THREADS
    }
    if (bits.obj)
        PyBuffer_Release(&bits);
    end_view(stream, view);
    Py_XDECREF(ids);
    Py_XDECREF(bytes);
    return status;
}

static PyObject *stream_next(PyObject *self) {
    stream_object *stream = (stream_object *)self;
    if (stream->busy) {
        PyErr_SetString(PyExc_ValueError, "stream is in use by another thread");
        return NULL;
    }
    if (!stream->stream)
        return NULL;
    if (stream->member) {
        PyErr_SetString(PyExc_RuntimeError, "the stream is a member of a Decoder, which gives its tokens");
        return NULL;
    }
    gm_token token = {.id = -1};
    gm_status status;
    stream->busy = true;
    do {
        Py_BEGIN_ALLOW_THREADS status = gm_stream_next(stream->stream, STREAM_SLICE_MS, &token);
        Py_END_ALLOW_THREADS
    } while (status == GM_AGAIN && PyErr_CheckSignals() == 0);
    if (status == GM_LOGITS)
        status = py_stream_process(stream, &token);
    PyObject *result = NULL;
    if (status == GM_OK)
        result = py_token_from(state_of(self, stream_dealloc), &token); /* before the text's memory goes */
    else if (status != GM_END && status != GM_AGAIN)
        raise_gm(state_of(self, stream_dealloc));
    stream->busy = false;
    if (status != GM_OK || token.finish != GM_FINISH_NONE || stream->doomed)
        py_stream_release(stream); /* an interrupted step is dropped; the session keeps what was committed */
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
    py_stream_shut((stream_object *)self);
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
    return Py_BuildValue("{sLsLsLsLsdsdsLszsisi}", "prompt_tokens", (long long)s.prompt_tokens, "cached_tokens",
                         (long long)s.cached_tokens, "generated_tokens", (long long)s.generated_tokens, "decode_steps",
                         (long long)s.decode_steps, "prefill_seconds", s.prefill_seconds, "decode_seconds",
                         s.decode_seconds, "peak_memory_bytes", (long long)s.peak_memory, "finish_reason",
                         finish_name(s.finish), "stop_id", (int)s.stop_id, "stop_text", (int)s.stop_text);
}

static PyObject *stream_profile(PyObject *self, PyObject *unused) {
    (void)unused;
    stream_object *stream = (stream_object *)self;
    if (stream->busy) {
        PyErr_SetString(PyExc_ValueError, "stream is in use by another thread");
        return NULL;
    }
    if (!stream->profile)
        Py_RETURN_NONE;
    return py_profile_from(stream->profile);
}

/* The log probability of a token of the prompt; None: it has none, or not yet. */
static PyObject *score_of(const gm_prompt_logprobs *prompt, int64_t i) {
    return isnan(prompt->logprobs[i]) ? Py_NewRef(Py_None) : PyFloat_FromDouble((double)prompt->logprobs[i]);
}

static PyObject *stream_prompt_logprobs(PyObject *self, PyObject *unused) {
    (void)unused;
    stream_object *stream = (stream_object *)self;
    if (stream->busy) {
        PyErr_SetString(PyExc_ValueError, "stream is in use by another thread");
        return NULL;
    }
    const gm_prompt_logprobs *prompt = stream->stream ? gm_stream_prompt_logprobs(stream->stream) : &stream->prompt;
    if (prompt->n == 0)
        Py_RETURN_NONE;
    PyObject *scores = PyList_New((Py_ssize_t)prompt->n), *tops = PyList_New((Py_ssize_t)prompt->n);
    bool ok = scores && tops;
    for (int64_t i = 0; ok && i < prompt->n; i++) {
        const bool known = !isnan(prompt->logprobs[i]);
        PyObject *score = score_of(prompt, i),
                 *top = likeliest(prompt->top + i * prompt->n_top, known ? prompt->n_top : 0);
        ok = score && top;
        if (score)
            PyList_SetItem(scores, (Py_ssize_t)i, score);
        if (top)
            PyList_SetItem(tops, (Py_ssize_t)i, top);
    }
    PyObject *result = ok ? PyTuple_Pack(2, scores, tops) : NULL;
    Py_XDECREF(scores);
    Py_XDECREF(tops);
    return result;
}

static PyObject *stream_activations(PyObject *self, PyObject *unused) {
    (void)unused;
    stream_object *stream = (stream_object *)self;
    module_state *state = state_of(self, stream_dealloc);
    if (!stream->stream || (stream->busy && !stream->processing)) {
        PyErr_SetString(PyExc_ValueError,
                        stream->stream ? "stream is in use by another thread" : "the stream has ended");
        return NULL;
    }
    const bool processing = stream->busy;
    stream->busy = true; /* (1) */
    PyObject *list = PyList_New((Py_ssize_t)stream->n_activations);
    for (size_t i = 0; list && i < stream->n_activations; i++) {
        gm_scope *scope = gm_scope_open();
        PyObject *array = py_array_result(state, scope, scope ? gm_stream_activation(scope, stream->stream, i) : NULL);
        if (!array)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, array);
    }
    stream->busy = processing;
    if (!processing && stream->doomed)
        py_stream_release(stream);
    return list;
}

static PyObject *stream_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    return Py_NewRef(self);
}

static int stream_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((stream_object *)self)->session);
    Py_VISIT(((stream_object *)self)->tokenizer);
    Py_VISIT(((stream_object *)self)->processors);
    Py_VISIT(((stream_object *)self)->mask);
    return 0;
}

static int stream_clear(PyObject *self) {
    Py_CLEAR(((stream_object *)self)->processors);
    Py_CLEAR(((stream_object *)self)->mask);
    return 0;
}

static void stream_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    stream_object *stream = (stream_object *)self;
    if (stream->session)
        py_stream_release(stream);
    Py_XDECREF(stream->session);
    Py_XDECREF(stream->tokenizer);
    Py_XDECREF(stream->processors);
    Py_XDECREF(stream->mask);
    Py_XDECREF(stream->logits);
    PyMem_Free(stream->profile);
    gm_prompt_logprobs_free(&stream->prompt);
    object_free(self);
}

#define SIG(text, doc) text "\n--\n\n" doc
static PyMethodDef stream_methods[] = {
    {"cancel", stream_cancel, METH_NOARGS, SIG("cancel($self)", "From any thread: the next token is the last.")},
    {"close", stream_close, METH_NOARGS,
     SIG("close($self)", "Ends the stream and frees its session for the next one.")},
    {"stats", stream_stats, METH_NOARGS, SIG("stats($self)", "Counts and seconds of prompt and decoding, as a dict.")},
    {"profile", stream_profile, METH_NOARGS,
     SIG("profile($self)",
         "What its forward passes did, as a dict (gomlx/profiling.py); None: it was opened without.")},
    {"prompt_logprobs", stream_prompt_logprobs, METH_NOARGS,
     SIG("prompt_logprobs($self)",
         "Of each token of the prompt its log probability, and (id, logprob) of the likeliest: two "
         "lists; None and () for the first, and for those that are not computed yet. None: it was opened without.")},
    {"activations", stream_activations, METH_NOARGS,
     SIG("activations($self)", "Those that were asked for, of the rows of the last pass; in a logits processor too.")},
    {"__enter__", stream_enter, METH_NOARGS, NULL},
    {"__exit__", stream_close, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot stream_slots[] = {
    {Py_tp_doc, "An iterator of Token, made by stream()."},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, stream_next},
    {Py_tp_methods, stream_methods},
    {0, NULL},
};
PyType_Spec py_stream_spec = {"gomlx._gomlx.TokenStream", sizeof(stream_object), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              stream_slots};
