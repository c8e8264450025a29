/* member.c - see member.h. */
#include "text/member.h"

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

gm_status member_bool(const json_reader *object, const char *key, bool absent, bool *out) {
    json_reader value;
    *out = absent;
    GM_TRY(member_find(object, key, &value));
    if (value.type != JSON_TRUE && value.type != JSON_FALSE && value.type != JSON_NULL)
        return json_fail(&value, "'%s' is not true or false", key);
    if (value.type != JSON_NULL)
        *out = value.type == JSON_TRUE;
    return GM_OK;
}

gm_status member_text(const json_reader *object, const char *key, char **out, size_t *length) {
    json_reader value;
    *out = NULL;
    *length = 0;
    GM_TRY(member_find(object, key, &value));
    if (value.type == JSON_NULL)
        return GM_OK;
    if (value.type != JSON_STRING)
        return json_fail(&value, "'%s' is not a string", key);
    *out = json_string_new(&value, length);
    return *out == NULL ? GM_ENOMEM : GM_OK;
}

gm_status member_count(const json_reader *object, const char *key, int64_t *out) {
    json_reader value;
    *out = 0;
    GM_TRY(member_find(object, key, &value));
    if (value.type == JSON_NULL)
        return GM_OK;
    if (value.type != JSON_NUMBER)
        return json_fail(&value, "'%s' is not a number", key);
    GM_TRY(json_int(&value, out));
    return *out < 0 ? json_fail(&value, "'%s' is negative", key) : GM_OK;
}

gm_status member_array(const json_reader *object, const char *key, json_reader *array) {
    GM_TRY(member_find(object, key, array));
    return array->type == JSON_ARRAY ? GM_OK : json_fail(array, "'%s' is not an array", key);
}

gm_status member_next_object(json_reader *array, json_reader *element) {
    json_token token = json_next(array);
    if (token == JSON_ARRAY_END)
        return GM_END;
    if (token != JSON_OBJECT)
        return token == JSON_ERROR ? GM_EBADFILE : json_fail(array, "an object was expected");
    *element = *array;
    return json_skip(array);
}
