/* postprocess.h - the post-processor: steps that add special tokens to one text or two and trim offsets. */
#ifndef GOMLX_TEXT_POSTPROCESS_H
#define GOMLX_TEXT_POSTPROCESS_H
#include "text/output/encoding.h"

typedef struct {
    int32_t id;
    char *text;
    size_t length;
} named_token;
/* A sequence of the input (0 or 1), or with -1 these tokens. */
typedef struct {
    int sequence;
    int32_t type_id;
    named_token *tokens;
    size_t n_tokens;
} template_piece;
typedef struct {
    template_piece *pieces;
    size_t n_pieces, capacity;
} template;

typedef enum { POST_TEMPLATE, POST_BERT, POST_ROBERTA, POST_BYTE_LEVEL } post_kind;
typedef struct {
    post_kind kind;
    template single, pair;           /* TEMPLATE */
    named_token cls, sep;            /* BERT, ROBERTA */
    bool trim_offsets, prefix_space; /* ROBERTA, BYTE_LEVEL */
} post_step;

#define POST_MAX_STEPS 16
typedef struct {
    post_step steps[POST_MAX_STEPS];
    int n_steps;
} post_processor;

void post_free(post_processor *p);
/* Adds a zeroed piece to a template. */
gm_status template_add(template *t, template_piece **out);
/* Adds a template with these tokens before and after each text. Copies them. */
gm_status post_surround(post_processor *p, const int32_t *before, size_t n_before, const int32_t *after,
                        size_t n_after);
/* The number of tokens that are added to one text or to two. */
size_t post_added(const post_processor *p, bool pair);
/* Finds the ids that the steps put before and after one text; *simple is false if they change its ids otherwise. */
gm_status post_simple(const post_processor *p, id_buffer *before, id_buffer *after, bool *simple);
/* Makes one encoding of the list's one or two, in place; strings gets texts that the vocabulary does not have. */
gm_status post_process(const post_processor *p, const gm_tokenizer *t, encoding_list *list, bool add_special,
                       byte_buffer *strings);
#endif
