/* property.h - sets of scalars by their names in regular expressions, as Hugging Face's engine defines them. */
#ifndef GOMLX_TEXT_PROPERTY_H
#define GOMLX_TEXT_PROPERTY_H
#include <stdbool.h>
#include "text/buffer.h"

typedef struct { uint32_t first, last; } scalar_range;
typedef struct {
    scalar_range *data;
    size_t size, capacity;
} scalar_set;

gm_status set_add(scalar_set *set, uint32_t first, uint32_t last);
/* Sorts the ranges and joins adjacent ones. */
void set_order(scalar_set *set);
/* Complements an ordered set, surrogates excluded; the result is ordered. */
gm_status set_invert(scalar_set *set);
/* Intersects two ordered sets, into the first. */
gm_status set_intersect(scalar_set *set, const scalar_set *other);
void set_free(scalar_set *set);

/* Adds the scalars of \p{name}, a general category or a script; case, spaces, '-' and '_' do not matter. *known is
 * false if it is neither. in_class: in brackets. */
gm_status property_add(const char *name, size_t length, bool in_class, scalar_set *set, bool *known);
gm_status property_add_space(scalar_set *set); /* \s */
/* \w, in brackets without the superscripts and fractions of Latin-1. */
gm_status property_add_word(bool in_class, scalar_set *set);

/* The number of c's script for the UnicodeScripts pre-tokenizer; 0: fits every script. */
unsigned property_split_script(uint32_t c);
/* Properties that grapheme.c uses. */
unsigned property_grapheme(uint32_t c);
unsigned property_conjunct(uint32_t c);
bool property_pictographic(uint32_t c);
#endif
