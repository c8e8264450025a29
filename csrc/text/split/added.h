/* added.h - added tokens: matched in the text before anything else splits it, leftmost first, then the longest.
 * A set is built once and then only read. Tokens whose flag `normalized` is set go in a set of their own, which is
 * matched in normalised text. */
#ifndef GOMLX_TEXT_ADDED_H
#define GOMLX_TEXT_ADDED_H
#include "text/unicode/unicode.h"

typedef struct {
    int32_t id;
    bool single_word, lstrip, rstrip, special;
} added_token;

typedef struct { uint32_t child, sibling; int32_t token; uint8_t byte; } added_node;    /* 0: none; token -1: none */

typedef struct {
    added_token *tokens;
    size_t n_tokens, token_capacity;
    added_node *nodes;           /* a trie of bytes; node 0 is not used */
    size_t n_nodes, node_capacity;
    uint32_t root[256];          /* the first byte's node */
    uint8_t firsts[256];         /* the bytes that have one */
    size_t n_firsts;
    const struct piece_kernels *kernels;         /* once there is a token */
} added_set;

/* Of two tokens with one text the special one wins, else the first; an empty text is ignored. */
gm_status added_insert(added_set *set, const void *text, size_t length, added_token token);
void added_free(added_set *set);

/* Cuts a text at its added tokens. */
typedef struct {
    const added_set *set;
    const uint8_t *text;
    size_t size, at, done;       /* at: where the search goes on; done: the text before is given out */
    bool skip_special, pending;  /* pending: a token waits behind the text in front of it */
    added_token token;
    size_t token_end;
} added_scan;

typedef struct { size_t start, end; int32_t id; } added_part;    /* id -1: text between tokens */

/* skip_special: tokens marked special are ordinary text. */
void added_open(added_scan *scan, const added_set *set, const uint8_t *text, size_t size, bool skip_special);
bool added_next(added_scan *scan, added_part *part);
#endif
