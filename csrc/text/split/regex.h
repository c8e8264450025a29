/* regex.h - split patterns that scanners.h does not know, rewritten (pattern.h) and run by PCRE2. A compiled pattern
 * is only read; each caller brings its own regex_work. */
#ifndef GOMLX_TEXT_REGEX_H
#define GOMLX_TEXT_REGEX_H
#include "text/unicode/unicode.h"

typedef struct regex regex;
typedef struct regex_work regex_work;

gm_status regex_new(const char *pattern, size_t length, regex **out);
void regex_free(regex *r);
gm_status regex_work_new(const regex *r, regex_work **out);
void regex_work_free(regex_work *w);
/* The first match that starts at or behind `at`; *found false when there is none. */
gm_status regex_search(const regex *r, regex_work *w, const uint8_t *text, size_t length, size_t at,
                       size_t *start, size_t *end, bool *found);

/* Matches one after the other, as Oniguruma's iterator gives them: an empty one right behind the last match is passed
 * over by one scalar. Zero-initialise. */
typedef struct { size_t at, last_end; bool has_last; } regex_walk;
gm_status regex_next(const regex *r, regex_work *w, const uint8_t *text, size_t length, regex_walk *walk,
                     size_t *start, size_t *end, bool *found);
#endif
