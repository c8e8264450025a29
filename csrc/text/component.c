/* component.c - what the readers of a tokenizer.json's components share, and its post_processor. */
#include "text/component.h"

gm_status component_open(const json_reader *component, const char *what, json_reader *type) {
    json_reader r = *component;
    if (r.type != JSON_OBJECT)
        return json_fail(&r, "%s is not an object", what);
    GM_TRY(member_find(component, "type", type));
    return type->type == JSON_STRING ? GM_OK : json_fail(&r, "%s has no type", what);
}

gm_status component_unsupported(const json_reader *type, const char *what) {
    return gm_fail(GM_EUNSUPPORTED, "%s: %s '%.*s' is not supported", type->name, what,
                   type->token_length < 64 ? (int)type->token_length : 64, type->token);
}

gm_status component_pattern(const json_reader *object, char **text, size_t *length, bool *is_regex) {
    json_reader pattern;
    *text = NULL;
    GM_TRY(member_find(object, "pattern", &pattern));
    if (pattern.type != JSON_OBJECT)
        return json_fail(&pattern, "'pattern' is not an object");
    GM_TRY(member_text(&pattern, "Regex", text, length));
    *is_regex = *text != NULL;
    if (*text == NULL)
        GM_TRY(member_text(&pattern, "String", text, length));
    if (*text != NULL && *length > 0)
        return GM_OK;
    memory_free(*text);
    *text = NULL;
    return json_fail(&pattern, "'pattern' has neither a String nor a Regex, or an empty one");
}

gm_status component_scheme(const json_reader *r, prefix_scheme *out) {
    json_reader value;
    GM_TRY(member_find(r, "prepend_scheme", &value));
    if (value.type == JSON_NULL) {
        bool add_prefix_space;
        GM_TRY(member_bool(r, "add_prefix_space", true, &add_prefix_space));
        *out = add_prefix_space ? PREFIX_ALWAYS : PREFIX_NEVER;
        return GM_OK;
    }
    bool text = value.type == JSON_STRING;
    if (text && json_is(&value, "always"))
        *out = PREFIX_ALWAYS;
    else if (text && json_is(&value, "first"))
        *out = PREFIX_FIRST;
    else if (text && json_is(&value, "never"))
        *out = PREFIX_NEVER;
    else
        return json_fail(&value, "'prepend_scheme' is not one of always, first, never");
    return GM_OK;
}

gm_status component_character(const json_reader *r, const char *key, uint32_t *out) {
    char *text;
    size_t length, at = 0;
    GM_TRY(member_text(r, key, &text, &length));
    if (text != NULL && length > 0)
        *out = utf8_next((const uint8_t *)text, &at);
    bool one = text != NULL && length > 0 && at == length;
    memory_free(text);
    json_reader copy = *r;
    return one ? GM_OK : json_fail(&copy, "'%s' is not one character", key);
}

/* ---- post-processors ---- */
/* The ids of one {"SpecialToken": {"id": "<s>"}} of a template. */
static gm_status read_template_token(const json_reader *r, const json_reader *token, id_buffer *out) {
    json_reader name, all, entry, ids;
    GM_TRY(member_find(token, "id", &name));
    GM_TRY(member_find(r, "special_tokens", &all));
    if (name.type != JSON_STRING || all.type != JSON_OBJECT)
        return json_fail(&name, "the template's special tokens are not what they should be");
    char *text = json_string_new(&name, NULL);
    if (text == NULL)
        return GM_ENOMEM;
    gm_status status = member_find(&all, text, &entry);
    if (status == GM_OK && entry.type != JSON_OBJECT)
        status = json_fail(&entry, "the template's token '%.64s' is not described", text);
    memory_free(text);
    GM_TRY(status);
    GM_TRY(member_array(&entry, "ids", &ids));
    for (;;) {
        json_token type = json_next(&ids);
        int64_t id;
        if (type == JSON_ARRAY_END)
            return GM_OK;
        if (type != JSON_NUMBER)
            return type == JSON_ERROR ? GM_EBADFILE : json_fail(&ids, "an id was expected");
        GM_TRY(json_int(&ids, &id));
        if (id < 0 || id >= VOCAB_MAX)
            return json_fail(&ids, "id %lld is out of range", (long long)id);
        GM_TRY(ids_append(out, (int32_t)id));
    }
}

static gm_status read_template(gm_tokenizer *t, const json_reader *r) {
    json_reader array, element, part;
    bool seen = false;
    if (t->before.size + t->after.size > 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: two TemplateProcessing post_processors are not supported", r->name);
    GM_TRY(member_array(r, "single", &array));
    gm_status status;
    while ((status = member_next_object(&array, &element)) == GM_OK) {
        GM_TRY(member_find(&element, "SpecialToken", &part));
        if (part.type == JSON_OBJECT) {
            GM_TRY(read_template_token(r, &part, seen ? &t->after : &t->before));
            continue;
        }
        if (seen)
            return json_fail(&array, "the template has its text more than once");
        seen = true;
    }
    if (status != GM_END)
        return status;
    return seen ? GM_OK : json_fail(&array, "the template has no text in it");
}

gm_status component_post_processor(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(component_open(r, "post_processor", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "processors", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_post_processor(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    if (json_is(&type, "ByteLevel"))
        return GM_OK;    /* it only trims offsets */
    if (json_is(&type, "TemplateProcessing"))
        return read_template(t, r);
    return component_unsupported(&type, "post_processor");
}
