/* pattern.h - a regular expression in Oniguruma's Ruby syntax, written for PCRE2: what means the same in both is
 * copied, classes are written out as the exact ranges of property.h, and what neither holds for is refused with its
 * name. */
#ifndef GOMLX_TEXT_PATTERN_H
#define GOMLX_TEXT_PATTERN_H
#include "text/buffer.h"

/* Appends the pattern; out is for PCRE2_UTF | PCRE2_MULTILINE with LF as the newline. */
gm_status pattern_rewrite(const char *pattern, size_t length, byte_buffer *out);
#endif
