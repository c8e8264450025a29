/* wordpiece.c - see wordpiece.h. */
#include "text/model/wordpiece.h"

gm_status wordpiece_prepare(wordpiece *w, const vocab *v) {
    GM_TRY(trie_build(&w->trie, v));
    w->inside = trie_walk(&w->trie, w->prefix, w->prefix_length);
    return GM_OK;
}

void wordpiece_free(wordpiece *w) {
    trie_free(&w->trie);
    memory_free(w->prefix);
    *w = (wordpiece){0};
}

static gm_status put_unknown(const wordpiece *w, size_t length, id_buffer *out, span_buffer *spans) {
    if (w->unknown < 0)
        return gm_fail(GM_EVALUE, "tokenizer: a word has no tokens, and the vocabulary has no unknown token");
    return token_append(out, spans, w->unknown, 0, length);
}

static bool is_longer(const uint8_t *piece, size_t length, int64_t max_chars) {
    int64_t chars = 0;
    for (size_t at = 0; at < length; chars++)
        utf8_next(piece, &at);
    return chars > max_chars;
}

/* The longest token at `start`, looked up from `node`; -1 if there is none. */
static int32_t longest_at(const wordpiece *w, uint32_t node, const uint8_t *piece, size_t length, size_t start,
                          size_t *end) {
    int32_t id = -1;
    for (size_t at = start; at < length && node != TRIE_NONE;) {
        node = trie_step(&w->trie, node, piece[at++]);
        if (node == TRIE_NONE || w->trie.nodes[node].id < 0)
            continue;
        id = w->trie.nodes[node].id;
        *end = at;
    }
    return id;
}

gm_status wordpiece_encode(const wordpiece *w, const uint8_t *piece, size_t length, id_buffer *out,
                           span_buffer *spans) {
    if (is_longer(piece, length, w->max_chars))
        return put_unknown(w, length, out, spans);
    size_t n_before = out->size, spans_before = spans ? spans->size : 0;
    for (size_t start = 0, end = 0; start < length; start = end) {
        int32_t id = longest_at(w, start == 0 ? TRIE_ROOT : w->inside, piece, length, start, &end);
        if (id < 0) {
            out->size = n_before;
            if (spans)
                spans->size = spans_before;
            return put_unknown(w, length, out, spans);
        }
        GM_TRY(token_append(out, spans, id, start, end));
    }
    return GM_OK;
}
