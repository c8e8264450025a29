/* load_json.c - a tokenizer from the text of a tokenizer.json.
 * The model, whose vocabulary and merges are megabytes, is read in one pass; the places of the small components are
 * noted, and they are read afterwards. A setting that is not implemented is an error that names it; `truncation`,
 * `padding` and `dropout` belong to the caller, not to the file, and are not read. */
#include "text/component.h"

/* The current string or key, not copied where it has no escapes; valid until the next call. */
static gm_status text_of(json_reader *r, byte_buffer *scratch, const char **text, size_t *length) {
    if (!r->escaped) {
        *text = r->token;
        *length = r->token_length;
        return GM_OK;
    }
    scratch->size = 0;
    *length = json_string_length(r);
    GM_TRY(bytes_reserve(scratch, *length + 1));
    json_string_copy(r, (char *)scratch->data);
    *text = (const char *)scratch->data;
    return GM_OK;
}

/* ---- added tokens ---- */
/* Which id a token gets is the vocabulary's business (tokenizer_add), as in the reference; one that no vocabulary has
 * tells that the file is damaged. */
static gm_status read_added(gm_tokenizer *t, json_reader *array) {
    if (array->type == JSON_NULL)
        return GM_OK;
    if (array->type != JSON_ARRAY)
        return json_fail(array, "'added_tokens' is not an array");
    json_reader r;
    gm_status status;
    while ((status = member_next_object(array, &r)) == GM_OK) {
        added_token flags = { 0 };
        bool normalized;
        char *text;
        size_t length;
        int64_t id;
        GM_TRY(member_count(&r, "id", &id));
        GM_TRY(member_bool(&r, "single_word", false, &flags.single_word));
        GM_TRY(member_bool(&r, "lstrip", false, &flags.lstrip));
        GM_TRY(member_bool(&r, "rstrip", false, &flags.rstrip));
        GM_TRY(member_bool(&r, "special", false, &flags.special));
        GM_TRY(member_bool(&r, "normalized", !flags.special, &normalized));
        GM_TRY(member_text(&r, "content", &text, &length));
        if (text == NULL)
            return json_fail(&r, "an added token has no content");
        gm_status added = id < VOCAB_MAX ? tokenizer_add(t, text, length, flags, normalized)
            : json_fail(&r, "added token '%.*s' has id %lld, expected 0 to %d", length < 64 ? (int)length : 64, text,
                        (long long)id, VOCAB_MAX - 1);
        memory_free(text);
        GM_TRY(added);
    }
    return status == GM_END ? GM_OK : status;
}

/* ---- the model ---- */
static gm_status read_vocab(gm_tokenizer *t, json_reader *r, byte_buffer *scratch) {
    if (r->type != JSON_OBJECT)
        return json_fail(r, "the vocabulary is not an object of tokens and ids");
    json_token token;
    while ((token = json_next(r)) == JSON_KEY) {
        const char *text;
        size_t length;
        int64_t id;
        json_reader key = *r;
        GM_TRY(json_expect(r, JSON_NUMBER));
        GM_TRY(json_int(r, &id));
        GM_TRY(text_of(&key, scratch, &text, &length));
        GM_TRY(vocab_add(&t->vocab, text, length, id));
    }
    return token == JSON_ERROR ? GM_EBADFILE : GM_OK;
}

static gm_status merge_part(const gm_tokenizer *t, json_reader *r, const char *text, size_t length, int32_t *id) {
    *id = vocab_find(&t->vocab, text, length);
    if (*id >= 0)
        return GM_OK;
    return json_fail(r, "a merge has '%.*s', which is not in the vocabulary", length < 64 ? (int)length : 64, text);
}

static gm_status read_merges(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, byte_buffer *joined) {
    if (r->type == JSON_NULL)
        return GM_OK;
    if (r->type != JSON_ARRAY)
        return json_fail(r, "'merges' is not an array");
    for (uint32_t rank = 0;; rank++) {
        json_token token = json_next(r);
        const char *text;
        size_t length;
        int32_t parts[2];
        if (token == JSON_ARRAY_END)
            return GM_OK;
        if (token == JSON_STRING) {
            GM_TRY(text_of(r, scratch, &text, &length));
            if (length >= 8 && memcmp(text, "#version", 8) == 0) {
                rank--;
                continue;
            }
            const char *space = memchr(text, ' ', length);
            size_t left = space == NULL ? length : (size_t)(space - text);
            if (space == NULL || memchr(space + 1, ' ', length - left - 1) != NULL)
                return json_fail(r, "a merge is not two tokens with one space between them");
            GM_TRY(merge_part(t, r, text, left, &parts[0]));
            GM_TRY(merge_part(t, r, space + 1, length - left - 1, &parts[1]));
        } else if (token == JSON_ARRAY) {
            for (int i = 0; i < 2; i++) {
                GM_TRY(json_expect(r, JSON_STRING));
                GM_TRY(text_of(r, scratch, &text, &length));
                GM_TRY(merge_part(t, r, text, length, &parts[i]));
            }
            GM_TRY(json_expect(r, JSON_ARRAY_END));
        } else {
            return token == JSON_ERROR ? GM_EBADFILE : json_fail(r, "a merge is neither a string nor a pair");
        }
        GM_TRY(bpe_add_merge(&t->model.bpe, &t->vocab, parts[0], parts[1], rank, joined));
    }
}

/* A setting that is only supported when it is absent, null or "". */
static gm_status expect_empty(json_reader *r, const char *key) {
    if (r->type == JSON_NULL || (r->type == JSON_STRING && r->token_length == 0))
        return GM_OK;
    return gm_fail(GM_EUNSUPPORTED, "%s: model setting '%s' is not supported", r->name, key);
}

static gm_status read_flag(json_reader *r, const char *key, bool *out) {
    *out = r->type == JSON_TRUE;
    if (r->type == JSON_TRUE || r->type == JSON_FALSE || r->type == JSON_NULL)
        return GM_OK;
    return json_fail(r, "'%s' is not true or false", key);
}

static gm_status read_model(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, byte_buffer *joined) {
    if (r->type != JSON_OBJECT)
        return json_fail(r, "'model' is not an object");
    json_reader unknown = { .type = JSON_NULL }, merges = { .type = JSON_NULL };
    json_token token;
    bool has_vocab = false;
    while ((token = json_next(r)) == JSON_KEY) {
        json_reader key = *r;
        if (json_next(r) == JSON_ERROR)
            return GM_EBADFILE;
        if (json_is(&key, "type")) {
            if (r->type != JSON_STRING || !json_is(r, "BPE"))
                return component_unsupported(r, "model");
        } else if (json_is(&key, "vocab")) {
            GM_TRY(read_vocab(t, r, scratch));
            has_vocab = true;
        } else if (json_is(&key, "merges") && has_vocab) {
            GM_TRY(read_merges(t, r, scratch, joined));
        } else if (json_is(&key, "merges")) {
            merges = *r;
        } else if (json_is(&key, "unk_token")) {
            unknown = *r;
        } else if (json_is(&key, "continuing_subword_prefix")) {
            GM_TRY(expect_empty(r, "continuing_subword_prefix"));
        } else if (json_is(&key, "end_of_word_suffix")) {
            GM_TRY(expect_empty(r, "end_of_word_suffix"));
        } else if (json_is(&key, "byte_fallback")) {
            GM_TRY(read_flag(r, "byte_fallback", &t->model.bpe.byte_fallback));
        } else if (json_is(&key, "fuse_unk")) {
            GM_TRY(read_flag(r, "fuse_unk", &t->model.bpe.fuse_unknown));
        } else if (json_is(&key, "ignore_merges")) {
            GM_TRY(read_flag(r, "ignore_merges", &t->model.bpe.ignore_merges));
        }
        if (r->type == JSON_OBJECT || r->type == JSON_ARRAY)
            GM_TRY(json_skip(r));
    }
    if (token == JSON_ERROR)
        return GM_EBADFILE;
    if (!has_vocab)
        return json_fail(r, "the model has no vocabulary");
    GM_TRY(read_merges(t, &merges, scratch, joined));
    if (unknown.type == JSON_STRING) {
        const char *text;
        size_t length;
        GM_TRY(text_of(&unknown, scratch, &text, &length));
        int32_t id = vocab_find(&t->vocab, text, length);
        t->model.bpe.unknown = id >= 0 ? id : BPE_MISSING_UNKNOWN;
    }
    return GM_OK;
}

/* ---- the file ---- */
static gm_status read_file(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, byte_buffer *joined) {
    enum { NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, ADDED_TOKENS, N_PARTS };
    static const char *const keys[] = { "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens" };
    json_reader parts[N_PARTS];
    for (int i = 0; i < N_PARTS; i++)
        parts[i] = (json_reader){ .name = r->name, .type = JSON_NULL };
    GM_TRY(json_expect(r, JSON_OBJECT));
    json_token token;
    bool has_model = false;
    while ((token = json_next(r)) == JSON_KEY) {
        json_reader key = *r;
        if (json_next(r) == JSON_ERROR)
            return GM_EBADFILE;
        if (json_is(&key, "model")) {
            if (has_model)
                return json_fail(r, "there are two models");
            GM_TRY(read_model(t, r, scratch, joined));
            has_model = true;
            continue;
        }
        for (int i = 0; i < N_PARTS; i++)
            if (json_is(&key, keys[i]))
                parts[i] = *r;
        if (r->type == JSON_OBJECT || r->type == JSON_ARRAY)
            GM_TRY(json_skip(r));
    }
    if (token == JSON_ERROR || json_next(r) == JSON_ERROR)
        return GM_EBADFILE;
    if (!has_model)
        return gm_fail(GM_EBADFILE, "%s: it has no 'model'", r->name);
    GM_TRY(component_normalizer(t, &parts[NORMALIZER]));
    GM_TRY(component_pretokenizer(t, &parts[PRE_TOKENIZER]));
    GM_TRY(component_post_processor(t, &parts[POST_PROCESSOR]));
    GM_TRY(component_decoder(t, &parts[DECODER]));
    GM_TRY(read_added(t, &parts[ADDED_TOKENS]));
    return tokenizer_finish(t);
}

gm_status gm_tokenizer_from_json(const char *json, size_t length, const char *name, gm_tokenizer **out) {
    *out = NULL;
    gm_tokenizer *t = tokenizer_new();
    if (t == NULL)
        return GM_ENOMEM;
    byte_buffer scratch = { 0 }, joined = { 0 };
    json_reader r;
    json_open(&r, json, length, name);
    gm_status status = read_file(t, &r, &scratch, &joined);
    memory_free(scratch.data);
    memory_free(joined.data);
    if (status != GM_OK) {
        gm_tokenizer_release(t);
        return error_in_file(name, status);
    }
    *out = t;
    return GM_OK;
}
