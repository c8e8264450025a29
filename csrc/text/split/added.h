/* added.h - added tokens, which are matched before the text is split otherwise: the leftmost first, then the longest.
 * A set is built once and then only read. Tokens whose flag `normalized` is set have a set of their own, which is
 * matched in normalized text. */
#ifndef GOMLX_TEXT_ADDED_H
#define GOMLX_TEXT_ADDED_H
#include "text/unicode/unicode.h"

typedef struct {
    int32_t id;
    bool single_word, lstrip, rstrip, special;
} added_token;

typedef struct {
    uint32_t child, sibling;
    int32_t token;
    uint8_t byte;
} added_node; /* 0: none; token -1: none */

typedef struct {
    added_token *tokens;
    size_t n_tokens, token_capacity;
    added_node *nodes; /* a trie of bytes; node 0 is not used */
    size_t n_nodes, node_capacity;
    uint32_t root[256];  /* the nodes of first bytes */
    uint8_t firsts[256]; /* the first bytes that have a node */
    size_t n_firsts;
    const struct piece_kernels *kernels; /* set with the first token */
} added_set;

/* Of two tokens with the same text the special one is kept, else the first. An empty text is ignored. */
gm_status added_insert(added_set *set, const void *text, size_t length, added_token token);
void added_free(added_set *set);

/* Splits a text at its added tokens. */
typedef struct {
    const added_set *set;
    const uint8_t *text;
    size_t size, at, done;      /* at: where the search continues; done: the end of the last part */
    bool skip_special, pending; /* pending: the next part is the token after this text */
    added_token token;
    size_t token_end;
} added_scan;

typedef struct {
    size_t start, end;
    int32_t id;
} added_part; /* id -1: text between tokens */

/* skip_special: tokens marked special are ordinary text. */
void added_open(added_scan *scan, const added_set *set, const uint8_t *text, size_t size, bool skip_special);
bool added_next(added_scan *scan, added_part *part);
#endif
