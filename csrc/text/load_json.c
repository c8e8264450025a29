/* load_json.c - a tokenizer from the text of a tokenizer.json.
 * The model is read where it stands (load_model.c); the places of the small components are noted, and they are read
 * afterwards. A setting that is not implemented is an error that names it. */
#include "text/component.h"

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

/* ---- the file ---- */
static gm_status read_file(gm_tokenizer *t, json_reader *r) {
    enum { NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, ADDED_TOKENS, TRUNCATION, PADDING, N_PARTS };
    static const char *const keys[] = { "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens",
                                        "truncation", "padding" };
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
            GM_TRY(component_model(t, r));
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
    GM_TRY(component_truncation(t, &parts[TRUNCATION]));
    GM_TRY(component_padding(t, &parts[PADDING]));
    GM_TRY(component_decoder(t, &parts[DECODER]));
    GM_TRY(read_added(t, &parts[ADDED_TOKENS]));
    return tokenizer_finish(t);
}

gm_status gm_tokenizer_from_json(const char *json, size_t length, const char *name, gm_tokenizer **out) {
    *out = NULL;
    gm_tokenizer *t = tokenizer_new();
    if (t == NULL)
        return GM_ENOMEM;
    json_reader r;
    json_open(&r, json, length, name);
    gm_status status = read_file(t, &r);
    if (status != GM_OK) {
        gm_tokenizer_release(t);
        return error_in_file(name, status);
    }
    *out = t;
    return GM_OK;
}
