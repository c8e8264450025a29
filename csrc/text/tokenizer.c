/* tokenizer.c - the tokenizer of gomlx.h: text to ids through the loaded parts, ids to text, and a stream of either.
 * Encoding: added tokens are cut out of the raw text; what lies between is normalized, cut at the added tokens that
 * live in normalized text, and its pieces go through the model. */
#include "text/tokenizer.h"

gm_tokenizer *tokenizer_new(void) {
    gm_tokenizer *t = memory_zeroed(sizeof *t);
    if (t != NULL) {
        atomic_init(&t->references, 1);
        t->model.bpe.unknown = BPE_NO_UNKNOWN;
    }
    return t;
}

gm_tokenizer *gm_tokenizer_retain(gm_tokenizer *t) {
    if (t != NULL)
        atomic_fetch_add_explicit(&t->references, 1, memory_order_relaxed);
    return t;
}

static void work_free(encode_work *work);

void gm_tokenizer_release(gm_tokenizer *t) {
    if (t == NULL || atomic_fetch_sub_explicit(&t->references, 1, memory_order_acq_rel) != 1)
        return;
    vocab_free(&t->vocab);
    vocab_free(&t->added);
    vocab_free(&t->renamed);
    memory_free(t->special);
    added_free(&t->raw_tokens);
    added_free(&t->normalized_tokens);
    normalizer_free(&t->normalizer);
    pretokenizer_free(&t->pretokenizer);
    model_free(&t->model);
    memory_free(t->before.data);
    memory_free(t->after.data);
    decoder_free(&t->decoder);
    for (int i = 0; i < IDLE_WORKS; i++)
        work_free(atomic_load(&t->idle[i]));
    memory_free(t);
}

void gm_buffer_free(void *buffer) { memory_free(buffer); }

/* ---- while loading ---- */
gm_status tokenizer_add(gm_tokenizer *t, const char *text, size_t length, added_token flags, bool normalized) {
    if (length == 0 || vocab_find(&t->added, text, length) >= 0)
        return GM_OK;
    int64_t id = vocab_find(&t->vocab, text, length);
    if (id < 0) {
        /* The reference counts on from the vocabulary's size, whatever number the file gives. */
        id = (int64_t)t->vocab.n_strings;
        if ((int64_t)t->added.n_ids > id)
            id = (int64_t)t->added.n_ids;
    }
    GM_TRY(vocab_add(&t->added, text, length, id));
    flags.id = (int32_t)id;
    if (!normalized)
        return added_insert(&t->raw_tokens, text, length, flags);
    normalize_work work = { 0 };
    text_view view = { .bytes = (const uint8_t *)text, .length = length };
    gm_status status = normalize(&t->normalizer, &work, &view);
    if (status == GM_OK)
        status = added_insert(&t->normalized_tokens, view.bytes, view.length, flags);
    if (status == GM_OK && (view.length != length || memcmp(view.bytes, text, length) != 0))
        status = vocab_add(&t->renamed, (const char *)view.bytes, view.length, id);
    normalize_work_free(&work);
    return status;
}

static void mark_special(gm_tokenizer *t, const added_set *set) {
    size_t length;
    for (size_t i = 0; i < set->n_tokens; i++)
        if (set->tokens[i].special && vocab_text(&t->renamed, set->tokens[i].id, &length) == NULL)
            t->special[set->tokens[i].id] = 1;    /* the reference does not know a renamed one again */
}

gm_status tokenizer_finish(gm_tokenizer *t) {
    t->n_ids = t->vocab.n_ids > t->added.n_ids ? t->vocab.n_ids : t->added.n_ids;
    t->special = memory_zeroed(t->n_ids + 1);
    if (t->special == NULL)
        return GM_ENOMEM;
    mark_special(t, &t->raw_tokens);
    mark_special(t, &t->normalized_tokens);
    t->model.byte_level = t->pretokenizer.byte_level;
    t->quick = (quick_way){ pretokenizer_scanner(&t->pretokenizer), piece_kernels_get(), &t->model, &t->vocab };
    return model_prepare(&t->model, &t->vocab);
}

/* ---- encoding ---- */
struct encode_work {
    normalize_work normalize;
    pretoken_scan pretokens;
    model_work model;
    id_buffer ids;
    quick_work quick;
};

static void work_free(encode_work *work) {
    if (work == NULL)
        return;
    normalize_work_free(&work->normalize);
    pretokens_free(&work->pretokens);
    model_work_free(&work->model);
    quick_work_free(&work->quick);
    memory_free(work->ids.data);
    memory_free(work);
}

/* One that lies idle, or a new one; NULL when memory ran out. */
static encode_work *work_take(gm_tokenizer *t) {
    for (int i = 0; i < IDLE_WORKS; i++) {
        encode_work *work = atomic_exchange(&t->idle[i], NULL);
        if (work != NULL)
            return work;
    }
    encode_work *work = memory_zeroed(sizeof *work);
    if (work != NULL && piece_cache_new(&work->quick.cache) == GM_OK)
        return work;
    work_free(work);
    return NULL;
}

static void work_give_back(gm_tokenizer *t, encode_work *work) {
    for (int i = 0; i < IDLE_WORKS; i++) {
        encode_work *none = NULL;
        if (atomic_compare_exchange_strong(&t->idle[i], &none, work))
            return;
    }
    work_free(work);
}

static gm_status encode_segment(const gm_tokenizer *t, encode_work *work, const text_view *text, bool at_start) {
    text_view piece;
    if (t->quick.scanner != SCANNER_NONE)
        return quick_encode(&t->quick, &work->quick, &work->model, text->bytes, text->length, &work->ids);
    GM_TRY(pretokens_open(&work->pretokens, &t->pretokenizer, text, at_start));
    for (;;) {
        gm_status status = pretokens_next(&work->pretokens, &piece);
        if (status == GM_END)
            return GM_OK;
        GM_TRY(status);
        GM_TRY(model_encode(&t->model, &t->vocab, &work->model, piece.bytes, piece.length, &work->ids, NULL));
    }
}

/* Text between two added tokens of the raw text. */
static gm_status encode_raw(const gm_tokenizer *t, encode_work *work, text_view text, bool at_start,
                            bool skip_special) {
    GM_TRY(normalize(&t->normalizer, &work->normalize, &text));
    added_scan scan;
    added_part part;
    added_open(&scan, &t->normalized_tokens, text.bytes, text.length, skip_special);
    while (added_next(&scan, &part)) {
        if (part.id >= 0) {
            GM_TRY(ids_append(&work->ids, part.id));
        } else {
            text_view segment = text_slice(&text, part.start, part.end);
            GM_TRY(encode_segment(t, work, &segment, at_start && part.start == 0));
        }
    }
    return GM_OK;
}

static gm_status encode_text(const gm_tokenizer *t, encode_work *work, const uint8_t *text, size_t length,
                             bool add_special, bool skip_special) {
    for (size_t i = 0; add_special && i < t->before.size; i++)
        GM_TRY(ids_append(&work->ids, t->before.data[i]));
    text_view view = { .bytes = text, .length = length };
    added_scan scan;
    added_part part;
    added_open(&scan, &t->raw_tokens, text, length, skip_special);
    while (added_next(&scan, &part)) {
        if (part.id >= 0)
            GM_TRY(ids_append(&work->ids, part.id));
        else
            GM_TRY(encode_raw(t, work, text_slice(&view, part.start, part.end), part.start == 0, skip_special));
    }
    for (size_t i = 0; add_special && i < t->after.size; i++)
        GM_TRY(ids_append(&work->ids, t->after.data[i]));
    return GM_OK;
}

gm_status gm_tokenizer_encode(gm_tokenizer *t, const char *text, size_t length, bool add_special, bool parse_special,
                              int32_t **ids, size_t *count) {
    *ids = NULL;
    *count = 0;
    if (length > INT32_MAX)
        return gm_fail(GM_EOVERFLOW, "encode: a text of %zu bytes; at most %d can be encoded at once", length,
                       INT32_MAX);
    size_t fault = utf8_check((const uint8_t *)text, length);
    if (fault < length)
        return gm_fail(GM_EVALUE, "encode: the text is not UTF-8 at byte %zu", fault);
    encode_work *work = work_take(t);
    if (work == NULL)
        return GM_ENOMEM;
    gm_status status = encode_text(t, work, (const uint8_t *)text, length, add_special, !parse_special);
    if (status == GM_OK) {
        *ids = work->ids.data;
        *count = work->ids.size;
        work->ids = (id_buffer){ 0 };
    }
    work->ids.size = 0;
    work_give_back(t, work);
    return status;
}

/* ---- decoding ---- */
/* The id's text, NULL when it has none or is to be skipped. */
static const char *text_of(const gm_tokenizer *t, int32_t id, bool skip_special, size_t *length) {
    return skip_special && gm_tokenizer_is_special(t, id) ? NULL : gm_tokenizer_token(t, id, length);
}

gm_status gm_tokenizer_decode(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **text,
                              size_t *length) {
    *text = NULL;
    *length = 0;
    byte_buffer out = { 0 };
    decode_state state = { 0 };
    decode_open(&state, &t->decoder, true);
    gm_status status = GM_OK;
    for (size_t i = 0; i < count && status == GM_OK; i++) {
        size_t n;
        const char *token = text_of(t, ids[i], skip_special, &n);
        if (token != NULL)
            status = decode_push(&state, token, n, &out);
    }
    if (status == GM_OK)
        status = decode_finish(&state, &out);
    decode_free(&state);
    if (status != GM_OK) {
        memory_free(out.data);
        return status;
    }
    *text = (char *)out.data;
    *length = out.size;
    return GM_OK;
}

struct gm_detokenizer {
    gm_tokenizer *tokenizer;
    bool skip_special;
    decode_state state;
    byte_buffer out;
};

gm_status gm_detokenizer_new(gm_tokenizer *t, bool skip_special, gm_detokenizer **out) {
    *out = memory_zeroed(sizeof **out);
    if (*out == NULL)
        return GM_ENOMEM;
    (*out)->tokenizer = gm_tokenizer_retain(t);
    (*out)->skip_special = skip_special;
    decode_open(&(*out)->state, &t->decoder, false);
    return GM_OK;
}

static gm_status give(gm_detokenizer *d, gm_status status, const char **text, size_t *length) {
    GM_TRY(bytes_reserve(&d->out, 1));    /* never NULL, also when empty */
    *text = (const char *)d->out.data;
    *length = d->out.size;
    return status;
}

gm_status gm_detokenizer_push(gm_detokenizer *d, int32_t id, const char **text, size_t *length) {
    size_t n;
    const char *token = text_of(d->tokenizer, id, d->skip_special, &n);
    d->out.size = 0;
    return give(d, token == NULL ? GM_OK : decode_push(&d->state, token, n, &d->out), text, length);
}

gm_status gm_detokenizer_finish(gm_detokenizer *d, const char **text, size_t *length) {
    d->out.size = 0;
    return give(d, decode_finish(&d->state, &d->out), text, length);
}

void gm_detokenizer_free(gm_detokenizer *d) {
    if (d == NULL)
        return;
    gm_tokenizer_release(d->tokenizer);
    decode_free(&d->state);
    memory_free(d->out.data);
    memory_free(d);
}

/* ---- looking up ---- */
int64_t gm_tokenizer_vocab_size(const gm_tokenizer *t) { return (int64_t)t->n_ids; }

int64_t gm_tokenizer_base_size(const gm_tokenizer *t) {
    int64_t n = (int64_t)t->vocab.n_ids;
    size_t length;
    while (n > 0 && (vocab_text(&t->vocab, (int32_t)n - 1, &length) == NULL ||
                     vocab_text(&t->added, (int32_t)n - 1, &length) != NULL))
        n--;
    return n;
}

const char *gm_tokenizer_token(const gm_tokenizer *t, int32_t id, size_t *length) {
    const char *text = vocab_text(&t->renamed, id, length);
    if (text == NULL)
        text = vocab_text(&t->added, id, length);
    return text != NULL ? text : vocab_text(&t->vocab, id, length);
}

int32_t gm_tokenizer_id(const gm_tokenizer *t, const char *token, size_t length) {
    int32_t id = vocab_find(&t->added, token, length);
    return id >= 0 ? id : vocab_find(&t->vocab, token, length);
}

bool gm_tokenizer_is_special(const gm_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n_ids && t->special[id] != 0;
}
