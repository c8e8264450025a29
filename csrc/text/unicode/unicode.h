/* unicode.h - UTF-8, character classes and normal forms as the Hugging Face tokenizers library defines them: classes of
 * Unicode 16, normal forms of Unicode 9. The tables are our own (tools/unicode_tables.py), so that ids do not depend on
 * what a distribution ships. */
#ifndef GOMLX_TEXT_UNICODE_H
#define GOMLX_TEXT_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "text/buffer.h"

/* ORDER CLASS: tools/unicode_tables.py writes these bits in this order. */
enum {
    CLASS_LETTER = 1 << 0,      /* \p{L} */
    CLASS_NUMBER = 1 << 1,      /* \p{N} */
    CLASS_SPACE = 1 << 2,       /* \s: White_Space */
    CLASS_MARK = 1 << 3,        /* \p{M} */
    CLASS_PUNCTUATION = 1 << 4, /* \p{P} */
    CLASS_SYMBOL = 1 << 5,      /* \p{S} */
    CLASS_UPPER = 1 << 6,       /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    CLASS_LOWER = 1 << 7,       /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    CLASS_WORD = 1 << 8,        /* \w around added tokens */
    CLASS_NUMERIC = 1 << 9,     /* a digit to the Digits pre-tokenizer */
    CLASS_NFC_CHECK = 1 << 10,  /* text without any of these is in NFC */
    CLASS_TITLE = 1 << 11,      /* \p{Lt} */
    CLASS_MODIFIER = 1 << 12,   /* \p{Lm} */
    CLASS_DIGIT = 1 << 13,      /* \p{Nd} */
    CLASS_HAN = 1 << 14,        /* \p{Han} */
};

#define UNICODE_BLOCK 128
extern const uint16_t *const unicode_class_index, *const unicode_class_blocks;

static inline unsigned unicode_class(uint32_t c) {
    return unicode_class_blocks[unicode_class_index[c / UNICODE_BLOCK] * UNICODE_BLOCK + c % UNICODE_BLOCK];
}

/* Properties that normalizers and pre-tokenizers use, each of the Unicode version that the reference uses there.
 * ORDER TRAIT: tools/unicode_tables.py writes these bits in this order. */
enum {
    TRAIT_PUNCTUATION = 1 << 0, /* BERT's: \p{P} and all ASCII symbols */
    TRAIT_CONTROL = 1 << 1,     /* BERT's clean_text drops it */
    TRAIT_NONSPACING = 1 << 2,  /* BERT's strip_accents drops it, after NFD */
    TRAIT_COMBINING = 1 << 3,   /* StripAccents drops it */
    TRAIT_LOWERS = 1 << 4,      /* its lower case differs */
    TRAIT_NFD_CHECK = 1 << 5,   /* text without any of these is in NFD */
    TRAIT_COMPATIBLE = 1 << 6,  /* NFKC and NFKD change it */
    TRAIT_CLUSTERS = 1 << 7,    /* it may not be a grapheme cluster by itself */
};

unsigned unicode_trait(uint32_t c);
/* Writes the lower case of c, one or two scalars, and returns how many. Context does not matter, not even for a final
 * sigma. */
int unicode_lower(uint32_t c, uint32_t lower[2]);

/* The scalar at text[*at]; *at moves past it. The text is valid UTF-8. */
static inline uint32_t utf8_next(const uint8_t *text, size_t *at) {
    const uint8_t *p = text + *at;
    if (p[0] < 0x80)
        return *at += 1, p[0];
    if (p[0] < 0xE0)
        return *at += 2, (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    if (p[0] < 0xF0)
        return *at += 3, (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    *at += 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

/* Where the scalar that ends at `end` starts. The text is valid UTF-8 and end > 0. */
static inline size_t utf8_previous(const uint8_t *text, size_t end) {
    do
        end--;
    while ((text[end] & 0xC0) == 0x80);
    return end;
}

/* Writes at most 4 bytes, returns how many. */
size_t utf8_put(uint32_t c, uint8_t *out);
/* What bytes[0, n) starts with: the length of a whole scalar; 0 if more bytes may complete one; minus the length of a
 * maximal invalid part, which decodes to one U+FFFD. n > 0. */
int utf8_step(const uint8_t *bytes, size_t n);
/* The offset of the first invalid byte, or n. */
size_t utf8_check(const uint8_t *bytes, size_t n);

typedef enum { NORMAL_C, NORMAL_D, NORMAL_KC, NORMAL_KD } normal_form;

bool unicode_is_normal(normal_form form, const uint8_t *text, size_t n); /* may be false for text that is */
struct text_writer;
/* Writes the whole input, normalized. */
gm_status unicode_normalize(normal_form form, struct text_writer *w);
#endif
