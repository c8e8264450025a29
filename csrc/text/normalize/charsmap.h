/* charsmap.h - SentencePiece's precompiled normalizer: a double array from texts to texts. It comes from a file and is
 * not trusted: a step that leaves the array, or a text that is not whole, is no match. */
#ifndef GOMLX_TEXT_CHARSMAP_H
#define GOMLX_TEXT_CHARSMAP_H
#include "text/text_view.h"

typedef struct charsmap charsmap;

/* data, which is copied: the bytes of the array as a little-endian uint32, the array, the texts, each with a NUL behind
 * it. */
gm_status charsmap_new(const uint8_t *data, size_t length, const char *name, charsmap **out);
void charsmap_free(charsmap *map);
/* Writes the whole input: a grapheme cluster of less than 6 bytes, else a character, that begins with a text of the
 * array becomes what that stands for. */
gm_status charsmap_write(const charsmap *map, text_writer *w);
/* The same as SentencePiece does it: from the left the longest text of the array. */
gm_status charsmap_write_longest(const charsmap *map, text_writer *w);
#endif
