/* regex.h - patterns without a scanner, rewritten (pattern.h) and run by PCRE2. A compiled pattern is only read; each
 * caller has its own regex_work. */
#ifndef GOMLX_TEXT_REGEX_H
#define GOMLX_TEXT_REGEX_H
#include "text/unicode/unicode.h"

typedef struct regex regex;
typedef struct regex_work regex_work;

gm_status regex_new(const char *pattern, size_t length, regex **out);
void regex_free(regex *r);
gm_status regex_work_new(const regex *r, regex_work **out);
void regex_work_free(regex_work *w);
typedef struct {
    size_t start, end;
    bool found;
} regex_match;
/* Finds the first match at or after `at`; without one, out->found is false and the rest stays. */
gm_status regex_search(const regex *r, regex_work *w, const uint8_t *text, size_t length, size_t at, regex_match *out);

/* Finds one match after another, like Oniguruma's iterator, which skips a scalar at an empty match right after the last
 * one. Zero-initialise the walk. */
typedef struct {
    size_t at, last_end;
    bool has_last;
} regex_walk;
gm_status regex_next(const regex *r, regex_work *w, const uint8_t *text, size_t length, regex_walk *walk,
                     regex_match *out);
#endif
