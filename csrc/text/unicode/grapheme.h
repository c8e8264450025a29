/* grapheme.h - extended grapheme clusters: what a charsmap looks at as one. */
#ifndef GOMLX_TEXT_GRAPHEME_H
#define GOMLX_TEXT_GRAPHEME_H
#include <stddef.h>
#include <stdint.h>

/* The end of the cluster that begins at `at` < length. Flags (two regional indicators) are cut in two: eight bytes are
 * more than a charsmap looks at. */
size_t grapheme_end(const uint8_t *text, size_t length, size_t at);
#endif
