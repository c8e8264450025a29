/* json.h - a pull reader for JSON texts that are large or hostile (tokenizer.json, safetensors headers).
 *  (1) The text is borrowed, need not end in NUL, and is never written to.
 *  (2) Each token is checked (grammar, UTF-8, escapes, depth <= 128); after the first error every later call
 *      returns JSON_ERROR. The error's text names the source and the byte offset.
 *  (3) Only json_string_new, and json_double for rare numbers, allocate.
 * Use:  json_open(&r, text, n, "tokenizer.json");
 *       if (json_next(&r) != JSON_OBJECT) ...
 *       while (json_next(&r) == JSON_KEY) { if (json_is(&r, "vocab")) ...; else json_skip(&r); }      */
#ifndef GOMLX_BASE_JSON_H
#define GOMLX_BASE_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx.h"

typedef enum {
    JSON_ERROR = -1,
    JSON_END = 0, /* end of text after one complete value */
    JSON_OBJECT,
    JSON_OBJECT_END,
    JSON_ARRAY,
    JSON_ARRAY_END,
    JSON_KEY,
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL,
} json_token;

#define JSON_MAX_DEPTH 128

typedef struct {
    const char *text, *at, *end, *name;
    const char *token;   /* start of the current token's text: inside the quotes for strings and keys */
    size_t token_length; /* raw length, escapes not resolved */
    bool escaped;        /* the current string or key has escapes */
    json_token type;     /* of the current token */
    int depth;
    uint8_t stack[JSON_MAX_DEPTH]; /* 0: array, 1: object, 2: object after a key */
    bool need_comma, failed;
} json_reader;

typedef struct {
    const char *text;
    size_t length;
} json_text;

void json_open(json_reader *r, const char *text, size_t length, const char *name);
json_token json_next(json_reader *r);
/* After JSON_KEY: skips the key's value. After JSON_OBJECT or JSON_ARRAY: skips to its end. */
gm_status json_skip(json_reader *r);
/* Whether the current key or string, its escapes resolved, equals the text. */
bool json_is(const json_reader *r, const char *text);
/* Resolved length of the current key or string in bytes of UTF-8; \u0000 counts as a byte. */
size_t json_string_length(const json_reader *r);
/* Writes the resolved string (no NUL added) into out of at least json_string_length bytes. */
void json_string_copy(const json_reader *r, char *out);
/* Resolved, NUL-terminated copy from memory.h; *length may be NULL. */
char *json_string_new(const json_reader *r, size_t *length);
gm_status json_int(json_reader *r, int64_t *out); /* the current number, an integer in range */
gm_status json_double(json_reader *r, double *out);
/* In an object whose next member is a key without escapes and a number of at most nine digits: reads both. Otherwise
 * false, and nothing is read. */
bool json_plain_count(json_reader *r, json_text *key, int32_t *count);
/* In an array whose next value is an array of two strings without escapes: reads both, to the inner array's end. They
 * are not checked: compare them only with texts that are UTF-8. Otherwise false, and nothing is read. */
bool json_plain_pair(json_reader *r, json_text pair[2]);
/* Reports an error of the caller's (wrong type, missing key) at the current token, as the reader reports its own. */
gm_status json_fail(json_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a member whose value, the current token, has the wrong type. */
gm_status json_mistyped(json_reader *r, const char *key, const char *expected);
/* json_next, then a check of the type. */
gm_status json_expect(json_reader *r, json_token type);
#endif
