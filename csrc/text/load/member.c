/* member.c - see member.h. */
#include "text/load/member.h"

gm_status member_find(const json_reader *object, const char *key, json_reader *value) {
    *value = *object;
    json_token token;
    while ((token = json_next(value)) == JSON_KEY) {
        if (json_is(value, key))
            return json_next(value) == JSON_ERROR ? GM_EBADFILE : GM_OK;
        GM_TRY(json_skip(value));
    }
    if (token == JSON_ERROR)
        return GM_EBADFILE;
    value->type = JSON_NULL;
    return GM_OK;
}

gm_status value_bool(json_reader *value, const char *key, bool absent, bool *out) {
    *out = absent;
    if (value->type != JSON_TRUE && value->type != JSON_FALSE && value->type != JSON_NULL)
        return json_mistyped(value, key, "true or false");
    if (value->type != JSON_NULL)
        *out = value->type == JSON_TRUE;
    return GM_OK;
}

gm_status value_text(json_reader *value, const char *key, char **out, size_t *length) {
    *out = NULL;
    *length = 0;
    if (value->type == JSON_NULL)
        return GM_OK;
    if (value->type != JSON_STRING)
        return json_mistyped(value, key, "a string");
    *out = json_string_new(value, length);
    return *out ? GM_OK : GM_ENOMEM;
}

gm_status value_count(json_reader *value, const char *key, int64_t *out) {
    *out = 0;
    if (value->type == JSON_NULL)
        return GM_OK;
    if (value->type != JSON_NUMBER)
        return json_mistyped(value, key, "an integer");
    GM_TRY(json_int(value, out));
    return *out < 0 ? json_fail(value, "'%s' is %lld, expected at least 0", key, (long long)*out) : GM_OK;
}

gm_status member_bool(const json_reader *object, const char *key, bool absent, bool *out) {
    json_reader value;
    GM_TRY(member_find(object, key, &value));
    return value_bool(&value, key, absent, out);
}

gm_status member_text(const json_reader *object, const char *key, char **out, size_t *length) {
    json_reader value;
    GM_TRY(member_find(object, key, &value));
    return value_text(&value, key, out, length);
}

gm_status member_count(const json_reader *object, const char *key, int64_t *out) {
    json_reader value;
    GM_TRY(member_find(object, key, &value));
    return value_count(&value, key, out);
}

gm_status member_array(const json_reader *object, const char *key, json_reader *array) {
    GM_TRY(member_find(object, key, array));
    return array->type == JSON_ARRAY ? GM_OK : json_mistyped(array, key, "an array");
}

static gm_status next_object(json_reader *array) {
    json_token token = json_next(array);
    if (token == JSON_ARRAY_END)
        return GM_END;
    if (token != JSON_OBJECT)
        return token == JSON_ERROR ? GM_EBADFILE : json_fail(array, "expected an object");
    return GM_OK;
}

gm_status member_next_object(json_reader *array, json_reader *element) {
    GM_TRY(next_object(array));
    *element = *array;
    return json_skip(array);
}

gm_status member_next_all(json_reader *array, json_reader *element, const char *const *keys, int n_keys,
                          json_reader *values) {
    GM_TRY(next_object(array));
    *element = *array;
    for (int i = 0; i < n_keys; i++)
        values[i] = (json_reader){.type = JSON_NULL};
    json_token token;
    while ((token = json_next(array)) == JSON_KEY) {
        int i = 0;
        while (i < n_keys && !json_is(array, keys[i]))
            i++;
        if (json_next(array) == JSON_ERROR)
            return GM_EBADFILE;
        if (i < n_keys && !values[i].token)
            values[i] = *array;
        GM_TRY(json_skip(array));
    }
    return token == JSON_ERROR ? GM_EBADFILE : GM_OK;
}
