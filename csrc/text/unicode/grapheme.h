/* grapheme.h - extended grapheme clusters, which a charsmap replaces as a whole. */
#ifndef GOMLX_TEXT_GRAPHEME_H
#define GOMLX_TEXT_GRAPHEME_H
#include <stddef.h>
#include <stdint.h>

/* The end of the cluster that begins at `at` < length. Flags (two regional indicators) are split in two, because a
 * charsmap does not look up their eight bytes. */
size_t grapheme_end(const uint8_t *text, size_t length, size_t at);
#endif
