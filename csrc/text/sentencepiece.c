/* sentencepiece.c - see sentencepiece.h. A BPE model's scores become merges: every way to make a piece of two others is
 * one, the best score first, of equal ones the longer left and then the longer right part; so the engine of bpe.c gives
 * what SentencePiece's own search gives. */
#include "text/sentencepiece.h"
#include <math.h>
#include <stdlib.h>
#include "text/component.h"

#define MAX_SPLIT_BYTES 1024        /* of a piece that merges make: trying all its splits costs the square of that */

gm_status pieces_add(pieces *p, float score, int64_t type) {
    if (isnan(score))
        return gm_fail(GM_EBADFILE, "tokenizer: the score of piece %zu is not a number", p->n);
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return gm_fail(GM_EBADFILE, "tokenizer: piece %zu is of type %lld, expected 1 to 6", p->n, (long long)type);
    if (p->n == p->capacity) {
        size_t capacity = p->capacity;
        void *scores = p->scores, *types = p->types;
        GM_TRY(buffer_grow(&scores, p->n, &capacity, 1, sizeof(float)));
        p->scores = scores;
        capacity = p->capacity;
        GM_TRY(buffer_grow(&types, p->n, &capacity, 1, 1));
        p->types = types;
        p->capacity = capacity;
    }
    p->scores[p->n] = score;
    p->types[p->n++] = (uint8_t)type;
    return GM_OK;
}

void pieces_free(pieces *p) {
    memory_free(p->scores);
    memory_free(p->types);
    *p = (pieces){ 0 };
}

/* ---- merges ---- */
/* One way to make a token of two others. */
typedef struct { float score; uint32_t left_chars, right_chars; int32_t token, left, right; } scored_merge;
typedef struct { scored_merge *rows; size_t size, capacity; } scored_merges;

#define COMPARE(a, b)          \
    do {                       \
        if ((a) != (b))        \
            return (a) < (b) ? -1 : 1; \
    } while (0)

/* What score and lengths leave open is decided by the vocabulary's order. */
static int compare_merges(const void *a, const void *b) {
    const scored_merge *x = a, *y = b;
    COMPARE(y->score, x->score);
    COMPARE(y->left_chars, x->left_chars);
    COMPARE(y->right_chars, x->right_chars);
    COMPARE(x->token, y->token);
    COMPARE(x->left, y->left);
    COMPARE(x->right, y->right);
    return 0;
}

/* Control, unknown and byte pieces stand for no text: nothing is merged to them or from them. */
static bool is_text(const pieces *p, int32_t id) {
    return id >= 0 && p->types[id] != PIECE_CONTROL && p->types[id] != PIECE_UNKNOWN && p->types[id] != PIECE_BYTE;
}

static gm_status score_splits(const gm_tokenizer *t, const pieces *p, int32_t token, scored_merges *out) {
    size_t length;
    const char *text = vocab_text(&t->vocab, token, &length);
    uint32_t chars = 0, left_chars = 0;
    if (length > MAX_SPLIT_BYTES)
        return gm_fail(GM_EUNSUPPORTED, "tokenizer: piece %d has %zu bytes; at most %d are supported with scores",
                       token, length, MAX_SPLIT_BYTES);
    for (size_t at = 0; at < length; chars++)
        utf8_next((const uint8_t *)text, &at);
    for (size_t at = 0; at < length;) {
        utf8_next((const uint8_t *)text, &at);
        left_chars++;
        int32_t left = at == length ? -1 : vocab_find(&t->vocab, text, at);
        int32_t right = !is_text(p, left) ? -1 : vocab_find(&t->vocab, text + at, length - at);
        if (!is_text(p, right))
            continue;
        if (out->size == out->capacity) {
            void *rows = out->rows;
            GM_TRY(buffer_grow(&rows, out->size, &out->capacity, 1, sizeof(scored_merge)));
            out->rows = rows;
        }
        out->rows[out->size++] =
            (scored_merge){ p->scores[token], left_chars, chars - left_chars, token, left, right };
    }
    return GM_OK;
}

static gm_status add_merges(gm_tokenizer *t, const pieces *p, scored_merges *merges) {
    for (size_t i = 0; i < p->n; i++) {
        size_t length;
        const char *text = vocab_text(&t->vocab, (int32_t)i, &length);
        if (is_text(p, (int32_t)i) && vocab_find(&t->vocab, text, length) == (int32_t)i)
            GM_TRY(score_splits(t, p, (int32_t)i, merges));
    }
    if (merges->size > 0)
        qsort(merges->rows, merges->size, sizeof merges->rows[0], compare_merges);
    GM_TRY(bpe_reserve(&t->model.bpe, merges->size));
    for (size_t i = 0; i < merges->size; i++) {
        const scored_merge *row = &merges->rows[i];
        GM_TRY(bpe_add_merge(&t->model.bpe, (bpe_merge){ row->left, row->right, (uint32_t)i, row->token }));
    }
    return GM_OK;
}

/* ---- models ---- */
static gm_status build_bpe(gm_tokenizer *t, const pieces *p) {
    t->model.kind = MODEL_BPE;
    t->model.bpe.unknown = p->unknown < 0 ? BPE_NO_UNKNOWN : (int32_t)p->unknown;
    t->model.bpe.byte_fallback = p->byte_fallback;
    t->model.bpe.fuse_unknown = true;
    if (p->kind == PIECES_CHARACTERS)
        return GM_OK;
    scored_merges merges = { 0 };
    gm_status status = add_merges(t, p, &merges);
    memory_free(merges.rows);
    return status;
}

static gm_status build_unigram(gm_tokenizer *t, const pieces *p) {
    t->model.kind = MODEL_UNIGRAM;
    t->model.unigram.unknown = p->unknown < 0 ? -1 : (int32_t)p->unknown;
    t->model.unigram.byte_fallback = p->byte_fallback;
    for (size_t i = 0; i < p->n; i++)
        GM_TRY(unigram_add_score(&t->model.unigram, is_text(p, (int32_t)i) ? (double)p->scores[i] : NAN));
    return GM_OK;
}

/* ---- around them ---- */
static const char single_spaces[] =
    "{\"type\":\"Sequence\",\"normalizers\":["
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +\"},\"content\":\"\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?<![ \xE2\x96\x81])[ \xE2\x96\x81]+\\\\z\"},\"content\":\"\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]}";
static const char prepend[] = "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"}";
static const char escape[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}";
#define UNESCAPE                                                                                        \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"}," \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"
static const char unescape[] = UNESCAPE "]}";
static const char unescape_strip[] = UNESCAPE ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}";

static gm_status add_parts(gm_tokenizer *t, const pieces *p) {
    if (p->charsmap_length > 0) {
        normalize_step step = { .kind = NORMALIZE_LONGEST };
        GM_TRY(charsmap_new(p->charsmap, p->charsmap_length, "tokenizer", &step.charsmap));
        GM_TRY(normalizer_add(&t->normalizer, step));    /* owns the map from here on */
    }
    if (p->single_spaces)
        GM_TRY(component_literal(t, component_normalizer, single_spaces));
    if (p->add_prefix)
        GM_TRY(component_literal(t, component_normalizer, prepend));
    GM_TRY(component_literal(t, component_normalizer, escape));
    return component_literal(t, component_decoder, p->add_prefix ? unescape_strip : unescape);
}

gm_status pieces_build(gm_tokenizer *t, const pieces *p) {
    if (p->unknown >= 0 && (uint64_t)p->unknown >= p->n)
        return gm_fail(GM_EBADFILE, "tokenizer: the unknown piece is %lld, but there are %zu pieces",
                       (long long)p->unknown, p->n);
    GM_TRY(p->kind == PIECES_UNIGRAM ? build_unigram(t, p) : build_bpe(t, p));
    return add_parts(t, p);
}

gm_status pieces_add_tokens(gm_tokenizer *t, const pieces *p) {
    for (size_t i = 0; i < p->n; i++) {
        size_t length;
        const char *text = vocab_text(&t->vocab, (int32_t)i, &length);
        if (p->types[i] != PIECE_UNKNOWN && p->types[i] != PIECE_CONTROL && p->types[i] != PIECE_USER_DEFINED)
            continue;
        GM_TRY(tokenizer_add(t, text, length, (added_token){ .special = p->types[i] != PIECE_USER_DEFINED }, false));
    }
    return GM_OK;
}
