/* unigram.c - see unigram.h. */
#include "text/model/unigram.h"
#include <math.h>

#define UNKNOWN_PENALTY 10.0 /* how much less an unknown character scores than the worst token */
#define NOT_REACHED UINT32_MAX

gm_status unigram_add_score(unigram *u, double score) {
    GM_TRY(grow_array(&u->scores, u->n_scores, &u->score_capacity, 1, sizeof *u->scores));
    u->scores[u->n_scores++] = score;
    return GM_OK;
}

gm_status unigram_prepare(unigram *u, const vocab *v) {
    double worst = INFINITY;
    for (size_t i = 0; i < u->n_scores; i++)
        if (u->scores[i] < worst)
            worst = u->scores[i];
    u->unknown_score = worst - UNKNOWN_PENALTY;
    vocab_find_bytes(v, u->bytes);
    GM_TRY(trie_build(&u->trie, v));
    for (uint32_t i = 0; i < u->trie.n_nodes; i++)
        if (u->trie.nodes[i].id >= 0 && isnan(u->scores[u->trie.nodes[i].id]))
            u->trie.nodes[i].id = -1;
    return GM_OK;
}

void unigram_free(unigram *u) {
    trie_free(&u->trie);
    memory_free(u->scores);
    *u = (unigram){0};
}

void unigram_work_free(unigram_work *work) {
    memory_free(work->cells);
    memory_free(work->path.data);
}

/* Takes a token if no other one ends in this cell or its score is better. */
static bool offer(unigram_cell *cell, double score, size_t start, int32_t id) {
    if (cell->start != NOT_REACHED && !(score > cell->score))
        return false;
    *cell = (unigram_cell){score, (uint32_t)start, id};
    return true;
}

static gm_status find_best(const unigram *u, unigram_cell *cells, const uint8_t *piece, size_t length) {
    cells[0].score = 0;
    for (size_t i = 1; i <= length; i++)
        cells[i].start = NOT_REACHED;
    for (size_t start = 0, next; start < length; start = next) {
        double before = cells[start].score;
        bool has_single = false;
        next = start;
        utf8_next(piece, &next);
        uint32_t node = TRIE_ROOT;
        for (size_t end = start; end < length;) {
            node = trie_step(&u->trie, node, piece[end++]);
            if (node == TRIE_NONE)
                break;
            int32_t id = u->trie.nodes[node].id;
            if (id < 0)
                continue;
            offer(&cells[end], u->scores[id] + before, start, id);
            has_single |= end == next;
        }
        if (!has_single && offer(&cells[next], u->unknown_score + before, start, u->unknown) && u->unknown < 0)
            return gm_fail(GM_EVALUE, "tokenizer: a character has no token, and the model has no 'unk_id'");
    }
    return GM_OK;
}

/* Appends one part of the best path. Adjacent unknown characters are one part, whose text may still be a token. */
static gm_status put_part(const unigram *u, const vocab *v, const uint8_t *piece, text_span part, id_buffer *out,
                          span_buffer *spans) {
    int32_t id = vocab_find(v, piece + part.start, part.end - part.start);
    if (id >= 0 && isnan(u->scores[id]))
        id = -1;
    bool has_bytes = id < 0 && u->byte_fallback;
    for (size_t i = part.start; has_bytes && i < part.end; i++)
        has_bytes = u->bytes[piece[i]] >= 0;
    if (!has_bytes)
        return token_append(out, spans, id >= 0 ? id : u->unknown, part.start, part.end);
    for (size_t i = part.start; i < part.end; i++)
        GM_TRY(token_append(out, spans, u->bytes[piece[i]], part.start, part.end));
    return GM_OK;
}

gm_status unigram_encode(const unigram *u, const vocab *v, unigram_work *work, const uint8_t *piece, size_t length,
                         id_buffer *out, span_buffer *spans) {
    GM_TRY(grow_array(&work->cells, 0, &work->capacity, length + 1, sizeof *work->cells));
    unigram_cell *cells = work->cells;
    GM_TRY(find_best(u, cells, piece, length));
    span_buffer *path = &work->path;
    bool fuses = false;
    path->size = 0;
    for (uint32_t end = (uint32_t)length; end > 0;) {
        uint32_t start = cells[end].start;
        bool is_unknown = u->unknown >= 0 && cells[end].id == u->unknown;
        if (is_unknown && fuses)
            path->data[path->size - 1].start = start;
        else
            GM_TRY(spans_append(path, (text_span){start, end}));
        fuses = is_unknown;
        end = start;
    }
    for (size_t i = path->size; i > 0; i--)
        GM_TRY(put_part(u, v, piece, path->data[i - 1], out, spans));
    return GM_OK;
}
