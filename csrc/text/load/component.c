/* component.c - functions that the readers of components share. */
#include "text/load/component.h"

gm_status component_open(const json_reader *component, const char *what, json_reader *type) {
    json_reader r = *component;
    if (r.type != JSON_OBJECT)
        return json_mistyped(&r, what, "an object or null");
    GM_TRY(member_find(component, "type", type));
    return type->type == JSON_STRING ? GM_OK : json_mistyped(type, "type", "a string");
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
        return json_mistyped(&pattern, "pattern", "an object with a String or a Regex");
    GM_TRY(member_text(&pattern, "Regex", text, length));
    *is_regex = *text != NULL;
    if (!*text)
        GM_TRY(member_text(&pattern, "String", text, length));
    if (*text && *length > 0)
        return GM_OK;
    memory_free(*text);
    *text = NULL;
    return json_fail(&pattern, "'pattern' has no String or Regex, or an empty one");
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
        return json_fail(&value, "'prepend_scheme' is not always, first or never");
    return GM_OK;
}

gm_status component_character(const json_reader *r, const char *key, uint32_t *out) {
    char *text;
    size_t length, at = 0;
    GM_TRY(member_text(r, key, &text, &length));
    if (text && length > 0)
        *out = utf8_next((const uint8_t *)text, &at);
    bool one = text && length > 0 && at == length;
    memory_free(text);
    json_reader copy = *r;
    return one ? GM_OK : json_fail(&copy, "'%s' is not one character", key);
}
