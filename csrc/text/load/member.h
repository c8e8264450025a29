/* member.h - small JSON objects read by name: each look-up scans the object from a reader that stands at its start,
 * so the order of the members does not matter and nothing is stored. Not for objects of megabytes; for thousands of
 * objects member_next_all finds what they have in one scan each. Of two members with one name the first counts. */
#ifndef GOMLX_TEXT_MEMBER_H
#define GOMLX_TEXT_MEMBER_H
#include "base/json.h"
#include "base/error.h"
#include "base/memory.h"

/* `object` stands on JSON_OBJECT; *value then stands on the member's value, with type JSON_NULL when there is none. */
gm_status member_find(const json_reader *object, const char *key, json_reader *value);
gm_status member_bool(const json_reader *object, const char *key, bool absent, bool *out);
/* A copy from memory.h; NULL when the member is absent or null. */
gm_status member_text(const json_reader *object, const char *key, char **out, size_t *length);
/* A number that is not negative; 0 when absent. */
gm_status member_count(const json_reader *object, const char *key, int64_t *out);
gm_status member_array(const json_reader *object, const char *key, json_reader *array);
/* The same of a member that has been found. */
gm_status value_bool(json_reader *value, const char *key, bool absent, bool *out);
gm_status value_text(json_reader *value, const char *key, char **out, size_t *length);
gm_status value_count(json_reader *value, const char *key, int64_t *out);
/* Walks the objects of an array: *element stands on the next one; GM_END behind the last. */
gm_status member_next_object(json_reader *array, json_reader *element);
/* The same with its members of these names: values[i] stands on that of keys[i], with type JSON_NULL for none. */
gm_status member_next_all(json_reader *array, json_reader *element, const char *const *keys, int n_keys,
                          json_reader *values);
#endif
