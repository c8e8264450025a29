/* json_file.c - a tokenizer from the text of a tokenizer.json.
 * The model is read at once (json_model.c). The positions of the small components are kept, and they are read
 * afterwards. A setting that is not implemented is an error that names it. */
#include "text/load/component.h"

/* ---- added tokens ---- */
enum { ADDED_ID, SINGLE_WORD, LSTRIP, RSTRIP, SPECIAL, NORMALIZED, CONTENT, N_ADDED };
static const char *const added_keys[N_ADDED] = {"id",      "single_word", "lstrip", "rstrip",
                                                "special", "normalized",  "content"};

/* The vocabulary gives a token its id (tokenizer_add), as in the reference; the file's own id is only checked, because
 * one out of range means that the file is damaged. */
static gm_status read_added(gm_tokenizer *t, json_reader *array) {
    if (array->type == JSON_NULL)
        return GM_OK;
    if (array->type != JSON_ARRAY)
        return json_mistyped(array, "added_tokens", "an array");
    json_reader r, values[N_ADDED];
    gm_status status;
    while ((status = member_next_all(array, &r, added_keys, N_ADDED, values)) == GM_OK) {
        added_token flags = {0};
        bool normalized;
        char *text;
        size_t length;
        int64_t id;
        GM_TRY(value_count(&values[ADDED_ID], added_keys[ADDED_ID], &id));
        GM_TRY(value_bool(&values[SINGLE_WORD], added_keys[SINGLE_WORD], false, &flags.single_word));
        GM_TRY(value_bool(&values[LSTRIP], added_keys[LSTRIP], false, &flags.lstrip));
        GM_TRY(value_bool(&values[RSTRIP], added_keys[RSTRIP], false, &flags.rstrip));
        GM_TRY(value_bool(&values[SPECIAL], added_keys[SPECIAL], false, &flags.special));
        GM_TRY(value_bool(&values[NORMALIZED], added_keys[NORMALIZED], !flags.special, &normalized));
        GM_TRY(value_text(&values[CONTENT], added_keys[CONTENT], &text, &length));
        if (!text)
            return json_fail(&r, "an added token has no 'content'");
        gm_status added = id < VOCAB_MAX
                              ? tokenizer_add(t, text, length, flags, normalized)
                              : json_fail(&r, "added token '%.*s' has id %lld, expected 0 to %d",
                                          length < 64 ? (int)length : 64, text, (long long)id, VOCAB_MAX - 1);
        memory_free(text);
        GM_TRY(added);
    }
    return status == GM_END ? GM_OK : status;
}

/* ---- the file ---- */
enum { NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, ADDED_TOKENS, TRUNCATION, PADDING, N_PARTS };
static const char *const part_keys[] = {"normalizer",   "pre_tokenizer", "post_processor", "decoder",
                                        "added_tokens", "truncation",    "padding"};

/* For a file without even a null normalizer, pre_tokenizer or decoder: a vocabulary that has " the" in GPT-2's alphabet
 * is byte-level. */
static gm_status guess_parts(gm_tokenizer *t) {
    static const char the[] = "\xC4\xA0the", byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
    if (t->model.kind != MODEL_BPE || vocab_find(&t->vocab, the, sizeof the - 1) < 0)
        return GM_OK;
    GM_TRY(component_literal(t, component_pretokenizer, byte_level));
    return component_literal(t, component_decoder, byte_level);
}

/* has_model: the file's model is read too; otherwise it must not have one. */
static gm_status read_file(gm_tokenizer *t, json_reader *r, bool has_model) {
    json_reader parts[N_PARTS];
    bool declares = !has_model, model_read = false;
    for (int i = 0; i < N_PARTS; i++)
        parts[i] = (json_reader){.name = r->name, .type = JSON_NULL};
    GM_TRY(json_expect(r, JSON_OBJECT));
    json_token token;
    while ((token = json_next(r)) == JSON_KEY) {
        json_reader key = *r;
        if (json_next(r) == JSON_ERROR)
            return GM_EBADFILE;
        if (json_is(&key, "model")) {
            if (model_read || !has_model)
                return json_fail(r, "%s", has_model ? "there are two models" : "there is a model, expected none");
            GM_TRY(component_model(t, r));
            model_read = true;
            continue;
        }
        for (int i = 0; i < N_PARTS; i++) {
            if (!json_is(&key, part_keys[i]))
                continue;
            parts[i] = *r;
            declares |= i == NORMALIZER || i == PRE_TOKENIZER || i == DECODER;
        }
        if (r->type == JSON_OBJECT || r->type == JSON_ARRAY)
            GM_TRY(json_skip(r));
    }
    if (token == JSON_ERROR || json_next(r) == JSON_ERROR)
        return GM_EBADFILE;
    if (has_model && !model_read)
        return gm_fail(GM_EBADFILE, "%s: the file has no 'model'", r->name);
    if (!declares)
        GM_TRY(guess_parts(t));
    GM_TRY(component_normalizer(t, &parts[NORMALIZER]));
    GM_TRY(component_pretokenizer(t, &parts[PRE_TOKENIZER]));
    GM_TRY(component_post_processor(t, &parts[POST_PROCESSOR]));
    GM_TRY(component_truncation(t, &parts[TRUNCATION]));
    GM_TRY(component_padding(t, &parts[PADDING]));
    GM_TRY(component_decoder(t, &parts[DECODER]));
    return read_added(t, &parts[ADDED_TOKENS]);
}

gm_status component_parts(gm_tokenizer *t, const char *json, size_t length, const char *name) {
    json_reader r;
    json_open(&r, json, length, name);
    return read_file(t, &r, false);
}

gm_status component_literal(gm_tokenizer *t, gm_status (*read)(gm_tokenizer *, const json_reader *), const char *json) {
    json_reader r;
    json_open(&r, json, strlen(json), "tokenizer");
    GM_TRY(json_expect(&r, JSON_OBJECT));
    return read(t, &r);
}

gm_status gm_tokenizer_from_json(const char *json, size_t length, const char *name, gm_tokenizer **out) {
    *out = NULL;
    gm_tokenizer *t = tokenizer_new();
    if (!t)
        return GM_ENOMEM;
    json_reader r;
    json_open(&r, json, length, name);
    gm_status status = read_file(t, &r, true);
    if (status == GM_OK)
        status = tokenizer_finish(t);
    if (status != GM_OK) {
        gm_tokenizer_release(t);
        return error_in_file(name, status);
    }
    *out = t;
    return GM_OK;
}
