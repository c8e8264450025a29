/* tokenizer.h - what a loaded tokenizer is. The loaders (json_file.c, gguf_file.c) fill one; after tokenizer_finish it
 * never changes, so any number of threads may use it. */
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
    vocab vocab;                 /* the model's own tokens */
    vocab added;                 /* added tokens, those that the model has too included */
    vocab renamed;               /* what an added token is called, by id, where normalizing changes its text */
    uint8_t *special;            /* by id: decoding may skip it */
    size_t n_ids;
    added_set raw_tokens, normalized_tokens;
    normalizer normalizer;
    pretokenizer pretokenizer;
    model model;
    post_processor post_processor;
    bool simple;                 /* of one text it makes before, the text, after */
    id_buffer before, after;     /* a loader may fill these instead of the post-processor */
    bool has_truncation, has_padding;
    gm_truncation truncation;
    gm_padding padding;
    char *pad_token;             /* padding.token */
    decoder decoder;
    _Atomic(token_bytes *) bytes;    /* NULL until it is asked for */
    quick_way quick;             /* to ids alone */
    bool by_lengths;             /* the bytes of a text's tokens are the text: see encode.c */
    _Atomic(struct encode_work *) idle[IDLE_WORKS];    /* with what their caches have learned */
};

/* One thread's memory for encoding; what it has learnt of one text serves the next. */
typedef struct encode_work {
    normalize_work normalize;
    pretoken_scan pretokens;
    model_work model;
    quick_work quick;
    id_buffer ids;               /* the result; whoever takes the work finds it empty */
    gm_encoding *encoding;       /* the same with all that is known, or NULL: ids are enough */
    span_buffer spans;           /* then of the piece's tokens */
    int32_t type_id, word;
    bool skip_special;           /* special tokens are text */
    bool truncated;              /* the last text was cut */
    bool large;                  /* it had a text whose needs are not worth keeping */
} encode_work;

/* One that lies idle, or a new one; NULL when memory ran out. */
encode_work *work_take(gm_tokenizer *t);
void work_give_back(gm_tokenizer *t, encode_work *work);    /* its ids are dropped */
void work_free(encode_work *work);
/* Appends to work->ids. */
gm_status tokenizer_encode(gm_tokenizer *t, encode_work *work, const gm_text *text, const gm_text *pair,
                           const gm_encode_options *o);
/* A whole encoding; it is padded as if it were alone. */
gm_status tokenizer_encoding(gm_tokenizer *t, encode_work *work, const gm_text *text, const gm_text *pair,
                             const gm_encode_options *o, gm_encoding **out);
/* As padding a whole encoding to a length. */
gm_status tokenizer_pad(const gm_tokenizer *t, gm_encoding *e, size_t length, const gm_padding *how);

gm_tokenizer *tokenizer_new(void);
/* Adds a token that is matched in the text, after the vocabulary and the normalizer are there. Its id is the
 * vocabulary's if it is in it, else the next one free. flags.id is not read. */
gm_status tokenizer_add(gm_tokenizer *t, const char *text, size_t length, added_token flags, bool normalized);
/* Once everything is loaded. */
gm_status tokenizer_finish(gm_tokenizer *t);
#endif
