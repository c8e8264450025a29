/* property.h - sets of scalars by the names that regular expressions give them, as Hugging Face's engine has them. */
#ifndef GOMLX_TEXT_PROPERTY_H
#define GOMLX_TEXT_PROPERTY_H
#include <stdbool.h>
#include "text/buffer.h"

typedef struct { uint32_t first, last; } scalar_range;
typedef struct { scalar_range *data; size_t size, capacity; } scalar_set;

gm_status set_add(scalar_set *set, uint32_t first, uint32_t last);
/* Sorts the ranges and joins those that touch. */
void set_order(scalar_set *set);
/* Of an ordered set; the result is ordered. Surrogates are in neither. */
gm_status set_invert(scalar_set *set);
/* Of two ordered sets, into the first. */
gm_status set_intersect(scalar_set *set, const scalar_set *other);
void set_free(scalar_set *set);

/* Adds what \p{name} matches, a general category or a script: case, spaces, '-' and '_' do not matter. *known false
 * when it is neither. in_class: it stands in brackets. */
gm_status property_add(const char *name, size_t length, bool in_class, scalar_set *set, bool *known);
gm_status property_add_space(scalar_set *set);    /* \s */
/* \w. In brackets it lacks the superscripts and fractions of Latin-1. */
gm_status property_add_word(bool in_class, scalar_set *set);

/* A number for the script that the UnicodeScripts pre-tokenizer sees in c; 0: any. */
unsigned property_split_script(uint32_t c);
/* What grapheme.c asks. */
unsigned property_grapheme(uint32_t c);
unsigned property_conjunct(uint32_t c);
bool property_pictographic(uint32_t c);
#endif
