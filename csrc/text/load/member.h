/* member.h - small JSON objects, read by name: each lookup scans the object from its start, so the order of the
 * members does not matter and nothing is stored. Objects of megabytes would be slow; for thousands of objects
 * member_next_all finds all members in one scan each. Of two members with one name the first counts. */
#ifndef GOMLX_TEXT_MEMBER_H
#define GOMLX_TEXT_MEMBER_H
#include "base/json.h"
#include "base/error.h"
#include "base/memory.h"

/* Moves *value to the value of a member of the object that `object` is at; type JSON_NULL if it is absent. */
gm_status member_find(const json_reader *object, const char *key, json_reader *value);
gm_status member_bool(const json_reader *object, const char *key, bool absent, bool *out);
/* A copy from memory.h; NULL when the member is absent or null. */
gm_status member_text(const json_reader *object, const char *key, char **out, size_t *length);
/* A non-negative integer; 0 when absent. */
gm_status member_count(const json_reader *object, const char *key, int64_t *out);
gm_status member_array(const json_reader *object, const char *key, json_reader *array);
/* The same for a member that member_find has found. */
gm_status value_bool(json_reader *value, const char *key, bool absent, bool *out);
gm_status value_text(json_reader *value, const char *key, char **out, size_t *length);
gm_status value_count(json_reader *value, const char *key, int64_t *out);
/* Moves *element to the next object of an array; GM_END after the last. */
gm_status member_next_object(json_reader *array, json_reader *element);
/* The same, and moves values[i] to the value of its member keys[i]; type JSON_NULL if it is absent. */
gm_status member_next_all(json_reader *array, json_reader *element, const char *const *keys, int n_keys,
                          json_reader *values);
#endif
