/* alphabet.h - GPT-2's alphabet: a printable character for each byte, in which byte-level vocabularies are written. */
#ifndef GOMLX_TEXT_ALPHABET_H
#define GOMLX_TEXT_ALPHABET_H
#include "text/buffer.h"

uint32_t alphabet_char(uint8_t byte);
int alphabet_byte(uint32_t c); /* -1 if c is not in the alphabet */
/* Appends the bytes in the alphabet, as UTF-8. */
gm_status alphabet_append(const uint8_t *bytes, size_t length, byte_buffer *out);
gm_status alphabet_text(const uint8_t *bytes, size_t length, byte_buffer *out); /* the same, overwriting out */
#endif
