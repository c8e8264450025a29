/* sentencepiece.c - see sentencepiece.h. A BPE model's scores become merges: one for every way to make a piece of two
 * others, ordered by the best score, then the longer left and the longer right part. So bpe.c gives the ids of
 * SentencePiece's own search. */
#include "text/load/sentencepiece.h"
#include <math.h>
#include "text/load/component.h"

#define MAX_SPLIT_BYTES 1024 /* of a merged piece: trying all its splits is quadratic in its length */

gm_status pieces_add(pieces *p, float score, int64_t type) {
    if (isnan(score))
        return gm_fail(GM_EBADFILE, "tokenizer: the score of piece %zu is not a number", p->n);
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return gm_fail(GM_EBADFILE, "tokenizer: piece %zu is of type %lld, expected 1 to 6", p->n, (long long)type);
    size_t capacity = p->capacity; /* of both arrays, which grow alike */
    GM_TRY(grow_array(&p->scores, p->n, &capacity, 1, sizeof *p->scores));
    GM_TRY(grow_array(&p->types, p->n, &p->capacity, 1, sizeof *p->types));
    p->scores[p->n] = score;
    p->types[p->n++] = (uint8_t)type;
    return GM_OK;
}

void pieces_free(pieces *p) {
    memory_free(p->scores);
    memory_free(p->types);
    *p = (pieces){0};
}

/* ---- merges ---- */
/* One way to make a token of two others. Keys order them: the best score, then the longer left and the longer right
 * part. Equal keys stay in the vocabulary's order. */
typedef struct {
    uint64_t key;
    int32_t token, left, right;
} scored_merge;
typedef struct {
    scored_merge *rows;
    size_t size, capacity;
} scored_merges;

static uint64_t key_of(float score, size_t left_chars, size_t right_chars) {
    uint32_t bits;
    score += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &score, sizeof bits);
    bits ^= bits >> 31 != 0 ? 0 : 0x7FFFFFFF; /* a larger score has a smaller key */
    return (uint64_t)bits << 32 | (uint64_t)(0xFFFF - left_chars) << 16 | (0xFFFF - right_chars);
}

/* Sorts by the keys, stably: a counting sort for each byte, from the lowest. */
static gm_status sort_merges(scored_merges *merges) {
    scored_merge *from = merges->rows, *to = memory_array(merges->size + 1, sizeof *to);
    if (!to)
        return GM_ENOMEM;
    for (int shift = 0; shift < 64; shift += 8) {
        size_t starts[256] = {0}, sum = 0;
        for (size_t i = 0; i < merges->size; i++)
            starts[from[i].key >> shift & 0xFF]++;
        if (merges->size > 0 && starts[from[0].key >> shift & 0xFF] == merges->size)
            continue;
        for (int i = 0; i < 256; i++) {
            size_t n = starts[i];
            starts[i] = sum;
            sum += n;
        }
        for (size_t i = 0; i < merges->size; i++)
            to[starts[from[i].key >> shift & 0xFF]++] = from[i];
        scored_merge *swap = from;
        from = to;
        to = swap;
    }
    memory_free(to);
    merges->rows = from;
    return GM_OK;
}

/* Control, unknown and byte pieces have no text: they take part in no merge. */
static bool is_text(const pieces *p, int32_t id) {
    return id >= 0 && p->types[id] != PIECE_CONTROL && p->types[id] != PIECE_UNKNOWN && p->types[id] != PIECE_BYTE;
}

/* A batch of splits to look up: texts[2 i] is the left part, texts[2 i + 1] the right one. */
typedef struct {
    vocab_string texts[VOCAB_BATCH];
    uint64_t keys[VOCAB_BATCH / 2];
    int32_t tokens[VOCAB_BATCH / 2];
    size_t n;
} split_batch;

static gm_status look_up(const gm_tokenizer *t, const pieces *p, split_batch *batch, scored_merges *out) {
    int32_t ids[VOCAB_BATCH];
    vocab_find_strings(&t->vocab, batch->texts, 2 * batch->n, ids);
    GM_TRY(grow_array(&out->rows, out->size, &out->capacity, batch->n, sizeof *out->rows));
    for (size_t i = 0; i < batch->n; i++)
        if (is_text(p, ids[2 * i]) && is_text(p, ids[2 * i + 1]))
            out->rows[out->size++] = (scored_merge){batch->keys[i], batch->tokens[i], ids[2 * i], ids[2 * i + 1]};
    batch->n = 0;
    return GM_OK;
}

static gm_status score_splits(const gm_tokenizer *t, const pieces *p, int32_t token, split_batch *batch,
                              scored_merges *out) {
    size_t length, chars = 0, left_chars = 0;
    const uint8_t *text = (const uint8_t *)vocab_text(&t->vocab, token, &length);
    if (length > MAX_SPLIT_BYTES)
        return gm_fail(GM_EUNSUPPORTED, "tokenizer: piece %d has %zu bytes, expected at most %d in a BPE model", token,
                       length, MAX_SPLIT_BYTES);
    for (size_t at = 0; at < length; chars++)
        utf8_next(text, &at);
    for (size_t at = 0;;) {
        utf8_next(text, &at);
        left_chars++;
        if (at >= length)
            return GM_OK;
        size_t i = batch->n++;
        batch->texts[2 * i] = (vocab_string){(const char *)text, at};
        batch->texts[2 * i + 1] = (vocab_string){(const char *)text + at, length - at};
        batch->keys[i] = key_of(p->scores[token], left_chars, chars - left_chars);
        batch->tokens[i] = token;
        if (batch->n == VOCAB_BATCH / 2)
            GM_TRY(look_up(t, p, batch, out));
    }
}

/* Gives the sorted merges to the bpe. */
static gm_status give_merges(gm_tokenizer *t, const scored_merges *merges) {
    id_buffer results = {0};
    uint64_t *pairs = memory_array(merges->size + 1, sizeof *pairs);
    gm_status status = pairs ? ids_reserve(&results, merges->size) : GM_ENOMEM;
    for (size_t i = 0; i < merges->size && status == GM_OK; i++) {
        pairs[i] = BPE_PAIR(merges->rows[i].left, merges->rows[i].right);
        results.data[results.size++] = merges->rows[i].token;
    }
    if (status == GM_OK)
        status = bpe_set_merges(&t->model.bpe, pairs, &results);
    memory_free(pairs);
    memory_free(results.data);
    return status;
}

static gm_status add_merges(gm_tokenizer *t, const pieces *p, scored_merges *merges) {
    split_batch batch = {.n = 0};
    bool unique = t->vocab.n_strings == p->n; /* otherwise a string's last id counts */
    for (size_t i = 0; i < p->n; i++) {
        size_t length;
        const char *text = vocab_text(&t->vocab, (int32_t)i, &length);
        if (is_text(p, (int32_t)i) && length > 0 && (unique || vocab_find(&t->vocab, text, length) == (int32_t)i))
            GM_TRY(score_splits(t, p, (int32_t)i, &batch, merges));
    }
    GM_TRY(look_up(t, p, &batch, merges));
    GM_TRY(sort_merges(merges));
    return give_merges(t, merges);
}

/* ---- models ---- */
static gm_status build_bpe(gm_tokenizer *t, const pieces *p) {
    t->model.kind = MODEL_BPE;
    t->model.bpe.unknown = p->unknown < 0 ? BPE_NO_UNKNOWN : (int32_t)p->unknown;
    t->model.bpe.byte_fallback = p->byte_fallback;
    t->model.bpe.fuse_unknown = true;
    if (p->kind == PIECES_CHARACTERS)
        return GM_OK;
    scored_merges merges = {0};
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

/* ---- normalizer and decoder ---- */
static const char single_spaces[] =
    "{\"type\":\"Sequence\",\"normalizers\":["
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +\"},\"content\":\"\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?<![ \xE2\x96\x81])[ \xE2\x96\x81]+\\\\z\"},\"content\":\"\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]}";
static const char prepend[] = "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"}";
static const char escape[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}";
#define UNESCAPE                                                                                                       \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},"            \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"
static const char unescape[] = UNESCAPE "]}";
static const char unescape_strip[] = UNESCAPE ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}";

static gm_status add_parts(gm_tokenizer *t, const pieces *p) {
    if (p->charsmap_length > 0) {
        normalize_step step = {.kind = NORMALIZE_LONGEST};
        GM_TRY(charsmap_new(p->charsmap, p->charsmap_length, "tokenizer", &step.charsmap));
        GM_TRY(normalizer_add(&t->normalizer, step)); /* owns the map now */
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
        return gm_fail(GM_EBADFILE, "tokenizer: the unknown piece is %lld, expected less than %zu",
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
        GM_TRY(tokenizer_add(t, text, length, (added_token){.special = p->types[i] != PIECE_USER_DEFINED}, false));
    }
    return GM_OK;
}
