/* stream.h - the objects Session and TokenStream, for the files that work with them: session.c, stream.c and decoder.c.
 * Objects hold each other one way: stream -> session -> model, stream -> tokenizer. Back pointers are borrowed. */
#ifndef GOMLX_PY_STREAM_H
#define GOMLX_PY_STREAM_H
#include "py/model/adapters.h"
#include "py/model/inspect.h"

typedef struct stream_object stream_object;
typedef struct session_object {
    PyObject_HEAD gm_session *session; /* NULL when closed */
    PyObject *model;
    struct session_object *previous, *next; /* the model's open sessions */
    stream_object *stream;                  /* the open one, borrowed */
    bool working;                           /* a call works on it without the GIL, or between two such times */
    bool doomed;                            /* to be freed with its stream, or when that call is done */
} session_object;
struct stream_object {
    PyObject_HEAD gm_stream *stream; /* NULL when closed or at its end */
    PyObject *session, *tokenizer;
    PyObject *processors; /* a tuple; NULL: none */
    PyObject *mask;       /* called for what may come next; NULL: anything may */
    PyObject *logits;     /* a bytearray: what the processors may change */
    bool busy, doomed;
    bool processing; /* busy, between two calls of the engine */
    size_t n_activations;
    bool member;               /* of a Decoder */
    gm_stream_stats stats;     /* the last ones, once stream is NULL */
    gm_prompt_logprobs prompt; /* the last ones, once stream is NULL */
    gm_profile *profile;       /* where the C stream counts, or NULL */
};

/* The C session; NULL, and ValueError, when it is closed. */
gm_session *py_session_open(PyObject *self);
PyObject *py_session_of(PyObject *model, gm_session *session); /* a Session, which owns the C session */
void py_session_release(session_object *session);              /* frees the C session; only when no C stream uses it */
void py_stream_shut(stream_object *stream);    /* frees the C stream, or has the thread that runs a step do it */
void py_stream_release(stream_object *stream); /* frees the C stream now; the statistics stay; not while busy */
/* The answer to GM_LOGITS. GM_ESTATE with an exception set: a processor's, or the mask's. */
gm_status py_stream_process(stream_object *stream, gm_token *token);
PyObject *py_token_from(module_state *state, const gm_token *token);
PyObject *py_profile_from(const gm_profile *profile); /* a dict; profile.c */
#endif
