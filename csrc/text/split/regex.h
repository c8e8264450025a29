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
/* Finds the first match at or after `at`; *found is false if there is none. */
gm_status regex_search(const regex *r, regex_work *w, const uint8_t *text, size_t length, size_t at,
                       size_t *start, size_t *end, bool *found);

/* Finds one match after another, like Oniguruma's iterator, which skips a scalar at an empty match right after the last
 * one. Zero-initialise the walk. */
typedef struct { size_t at, last_end; bool has_last; } regex_walk;
gm_status regex_next(const regex *r, regex_work *w, const uint8_t *text, size_t length, regex_walk *walk,
                     size_t *start, size_t *end, bool *found);
#endif
