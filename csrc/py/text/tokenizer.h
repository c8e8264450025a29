/* tokenizer.h - what the files of the tokenizer's binding share: tokenizer.c (the types), encoding.c (what encoding
 * gives and takes). */
#ifndef GOMLX_PY_TOKENIZER_H
#define GOMLX_PY_TOKENIZER_H
#include "py/py.h"

gm_tokenizer *tokenizer_of(PyObject *self);
module_state *tokenizer_state(PyObject *self);

/* A text for the engine; owner, which the caller releases, keeps its bytes. A str, whose lone surrogates become U+FFFD,
 * or bytes. */
bool read_text(PyObject *value, gm_text *out, PyObject **owner);

/* What a call that encodes takes besides texts. */
typedef struct {
    gm_encode_options options;
    gm_truncation truncation;
    gm_padding padding;
    PyObject *pad_token; /* owned */
    bool from_file;      /* it is the file that wants truncation */
} encode_arguments;
/* NULL or None: as the file declares; truncation: False, an int or a dict; padding: False, True or a dict.
 * encode_arguments_free in any case. */
bool encode_arguments_read(PyObject *self, encode_arguments *a, PyObject *add_special, PyObject *parse_special,
                           PyObject *truncation, PyObject *padding);
void encode_arguments_free(encode_arguments *a);
/* Texts were cut because the file says so, and nobody can see it: a warning. */
bool warn_truncated(const encode_arguments *a);
/* The file's own, as dicts like the reference's; None when it declares none. */
PyObject *get_truncation(PyObject *self, void *unused);
PyObject *get_padding(PyObject *self, void *unused);

PyObject *ids_list(PyObject *self, const int32_t *ids, size_t n);
/* Takes over the ids (gm_buffer_free's), also on failure: an int32 NumPy array of them. */
PyObject *ids_array(module_state *state, int32_t *ids, size_t n);
/* Takes over the encoding, also on failure. */
PyObject *encoding_wrap(PyObject *tokenizer, gm_encoding *encoding);
extern PyType_Spec py_encoding_spec, py_ids_spec;
#endif
