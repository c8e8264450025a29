/* scanners.h - hand-written scanners for the split patterns of common tokenizers. Each matches exactly what the regular
 * expression matches in Hugging Face's engine. regex.h runs all other patterns. */
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

/* The scanner for this regular expression, SCANNER_NONE if there is none. */
scanner scanner_for(const char *pattern, size_t length);
/* The end of the match at `at`, or `at` if there is none. at < length; the text is valid UTF-8. */
size_t scanner_match(scanner kind, const uint8_t *text, size_t length, size_t at);
#endif
