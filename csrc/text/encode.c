/* encode.c - text to ids, and to encodings with offsets, through the parts of a tokenizer.
 * Added tokens are cut out of the raw text. The text between them is normalized and cut at the added tokens of
 * normalized text, and its pieces go through the model. Truncation, post-processor and padding follow. */
#include "text/tokenizer.h"
#include "text/unicode/alphabet.h"

/* ---- workspaces ---- */
#define LARGE_TEXT (1 << 20) /* bytes; scratch of a larger text is freed, all but the cache */

static void drop_scratch(encode_work *work) {
    normalize_work_free(&work->normalize);
    pretokens_free(&work->pretokens);
    model_work_free(&work->model);
    memory_free(work->spans.data);
    quick_work_drop(&work->quick);
    work->normalize = (normalize_work){0};
    work->pretokens = (pretoken_scan){0};
    work->model = (model_work){0};
    work->spans = (span_buffer){0};
    work->large = false;
}

void work_free(encode_work *work) {
    if (!work)
        return;
    drop_scratch(work);
    quick_work_free(&work->quick);
    memory_free(work->ids.data);
    memory_free(work);
}

encode_work *work_take(gm_tokenizer *t) {
    for (int i = 0; i < IDLE_WORKS; i++) {
        encode_work *work = atomic_exchange(&t->idle[i], NULL);
        if (work)
            return work;
    }
    encode_work *work = memory_zeroed(sizeof *work);
    if (work && piece_cache_new(&work->quick.cache) == GM_OK)
        return work;
    work_free(work);
    return NULL;
}

void work_give_back(gm_tokenizer *t, encode_work *work) {
    if (!work)
        return;
    memory_free(work->ids.data);
    work->ids = (id_buffer){0};
    if (work->large)
        drop_scratch(work);
    for (int i = 0; i < IDLE_WORKS; i++) {
        encode_work *none = NULL;
        if (atomic_compare_exchange_strong(&t->idle[i], &none, work))
            return;
    }
    work_free(work);
}

/* ---- encoding ---- */
/* Appends a token whose origin is `span`. */
static gm_status push_token(encode_work *work, int32_t id, text_span span, uint32_t text) {
    return encoding_push(work->encoding,
                         (gm_token_info){.id = id,
                                         .type_id = work->type_id,
                                         .word = work->word,
                                         .start = (int32_t)span.start,
                                         .end = (int32_t)span.end,
                                         .attention = true},
                         text);
}

/* The text of a token of the model, where it differs from the vocabulary's: Unigram gives an unknown token the text
 * itself, and an added token's renamed text may hide the model's own. */
static gm_status name_of(const gm_tokenizer *t, encode_work *work, const text_view *piece, int32_t id, text_span at,
                         uint32_t *out) {
    size_t n;
    const char *own;
    *out = OWN_TEXT;
    if (t->model.kind == MODEL_UNIGRAM && id == t->model.unigram.unknown && at.start < at.end)
        return encoding_string(&work->encoding->strings, piece->bytes + at.start, at.end - at.start, out);
    if (vocab_text(&t->renamed, id, &n) && (own = vocab_text(&t->vocab, id, &n)))
        return encoding_string(&work->encoding->strings, own, n, out);
    return GM_OK;
}

/* Bytes without a token were dropped. The reference counts without them, in bytes of the alphabet's characters: the
 * spans become those of the bytes at these offsets. */
static void count_in_alphabet(const gm_tokenizer *t, encode_work *work, const text_view *piece) {
    size_t raw = 0, before = 0, at = 0, n; /* byte `raw` of the piece is at `before` in the alphabet's text */
    for (size_t i = 0; i < work->ids.size; i++) {
        if (!vocab_text(&t->vocab, work->ids.data[i], &n) || n == 0)
            continue;
        size_t ends[2] = {at, at + n - 1};
        for (int k = 0; k < 2; k++) {
            for (size_t width; raw < piece->length; raw++, before += width) {
                width = alphabet_char(piece->bytes[raw]) < 0x80 ? 1 : 2;
                if (before + width > ends[k])
                    break;
            }
            ends[k] = raw;
        }
        work->spans.data[i] = (text_span){(uint32_t)ends[0], (uint32_t)ends[1] + 1};
        at += n;
    }
}

/* Encodes one piece, with the texts and offsets of its tokens. */
static gm_status encode_piece(const gm_tokenizer *t, encode_work *work, const text_view *piece) {
    work->ids.size = work->spans.size = 0;
    GM_TRY(model_encode(&t->model, &t->vocab, &work->model, piece->bytes, piece->length, &work->ids, &work->spans));
    size_t n = work->ids.size;
    if (t->model.kind == MODEL_BPE && t->model.byte_level && n > 0 && work->spans.data[n - 1].end < piece->length)
        count_in_alphabet(t, work, piece);
    for (size_t i = 0; i < n; i++) {
        text_span at = work->spans.data[i];
        uint32_t text = OWN_TEXT;
        int32_t id = work->ids.data[i];
        if (at.end > piece->length) /* the reference has no span for it either */
            at = (text_span){0, 0};
        GM_TRY(name_of(t, work, piece, id, at, &text));
        GM_TRY(push_token(work, id, text_origin(piece, at.start, at.end), text));
    }
    work->word++;
    return GM_OK;
}

/* Encodes a text of a byte-level vocabulary with offsets: the ids come from the fast path, and since their bytes are
 * those of the text, their lengths give the offsets. *done is false if a byte has no token. */
static gm_status encode_by_lengths(gm_tokenizer *t, encode_work *work, const text_view *text, bool at_start,
                                   bool *done) {
    const token_bytes *bytes;
    text_view piece;
    size_t total = 0, k = 0;
    GM_TRY(token_bytes_of(t, &bytes));
    work->ids.size = 0;
    GM_TRY(quick_encode(&t->quick, &work->quick, &work->model, text->bytes, text->length, &work->ids));
    for (size_t i = 0; i < work->ids.size; i++)
        total += token_length(bytes, work->ids.data[i]);
    *done = total == text->length;
    if (!*done)
        return GM_OK;
    GM_TRY(pretokens_open(&work->pretokens, &t->pretokenizer, text, at_start));
    for (gm_status status; (status = pretokens_next(&work->pretokens, &piece)) != GM_END; work->word++) {
        GM_TRY(status);
        for (size_t at = 0, end; at < piece.length && k < work->ids.size; at = end, k++) {
            end = at + token_length(bytes, work->ids.data[k]);
            GM_TRY(push_token(work, work->ids.data[k], text_origin(&piece, at, end), OWN_TEXT));
        }
    }
    return GM_OK;
}

static gm_status encode_segment(gm_tokenizer *t, encode_work *work, const text_view *text, bool at_start) {
    text_view piece;
    if (t->quick.kind == QUICK_SCANNER && !work->encoding)
        return quick_encode(&t->quick, &work->quick, &work->model, text->bytes, text->length, &work->ids);
    if (t->by_lengths && work->encoding) {
        bool done;
        GM_TRY(encode_by_lengths(t, work, text, at_start, &done));
        if (done)
            return GM_OK;
    }
    GM_TRY(pretokens_open(&work->pretokens, &t->pretokenizer, text, at_start));
    for (;;) {
        gm_status status = pretokens_next(&work->pretokens, &piece);
        if (status == GM_END)
            return GM_OK;
        GM_TRY(status);
        if (work->encoding)
            GM_TRY(encode_piece(t, work, &piece));
        else
            GM_TRY(model_encode(&t->model, &t->vocab, &work->model, piece.bytes, piece.length, &work->ids, NULL));
    }
}

/* Appends the added token of [start, end). Its text is the text's own, with the white space that it strips. */
static gm_status encode_added(const gm_tokenizer *t, encode_work *work, const text_view *text, const added_part *part) {
    if (!work->encoding)
        return ids_append(&work->ids, part->id);
    const uint8_t *matched = text->bytes + part->start;
    size_t length = part->end - part->start, n;
    const char *own = gm_tokenizer_token(t, part->id, &n);
    uint32_t name = OWN_TEXT;
    if (!own || n != length || memcmp(own, matched, n) != 0)
        GM_TRY(encoding_string(&work->encoding->strings, matched, length, &name));
    GM_TRY(push_token(work, part->id, text_origin(text, part->start, part->end), name));
    work->word++;
    return GM_OK;
}

/* Encodes the text between two added tokens of the raw text. */
static gm_status encode_raw(gm_tokenizer *t, encode_work *work, text_view text, bool at_start) {
    if (t->quick.kind == QUICK_WORDS && t->normalized_tokens.n_tokens == 0 && !work->encoding)
        return quick_encode(&t->quick, &work->quick, &work->model, text.bytes, text.length, &work->ids);
    GM_TRY(normalize(&t->normalizer, &work->normalize, &text));
    added_scan scan;
    added_part part;
    added_open(&scan, &t->normalized_tokens, text.bytes, text.length, work->skip_special);
    while (added_next(&scan, &part)) {
        if (part.id >= 0) {
            GM_TRY(encode_added(t, work, &text, &part));
        } else {
            text_view segment = text_slice(&text, part.start, part.end);
            GM_TRY(encode_segment(t, work, &segment, at_start && part.start == 0));
        }
    }
    return GM_OK;
}

/* Encodes text that is UTF-8. */
static gm_status encode_valid(gm_tokenizer *t, encode_work *work, const text_view *text) {
    added_scan scan;
    added_part part;
    added_open(&scan, &t->raw_tokens, text->bytes, text->length, work->skip_special);
    while (added_next(&scan, &part)) {
        if (part.id >= 0)
            GM_TRY(encode_added(t, work, text, &part));
        else
            GM_TRY(encode_raw(t, work, text_slice(text, part.start, part.end), part.start == 0 && text->origin == 0));
    }
    return GM_OK;
}

/* The token of one byte that is not part of a character; -1 if there is none. */
static int32_t byte_token(const gm_tokenizer *t, uint8_t byte) {
    static const char digits[] = "0123456789ABCDEF";
    uint8_t text[6] = {'<', '0', 'x', (uint8_t)digits[byte >> 4], (uint8_t)digits[byte & 15], '>'};
    size_t n = t->model.byte_level ? utf8_put(alphabet_char(byte), text) : sizeof text;
    return vocab_find(&t->vocab, text, n);
}

/* Encodes bytes that are not UTF-8. */
static gm_status encode_bytes(const gm_tokenizer *t, encode_work *work, const gm_text *text, size_t start, size_t end) {
    for (size_t i = start; i < end; i++) {
        int32_t id = byte_token(t, (uint8_t)text->data[i]);
        if (!text->raw || id < 0)
            return gm_fail(GM_EVALUE, "encode: the text is not UTF-8 at byte %zu%s", i,
                           text->raw ? ", and the vocabulary has no token for that byte" : "");
        if (!work->encoding)
            GM_TRY(ids_append(&work->ids, id));
        else
            GM_TRY(push_token(work, id, (text_span){(uint32_t)i, (uint32_t)i + 1}, OWN_TEXT));
    }
    work->word++;
    return GM_OK;
}

/* Valid UTF-8 is encoded as text, the rest byte by byte. */
static gm_status encode_text(gm_tokenizer *t, encode_work *work, const gm_text *text, int32_t type_id) {
    const uint8_t *bytes = (const uint8_t *)text->data;
    size_t n = text->length;
    if (n > INT32_MAX)
        return gm_fail(GM_EOVERFLOW, "encode: the text has %zu bytes, expected at most %d; encode it in parts", n,
                       INT32_MAX);
    work->type_id = type_id;
    work->word = 0;
    work->large = work->large || n > LARGE_TEXT;
    size_t before = work->encoding ? work->encoding->size : 0;
    for (size_t at = 0; at < n;) {
        size_t fault = text->valid ? n : at + utf8_check(bytes + at, n - at), end = fault;
        text_view view = {.bytes = bytes + at,
                          .length = fault - at,
                          .origin = (uint32_t)at,
                          .aligned = work->encoding != NULL || t->pretokenizer.by_origin};
        GM_TRY(encode_valid(t, work, &view));
        for (int step; end < n && (step = utf8_step(bytes + end, n - end)) <= 0;)
            end = step == 0 ? n : end + (size_t)-step;
        if (end > fault)
            GM_TRY(encode_bytes(t, work, text, fault, end));
        at = end;
    }
    if (work->encoding && !text->raw)
        encoding_to_scalars(work->encoding, before, bytes, n);
    return GM_OK;
}

/* Encodes the texts, truncates them and adds special tokens. The list gets the one encoding. */
static gm_status encode_whole(gm_tokenizer *t, encode_work *work, const gm_text *const *texts, int n,
                              const gm_encode_options *o, encoding_list *list, byte_buffer *strings) {
    for (int i = 0; i < n; i++) {
        GM_TRY(encodings_push(list, encoding_new()));
        work->encoding = list->data[i];
        work->encoding->strings = *strings;
        *strings = (byte_buffer){0};
        gm_status status = encode_text(t, work, texts[i], i);
        *strings = list->data[i]->strings;
        list->data[i]->strings = (byte_buffer){0};
        GM_TRY(status);
    }
    if (o->truncation) {
        gm_truncation limit = *o->truncation;
        size_t added = o->add_special ? post_added(&t->post_processor, n == 2) : 0;
        if (added > limit.max_length)
            return gm_fail(GM_EVALUE, "encode: truncation to %zu tokens is less than the %zu special tokens",
                           limit.max_length, added);
        limit.max_length -= added;
        GM_TRY(encodings_truncate(list->data[0], n == 2 ? list->data[1] : NULL, &limit));
    }
    return post_process(&t->post_processor, t, list, o->add_special, strings);
}

gm_status tokenizer_pad(const gm_tokenizer *t, gm_encoding *e, size_t length, const gm_padding *how) {
    uint32_t text = OWN_TEXT;
    size_t n;
    const char *own = gm_tokenizer_token(t, how->id, &n);
    if (how->token && (!own || n != how->token_length || memcmp(own, how->token, n) != 0))
        GM_TRY(encoding_string(&e->strings, how->token, how->token_length, &text));
    return encoding_pad(e, length, how, text);
}

gm_status tokenizer_encoding(gm_tokenizer *t, encode_work *work, const gm_text *text, const gm_text *pair,
                             const gm_encode_options *o, gm_encoding **out) {
    encoding_list list = {0};
    byte_buffer strings = {0};
    id_buffer ids = work->ids; /* results of earlier texts */
    work->ids = (id_buffer){0};
    work->skip_special = !o->parse_special;
    *out = NULL;
    gm_status status = encode_whole(t, work, (const gm_text *[]){text, pair}, pair ? 2 : 1, o, &list, &strings);
    memory_free(work->ids.data);
    work->ids = ids;
    work->encoding = NULL;
    if (status == GM_OK) {
        *out = list.data[0];
        list.data[0] = NULL;
        work->truncated = (*out)->overflowing.size > 0;
        (*out)->strings = strings;
        if (o->padding)
            status = tokenizer_pad(t, *out, padded_length(o->padding, (*out)->size), o->padding);
    } else {
        memory_free(strings.data);
    }
    encodings_free(&list);
    if (status != GM_OK) {
        gm_encoding_free(*out);
        *out = NULL;
    }
    return status;
}

gm_status tokenizer_encode(gm_tokenizer *t, encode_work *work, const gm_text *text, const gm_text *pair,
                           const gm_encode_options *o) {
    work->truncated = false;
    if (!pair && !o->truncation && !o->padding && t->simple) {
        work->skip_special = !o->parse_special;
        if (text->length > LARGE_TEXT && text->length <= INT32_MAX && work->ids.size == 0) {
            GM_TRY(ids_reserve(&work->ids, text->length / 2));
            memory_expect(work->ids.data, work->ids.capacity * sizeof(int32_t));
        }
        for (size_t i = 0; o->add_special && i < t->before.size; i++)
            GM_TRY(ids_append(&work->ids, t->before.data[i]));
        GM_TRY(encode_text(t, work, text, 0));
        for (size_t i = 0; o->add_special && i < t->after.size; i++)
            GM_TRY(ids_append(&work->ids, t->after.data[i]));
        return GM_OK;
    }
    gm_encoding *e;
    GM_TRY(tokenizer_encoding(t, work, text, pair, o, &e));
    gm_status status = GM_OK;
    for (size_t i = 0; i < e->size && status == GM_OK; i++)
        status = ids_append(&work->ids, e->tokens[i].info.id);
    gm_encoding_free(e);
    return status;
}

gm_status gm_tokenizer_encode(gm_tokenizer *t, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                              int32_t **ids, size_t *count, bool *truncated) {
    *ids = NULL;
    *count = 0;
    encode_work *work = work_take(t);
    if (!work)
        return GM_ENOMEM;
    gm_status status = tokenizer_encode(t, work, text, pair, o);
    if (status == GM_OK) {
        if (truncated)
            *truncated = work->truncated;
        *ids = work->ids.data;
        *count = work->ids.size;
        work->ids = (id_buffer){0};
    }
    work_give_back(t, work);
    return status;
}

gm_status gm_tokenizer_encoding(gm_tokenizer *t, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                                gm_encoding **out) {
    *out = NULL;
    encode_work *work = work_take(t);
    if (!work)
        return GM_ENOMEM;
    gm_status status = tokenizer_encoding(t, work, text, pair, o, out);
    work_give_back(t, work);
    return status;
}

const gm_truncation *gm_tokenizer_truncation(const gm_tokenizer *t) {
    return t->has_truncation ? &t->truncation : NULL;
}

const gm_padding *gm_tokenizer_padding(const gm_tokenizer *t) { return t->has_padding ? &t->padding : NULL; }
