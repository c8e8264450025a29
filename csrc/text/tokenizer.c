/* tokenizer.c - the tokenizer of gomlx.h: creation, vocabulary, and ids to text. Text to ids is in encode.c. */
#include "text/tokenizer.h"

gm_tokenizer *tokenizer_new(void) {
    gm_tokenizer *t = memory_zeroed(sizeof *t);
    if (t) {
        atomic_init(&t->references, 1);
        t->model.bpe.unknown = BPE_NO_UNKNOWN;
    }
    return t;
}

gm_tokenizer *gm_tokenizer_retain(gm_tokenizer *t) {
    if (t)
        atomic_fetch_add_explicit(&t->references, 1, memory_order_relaxed);
    return t;
}

void gm_tokenizer_release(gm_tokenizer *t) {
    if (!t || atomic_fetch_sub_explicit(&t->references, 1, memory_order_acq_rel) != 1)
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
    post_free(&t->post_processor);
    memory_free(t->pad_token);
    for (int i = 0; i < IDLE_WORKS; i++)
        work_free(atomic_load(&t->idle[i]));
    memory_free(t->before.data);
    memory_free(t->after.data);
    decoder_free(&t->decoder);
    token_bytes_free(atomic_load(&t->bytes));
    memory_free(t);
}

void gm_buffer_free(void *buffer) { memory_free(buffer); }

/* ---- while loading ---- */
gm_status tokenizer_add(gm_tokenizer *t, const char *text, size_t length, added_token flags, bool normalized) {
    if (length == 0 || vocab_find(&t->added, text, length) >= 0)
        return GM_OK;
    int64_t id = vocab_find(&t->vocab, text, length);
    if (id < 0) {
        /* The reference continues from the vocabulary's size, whatever id the file gives. */
        id = (int64_t)t->vocab.n_strings;
        if ((int64_t)t->added.n_ids > id)
            id = (int64_t)t->added.n_ids;
    }
    GM_TRY(vocab_add(&t->added, text, length, id));
    flags.id = (int32_t)id;
    if (!normalized)
        return added_insert(&t->raw_tokens, text, length, flags);
    normalize_work work = {0};
    text_view view = {.bytes = (const uint8_t *)text, .length = length};
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
        if (set->tokens[i].special && !vocab_text(&t->renamed, set->tokens[i].id, &length))
            t->special[set->tokens[i].id] = 1; /* the reference does not find renamed ones again */
}

gm_status tokenizer_finish(gm_tokenizer *t) {
    t->n_ids = t->vocab.n_ids > t->added.n_ids ? t->vocab.n_ids : t->added.n_ids;
    t->special = memory_zeroed(t->n_ids + 1);
    if (!t->special)
        return GM_ENOMEM;
    mark_special(t, &t->raw_tokens);
    mark_special(t, &t->normalized_tokens);
    t->model.byte_level = t->pretokenizer.byte_level;
    pretokenizer_finish(&t->pretokenizer, t->normalizer.n_steps > 0);
    if (t->post_processor.n_steps == 0)
        GM_TRY(post_surround(&t->post_processor, t->before.data, t->before.size, t->after.data, t->after.size));
    t->before.size = t->after.size = 0;
    GM_TRY(post_simple(&t->post_processor, &t->before, &t->after, &t->simple));
    GM_TRY(model_prepare(&t->model, &t->vocab));
    quick_prepare(&t->quick, &t->normalizer, &t->pretokenizer, &t->model, &t->vocab);
    t->by_lengths = t->quick.kind == QUICK_SCANNER && t->model.kind == MODEL_BPE && t->model.byte_level &&
                    t->model.bpe.unknown == BPE_NO_UNKNOWN && t->renamed.n_strings == 0;
    return GM_OK;
}

/* ---- decoding ---- */
/* The id's text; NULL if it has none or is to be skipped. */
static const char *text_of(const gm_tokenizer *t, int32_t id, bool skip_special, size_t *length) {
    return skip_special && gm_tokenizer_is_special(t, id) ? NULL : gm_tokenizer_token(t, id, length);
}

/* Replaces each part of the text that is not UTF-8 by U+FFFD. */
static gm_status make_valid(byte_buffer *text) {
    byte_buffer out = {0};
    size_t n = text->size, done = utf8_check(text->data, n);
    if (done == n)
        return GM_OK;
    gm_status status = bytes_append(&out, text->data, done);
    for (size_t at = done; at < n && status == GM_OK;) {
        int step = utf8_step(text->data + at, n - at);
        status = step > 0 ? bytes_append(&out, text->data + at, (size_t)step) : bytes_append(&out, "\xEF\xBF\xBD", 3);
        at += step > 0 ? (size_t)step : step < 0 ? (size_t)-step : n - at;
    }
    memory_free(text->data);
    *text = out;
    return status;
}

/* Decodes through the chain of decoders. */
static gm_status decode_steps(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, byte_buffer *out) {
    decode_state state = {0};
    decode_open(&state, &t->decoder, true);
    gm_status status = GM_OK;
    for (size_t i = 0; i < count && status == GM_OK; i++) {
        size_t n;
        const char *token = text_of(t, ids[i], skip_special, &n);
        if (token)
            status = decode_push(&state, token, n, out);
    }
    if (status == GM_OK)
        status = decode_finish(&state, out);
    decode_free(&state);
    return status;
}

static gm_status decode_bytes(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, byte_buffer *out) {
    const token_bytes *bytes;
    GM_TRY(token_bytes_of(t, &bytes));
    return token_bytes_join(bytes, t, ids, count, skip_special, out);
}

static gm_status return_text(gm_status status, byte_buffer *out, char **text, size_t *length) {
    if (status == GM_OK) {
        *text = (char *)out->data;
        *length = out->size;
    } else {
        memory_free(out->data);
    }
    return status;
}

gm_status gm_tokenizer_decode(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **text,
                              size_t *length) {
    byte_buffer out = {0};
    *text = NULL;
    *length = 0;
    if (t->decoder.n_steps != 1 || t->decoder.steps[0].kind != DECODE_BYTE_LEVEL)
        return return_text(decode_steps(t, ids, count, skip_special, &out), &out, text, length);
    gm_status status = decode_bytes(t, ids, count, skip_special, &out);
    return return_text(status == GM_OK ? make_valid(&out) : status, &out, text, length);
}

gm_status gm_tokenizer_decode_bytes(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **bytes,
                                    size_t *length) {
    byte_buffer out = {0};
    *bytes = NULL;
    *length = 0;
    if (!t->model.byte_level)
        return gm_fail(GM_EUNSUPPORTED, "decode: this vocabulary is not byte-level, so its tokens are not bytes; "
                                        "decode to text instead");
    return return_text(decode_bytes(t, ids, count, skip_special, &out), &out, bytes, length);
}

/* Appends the bytes of an id of a byte-level vocabulary. */
static gm_status append_bytes(gm_tokenizer *t, int32_t id, byte_buffer *out) {
    size_t length;
    const char *name = gm_tokenizer_token(t, id, &length);
    const bool is_special = gm_tokenizer_is_special(t, id);
    return is_special ? bytes_append(out, name, length) : name ? decode_bytes(t, &id, 1, false, out) : GM_OK;
}

/* Appends what an id adds to the text that another one begins; work has room for texts. */
static gm_status append_added(gm_tokenizer *t, int32_t id, int32_t first, byte_buffer work[2], byte_buffer *out) {
    size_t length;
    const char *name = gm_tokenizer_token(t, id, &length);
    if (!name)
        return GM_OK;
    if (gm_tokenizer_is_special(t, id))
        return bytes_append(out, name, length);
    byte_buffer *held = &work[0], *whole = &work[1];
    held->size = whole->size = 0;
    GM_TRY(decode_steps(t, &first, 1, false, held));
    GM_TRY(decode_steps(t, (int32_t[]){first, id}, 2, false, whole));
    if (whole->size < held->size || (held->size > 0 && memcmp(whole->data, held->data, held->size) != 0))
        return bytes_append(out, name, length);
    const uint8_t *added = whole->data + held->size;
    const size_t n = whole->size - held->size;
    const int byte = decode_byte(name, length);
    if (byte >= 0 && (n != length || memcmp(added, name, n) != 0))
        return bytes_append(out, (uint8_t[]){(uint8_t)byte}, 1); /* the text has U+FFFD for a part of a character */
    return n > 0 ? bytes_append(out, added, n) : GM_OK;
}

gm_status gm_tokenizer_token_bytes(gm_tokenizer *t, const int32_t *ids, size_t count, const int32_t *first,
                                   size_t n_first, size_t *ends, char **bytes) {
    byte_buffer out = {0}, work[2] = {{0}, {0}};
    *bytes = NULL;
    gm_status status = n_first > 0 || t->model.byte_level
                           ? GM_OK
                           : gm_fail(GM_EUNSUPPORTED, "token_bytes: no token of this vocabulary has a text of its own");
    for (size_t i = 0; i < count && status == GM_OK; i++) {
        const int32_t before = n_first > 0 ? first[n_first > 1 && first[0] == ids[i]] : 0;
        status = t->model.byte_level ? append_bytes(t, ids[i], &out) : append_added(t, ids[i], before, work, &out);
        ends[i] = out.size;
    }
    memory_free(work[0].data);
    memory_free(work[1].data);
    size_t length;
    return return_text(status, &out, bytes, &length);
}

struct gm_detokenizer {
    gm_tokenizer *tokenizer;
    bool skip_special;
    decode_state state;
    byte_buffer out;
};

gm_status gm_detokenizer_new(gm_tokenizer *t, bool skip_special, bool strict, gm_detokenizer **out) {
    *out = memory_zeroed(sizeof **out);
    if (!*out)
        return GM_ENOMEM;
    (*out)->tokenizer = gm_tokenizer_retain(t);
    (*out)->skip_special = skip_special;
    decode_open(&(*out)->state, &t->decoder, strict);
    return GM_OK;
}

static gm_status return_part(gm_detokenizer *d, gm_status status, const char **text, size_t *length) {
    GM_TRY(bytes_reserve(&d->out, 1)); /* never NULL, also when empty */
    *text = (const char *)d->out.data;
    *length = d->out.size;
    return status;
}

gm_status gm_detokenizer_push(gm_detokenizer *d, int32_t id, const char **text, size_t *length) {
    size_t n;
    const char *token = text_of(d->tokenizer, id, d->skip_special, &n);
    d->out.size = 0;
    return return_part(d, token ? decode_push(&d->state, token, n, &d->out) : GM_OK, text, length);
}

gm_status gm_detokenizer_finish(gm_detokenizer *d, const char **text, size_t *length) {
    d->out.size = 0;
    return return_part(d, decode_finish(&d->state, &d->out), text, length);
}

void gm_detokenizer_free(gm_detokenizer *d) {
    if (!d)
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
    while (n > 0 && (!vocab_text(&t->vocab, (int32_t)n - 1, &length) || vocab_text(&t->added, (int32_t)n - 1, &length)))
        n--;
    return n;
}

const char *gm_tokenizer_token(const gm_tokenizer *t, int32_t id, size_t *length) {
    const char *text = vocab_text(&t->renamed, id, length);
    if (!text)
        text = vocab_text(&t->added, id, length);
    return text ? text : vocab_text(&t->vocab, id, length);
}

int32_t gm_tokenizer_id(const gm_tokenizer *t, const char *token, size_t length) {
    int32_t id = vocab_find(&t->added, token, length);
    return id >= 0 ? id : vocab_find(&t->vocab, token, length);
}

bool gm_tokenizer_is_special(const gm_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n_ids && t->special[id] != 0;
}
