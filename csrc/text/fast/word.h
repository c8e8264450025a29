/* word.h - a few bytes of a text as a word: the first byte is the lowest, missing bytes are 0. */
#ifndef GOMLX_TEXT_WORD_H
#define GOMLX_TEXT_WORD_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* n <= 8, a constant once inlined. */
static inline uint64_t load_bytes(const uint8_t *from, size_t n) {
    uint64_t word = 0;
    memcpy(&word, from, n);
    return word;
}

/* n < 8. A single branch depends on n. */
static inline uint64_t short_word(const uint8_t *from, size_t n) {
    if (n >= 4)
        return load_bytes(from, 4) | load_bytes(from + n - 4, 4) << 8 * (n - 4);
    return n == 0 ? 0 : from[0] | (uint64_t)from[n >> 1] << 8 * (n >> 1) | (uint64_t)from[n - 1] << 8 * (n - 1);
}
#endif
