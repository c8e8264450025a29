/* scanners.h - split patterns of real tokenizers, written by hand. Each gives exactly what the regular expression
 * gives in Hugging Face's engine; any other pattern goes through regex.h. */
#ifndef GOMLX_TEXT_SCANNERS_H
#define GOMLX_TEXT_SCANNERS_H
#include <stddef.h>
#include <stdint.h>

typedef enum {
    SCANNER_NONE,
#define SCANNER(name, pattern) SCANNER_##name,
#include "text/split/scanners.def"
#undef SCANNER
} scanner;

/* The scanner for this regular expression, SCANNER_NONE when there is none. */
scanner scanner_for(const char *pattern, size_t length);
/* The end of the match that starts at `at`; `at` itself when none does. at < length; the text is valid UTF-8. */
size_t scanner_match(scanner kind, const uint8_t *text, size_t length, size_t at);
#endif
