/* tokenizer.h - what a loaded tokenizer is. The loaders (load_json.c, load_gguf.c) fill one; after tokenizer_finish it
 * never changes, so any number of threads may use it. */
#ifndef GOMLX_TEXT_TOKENIZER_H
#define GOMLX_TEXT_TOKENIZER_H
#include <stdatomic.h>
#include "text/added.h"
#include "text/decode.h"
#include "text/model.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/quick.h"
#include "text/vocab.h"

#define IDLE_WORKS 8

typedef struct encode_work encode_work;

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
    id_buffer before, after;     /* what add_special puts around the ids */
    decoder decoder;
    quick_way quick;             /* to ids alone, where the pre-tokenizer is one known pattern */
    _Atomic(encode_work *) idle[IDLE_WORKS];    /* with what their caches have learned */
};

gm_tokenizer *tokenizer_new(void);
/* Adds a token that is matched in the text, after the vocabulary and the normalizer are there. Its id is the
 * vocabulary's if it is in it, else the next one free. flags.id is not read. */
gm_status tokenizer_add(gm_tokenizer *t, const char *text, size_t length, added_token flags, bool normalized);
/* Once everything is loaded. */
gm_status tokenizer_finish(gm_tokenizer *t);
#endif
