/* pattern.h - rewrites a regular expression from Oniguruma's Ruby syntax for PCRE2: what means the same in both is
 * copied, classes become the exact ranges of property.h, and anything else is an error that names it. */
#ifndef GOMLX_TEXT_PATTERN_H
#define GOMLX_TEXT_PATTERN_H
#include "text/buffer.h"

/* Appends the pattern for PCRE2_UTF | PCRE2_MULTILINE with LF as the newline. */
gm_status pattern_rewrite(const char *pattern, size_t length, byte_buffer *out);
#endif
