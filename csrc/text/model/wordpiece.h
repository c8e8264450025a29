/* wordpiece.h - the WordPiece model: from the left the longest token that matches; tokens after the first have a prefix
 * ("##"). A word that cannot be split so is unknown as a whole. */
#ifndef GOMLX_TEXT_WORDPIECE_H
#define GOMLX_TEXT_WORDPIECE_H
#include "text/text_view.h"
#include "text/model/trie.h"

typedef struct {
    trie trie;
    char *prefix; /* of tokens inside a word; NULL: none */
    size_t prefix_length;
    uint32_t inside;   /* the trie's node after the prefix */
    int64_t max_chars; /* of a word; a longer one is unknown */
    int32_t unknown;   /* -1: an unknown word is an error */
} wordpiece;

gm_status wordpiece_prepare(wordpiece *w, const vocab *v);
gm_status wordpiece_encode(const wordpiece *w, const uint8_t *piece, size_t length, id_buffer *out, span_buffer *spans);
void wordpiece_free(wordpiece *w);
#endif
