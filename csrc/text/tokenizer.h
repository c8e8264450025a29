/* tokenizer.h - a loaded tokenizer. The loaders (text/load) fill one in; after tokenizer_finish it never changes, so
 * any number of threads may use it. */
#ifndef GOMLX_TEXT_TOKENIZER_H
#define GOMLX_TEXT_TOKENIZER_H
#include <stdatomic.h>
#include "text/split/added.h"
#include "text/output/decode.h"
#include "text/model/model.h"
#include "text/normalize/normalize.h"
#include "text/output/postprocess.h"
#include "text/split/pretokenize.h"
#include "text/fast/quick.h"
#include "text/output/token_bytes.h"
#include "text/model/vocab.h"

#define IDLE_WORKS 8

struct gm_tokenizer {
    _Atomic int64_t references;
    vocab vocab;      /* the model's own tokens */
    vocab added;      /* added tokens, including those that the model has too */
    vocab renamed;    /* by id: the text of an added token that normalizing changes */
    uint8_t *special; /* by id: whether decoding may skip it */
    size_t n_ids;
    added_set raw_tokens, normalized_tokens;
    normalizer normalizer;
    pretokenizer pretokenizer;
    model model;
    post_processor post_processor;
    bool simple;             /* one text becomes before, its ids, after */
    id_buffer before, after; /* a loader may fill these instead of the post-processor */
    bool has_truncation, has_padding;
    gm_truncation truncation;
    gm_padding padding;
    char *pad_token; /* padding.token */
    decoder decoder;
    _Atomic(token_bytes *) bytes; /* NULL until it is needed */
    quick_way quick;              /* the fast path, for ids alone */
    bool by_lengths;              /* the bytes of a text's tokens are the text's: see encode_by_lengths */
    _Atomic(struct encode_work *) idle[IDLE_WORKS]; /* whose caches are kept */
};

/* One thread's workspace for encoding. Its cache of pieces serves the next text too. */
typedef struct encode_work {
    normalize_work normalize;
    pretoken_scan pretokens;
    model_work model;
    quick_work quick;
    id_buffer ids;         /* the result; empty when the work is taken */
    gm_encoding *encoding; /* the result with offsets and texts; NULL when only ids are wanted */
    span_buffer spans;     /* of the piece's tokens, with an encoding */
    int32_t type_id, word;
    bool skip_special; /* special tokens are ordinary text */
    bool truncated;    /* the last text was cut */
    bool large;        /* a large text was encoded: its scratch is freed afterwards */
} encode_work;

/* An idle one or a new one; NULL when memory ran out. */
encode_work *work_take(gm_tokenizer *t);
void work_give_back(gm_tokenizer *t, encode_work *work); /* frees its ids */
void work_free(encode_work *work);
/* Appends to work->ids. */
gm_status tokenizer_encode(gm_tokenizer *t, encode_work *work, const gm_text *text, const gm_text *pair,
                           const gm_encode_options *o);
/* Makes a whole encoding, padded as if it were alone. */
gm_status tokenizer_encoding(gm_tokenizer *t, encode_work *work, const gm_text *text, const gm_text *pair,
                             const gm_encode_options *o, gm_encoding **out);
/* Pads a whole encoding to a length. */
gm_status tokenizer_pad(const gm_tokenizer *t, gm_encoding *e, size_t length, const gm_padding *how);

gm_tokenizer *tokenizer_new(void);
/* Adds a token that is matched in the text, once vocabulary and normalizer are loaded. Its id is the vocabulary's if
 * the vocabulary has it, else the next free one. flags.id is not read. */
gm_status tokenizer_add(gm_tokenizer *t, const char *text, size_t length, added_token flags, bool normalized);
/* Call once, when everything is loaded. */
gm_status tokenizer_finish(gm_tokenizer *t);
#endif
