/* quick.c - see quick.h. */
#include "text/quick.h"

static const char marker[] = "\xE2\x96\x81";    /* U+2581 */
#define MARKER_LENGTH 3

void quick_work_free(quick_work *work) {
    piece_cache_free(&work->cache);
    memory_free(work->alphabet.data);
    memory_free(work->spelled.data);
    memory_free(work->first.data);
}

/* ---- whether there is one ---- */
/* The normalizer is Replace " " by the marker, with Prepend marker before it or without. */
static bool marks_spaces(const normalizer *n, bool *prefix) {
    for (size_t i = 0; i < n->n_steps; i++) {
        const normalize_step *step = &n->steps[i];
        bool last = i + 1 == n->n_steps;
        if (step->to_length != MARKER_LENGTH || memcmp(step->to, marker, MARKER_LENGTH) != 0)
            return false;
        if (last ? step->kind != NORMALIZE_REPLACE || step->from_length != 1 || step->from[0] != ' '
                 : step->kind != NORMALIZE_PREPEND || i > 0)
            return false;
    }
    *prefix = n->n_steps == 2;
    return n->n_steps > 0;
}

/* Its steps look for spaces, of which the normalizer leaves none. */
static bool cuts_nothing(const pretokenizer *p) {
    for (int i = 0; i < p->n_steps; i++) {
        const pretokenize_step *step = &p->steps[i];
        if (step->space != NULL || step->scheme != PREFIX_NEVER || step->match != MATCH_TEXT ||
            memchr(step->text, ' ', step->text_length) == NULL || step->behavior == SPLIT_REMOVED || step->invert)
            return false;
    }
    return !p->byte_level;
}

/* The bytes in front of a space over which a merge reaches; false when they are too many. */
static bool find_no_cuts(word_rule *rule, const bpe *b, const vocab *v) {
    uint8_t *begins = memory_zeroed(v->n_ids + 1);
    bool few = begins != NULL;
    rule->behind[0] = ' ';
    rule->behind[1] = (uint8_t)marker[MARKER_LENGTH - 1];
    rule->n = 2;
    for (size_t id = 0; id < v->n_ids && few; id++) {
        size_t n;
        const char *text = vocab_text(v, (int32_t)id, &n);
        begins[id] = text != NULL && n >= MARKER_LENGTH && memcmp(text, marker, MARKER_LENGTH) == 0;
    }
    for (size_t i = 0; i < b->n_slots && few; i++) {
        size_t right = b->slots[i] >> 20 & ((1 << 22) - 1), n;
        if (b->slots[i] == BPE_FREE || !begins[right])
            continue;
        const char *text = vocab_text(v, (int32_t)(b->slots[i] >> 42), &n);
        uint8_t last = (uint8_t)text[n - 1];
        if (memchr(rule->behind, last, rule->n) != NULL)
            continue;
        few = rule->n < NO_CUTS;
        if (few)
            rule->behind[rule->n++] = last;
    }
    memory_free(begins);
    return few;
}

void quick_prepare(quick_way *way, const normalizer *n, const pretokenizer *p, const model *m, const vocab *v) {
    const bpe *b = &m->bpe;
    *way = (quick_way){ .kernels = piece_kernels_get(), .model = m, .vocab = v };
    way->scanner = pretokenizer_scanner(p);
    if (way->scanner != SCANNER_NONE) {
        way->kind = QUICK_SCANNER;
        return;
    }
    bool bytes = m->kind == MODEL_BPE && b->byte_fallback && !b->byte_level && !b->ignore_merges &&
                 b->prefix_length + b->suffix_length == 0;
    for (int i = 0; i < 256 && bytes; i++)
        bytes = b->bytes[i] >= 0;    /* so nothing is unknown, and unknown neighbours cannot fuse over a cut */
    way->marker = vocab_find(v, marker, MARKER_LENGTH);
    if (bytes && way->marker >= 0 && marks_spaces(n, &way->prefix) && cuts_nothing(p) &&
        find_no_cuts(&way->words, b, v))
        way->kind = QUICK_WORDS;
}

/* ---- pieces that are not known yet ---- */
/* A word's symbols; false when they are too many. */
static bool open_word(const quick_way *way, merge_lane *lane, const uint8_t *piece, size_t length) {
    const bpe *b = &way->model->bpe;
    size_t n = 0;
    for (size_t at = 0; at < length;) {
        size_t start = at;
        int32_t id;
        if (n + 4 > BPE_SHORT)
            return false;
        if (piece[at] < 0x80) {
            id = piece[at] == ' ' ? way->marker : b->symbols[piece[at]];
            at++;
        } else {
            utf8_next(piece, &at);
            id = vocab_find(way->vocab, piece + start, at - start);
        }
        if (id >= 0)
            lane->ids[n++] = id;
        else
            for (; start < at; start++)
                lane->ids[n++] = b->bytes[piece[start]];
    }
    lane->n = (uint8_t)n;
    return true;
}

/* The pieces that are whole tokens, in a model that asks for those first: whole[i], else -1. */
static gm_status find_whole(const quick_way *way, quick_work *work, const piece_run *run, const uint16_t *pieces,
                            size_t n, int32_t *whole) {
    vocab_token texts[MERGE_LANES];
    byte_buffer *alphabet = &work->alphabet;
    alphabet->size = 0;
    GM_TRY(bytes_reserve(alphabet, 2 * (PIECE_MEDIUM + 1) * MERGE_LANES));
    for (size_t i = 0; i < n; i++) {
        size_t start = pieces[i] == 0 ? run->start : run->ends[pieces[i] - 1], first = alphabet->size;
        for (size_t at = start; at < run->ends[pieces[i]]; at++)
            alphabet->size += utf8_put(alphabet_char(run->text[at]), alphabet->data + alphabet->size);
        texts[i] = (vocab_token){ (uint32_t)first, (uint32_t)(alphabet->size - first) };
    }
    vocab_find_many(way->vocab, alphabet->data, texts, n, whole);
    return GM_OK;
}

/* Learns the pieces of a run that are not known yet, from *from on: their merges go side by side. */
static gm_status learn(const quick_way *way, quick_work *work, const piece_run *run, size_t *from) {
    const bpe *b = &way->model->bpe;
    uint16_t missing[MERGE_LANES], pieces[MERGE_LANES];
    int32_t whole[MERGE_LANES];
    size_t n = 0, n_missing = way->kernels->find_missing(&work->cache, run, from, missing, MERGE_LANES);
    memset(whole, 0xFF, sizeof whole);
    if (b->ignore_merges)
        GM_TRY(find_whole(way, work, run, missing, n_missing, whole));
    for (size_t i = 0; i < n_missing; i++) {
        size_t start = missing[i] == 0 ? run->start : run->ends[missing[i] - 1];
        const uint8_t *piece = run->text + start;
        size_t length = run->ends[missing[i]] - start;
        if (whole[i] >= 0)
            GM_TRY(piece_cache_keep(&work->cache, piece, length, 0, &whole[i], 1));
        else if (way->kind == QUICK_WORDS ? open_word(way, &work->lanes[n], piece, length)
                                          : bpe_open_lane(b, &work->lanes[n], piece, length))
            pieces[n++] = missing[i];
    }
    way->kernels->merge(b, work->lanes, n, way->kind == QUICK_SCANNER);
    for (size_t i = 0; i < n; i++) {
        size_t start = pieces[i] == 0 ? run->start : run->ends[pieces[i] - 1];
        GM_TRY(piece_cache_keep(&work->cache, run->text + start, run->ends[pieces[i]] - start, 0, work->lanes[i].ids,
                                work->lanes[i].n));
    }
    return GM_OK;
}

/* One piece in the general way. */
static gm_status encode_alone(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *piece,
                              size_t length, id_buffer *ids) {
    size_t before = ids->size, n = length;
    const uint8_t *text = piece;
    if (way->kind == QUICK_WORDS) {
        byte_buffer *spelled = &work->spelled;
        spelled->size = 0;
        GM_TRY(bytes_reserve(spelled, MARKER_LENGTH * length));
        for (size_t i = 0; i < length; i++) {
            if (piece[i] == ' ') {
                memcpy(spelled->data + spelled->size, marker, MARKER_LENGTH);
                spelled->size += MARKER_LENGTH;
            } else {
                spelled->data[spelled->size++] = piece[i];
            }
        }
        text = spelled->data;
        n = spelled->size;
    }
    GM_TRY(model_encode(way->model, way->vocab, scratch, text, n, ids, NULL));
    return piece_cache_keep(&work->cache, piece, length, 0, ids->data + before, ids->size - before);
}

/* ---- encoding ---- */
static gm_status encode_run(const quick_way *way, quick_work *work, model_work *scratch, id_buffer *ids) {
    const piece_run *run = &work->run;
    bool together = way->model->kind == MODEL_BPE &&
                    (way->kind == QUICK_WORDS || way->model->bpe.byte_level || !way->model->bpe.ignore_merges);
    size_t learned = 0;    /* pieces before it were tried */
    for (size_t i = 0; i < run->n; i++) {
        GM_TRY(ids_reserve(ids, MEDIUM_IDS * (run->n - i + 1)));
        i = way->kernels->find(&work->cache, run, i, ids);
        if (i == run->n)
            break;
        size_t start = i == 0 ? run->start : run->ends[i - 1], n = run->ends[i] - start;
        const uint8_t *piece = run->text + start;
        bool found;
        GM_TRY(piece_cache_give(&work->cache, piece, n, 0, ids, &found));
        if (!found && n <= PIECE_MEDIUM && learned <= i && together) {
            learned = i;
            GM_TRY(learn(way, work, run, &learned));
            GM_TRY(piece_cache_give(&work->cache, piece, n, 0, ids, &found));
        }
        if (!found)
            GM_TRY(encode_alone(way, work, scratch, piece, n, ids));
    }
    return GM_OK;
}

gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids) {
    piece_run *run = &work->run;
    size_t at = 0;
    if (way->kind == QUICK_WORDS && way->prefix && length > 0) {
        /* The marker in front is a space in front, for the first word. */
        run->text = text;
        run->length = length;
        at = way->kernels->split_words(&way->words, run, 0);
        size_t first = run->ends[0];
        work->first.size = 0;
        GM_TRY(bytes_append(&work->first, " ", 1));
        GM_TRY(bytes_append(&work->first, text, first));
        run->text = work->first.data;
        run->length = work->first.size;
        run->start = 0;
        run->ends[0] = (uint32_t)work->first.size;
        run->n = 1;
        GM_TRY(encode_run(way, work, scratch, ids));
        at = first;
    }
    run->text = text;
    run->length = length;
    while (at < length) {
        at = way->kind == QUICK_WORDS ? way->kernels->split_words(&way->words, run, at)
                                      : way->kernels->split(way->scanner, run, at);
        GM_TRY(encode_run(way, work, scratch, ids));
    }
    return GM_OK;
}
