/* charsmap.h - SentencePiece's precompiled normalizer: a double array from texts to texts. It comes from a file and is
 * not trusted: a step out of the array, or a text that is not whole, does not match. */
#ifndef GOMLX_TEXT_CHARSMAP_H
#define GOMLX_TEXT_CHARSMAP_H
#include "text/text_view.h"

typedef struct charsmap charsmap;

/* Copies data: the size of the array in bytes as a little-endian uint32, the array, the NUL-terminated texts. */
gm_status charsmap_new(const uint8_t *data, size_t length, const char *name, charsmap **out);
void charsmap_free(charsmap *map);
/* Writes the whole input. A grapheme cluster of less than 6 bytes, otherwise a character, that begins with a text of
 * the array is replaced by that text's value. */
gm_status charsmap_write(const charsmap *map, text_writer *w);
/* The same as in SentencePiece: from the left, the longest text of the array. */
gm_status charsmap_write_longest(const charsmap *map, text_writer *w);
#endif
