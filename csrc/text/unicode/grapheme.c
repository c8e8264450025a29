/* grapheme.c - see grapheme.h. The rules are those of Unicode's UAX 29. */
#include "text/unicode/grapheme.h"
#include "text/unicode/property.h"
#include "text/unicode/unicode.h"

/* ORDER GRAPHEME: the labels of tools/unicode_tables.py, from 1. */
enum { OTHER, CONTROL, CR, LF, EXTEND, JOINER, SPACING, PREPEND, HANGUL_L, HANGUL_V, HANGUL_T, HANGUL_LV, HANGUL_LVT };
enum { CONJUNCT_CONSONANT = 1, CONJUNCT_LINKER, CONJUNCT_EXTEND };

/* The state of a cluster. joined_pictograph: a pictograph and a joiner end it, so it takes another pictograph; linked:
 * a consonant and a linker end it, so it takes another consonant. */
typedef struct {
    unsigned last;
    bool pictograph, joined_pictograph, consonant, linked;
} cluster;

static void take(cluster *so_far, uint32_t c, unsigned property) {
    unsigned conjunct = property_conjunct(c);
    bool waits = so_far->pictograph && property == JOINER;
    so_far->pictograph = property_pictographic(c) || (so_far->pictograph && property == EXTEND);
    so_far->joined_pictograph = waits;
    if (conjunct == CONJUNCT_CONSONANT) {
        so_far->consonant = true;
        so_far->linked = false;
    } else if (conjunct == CONJUNCT_LINKER) {
        so_far->linked = so_far->consonant;
    } else if (conjunct != CONJUNCT_EXTEND) {
        so_far->consonant = so_far->linked = false;
    }
    so_far->last = property;
}

static bool takes(const cluster *so_far, uint32_t c, unsigned property) {
    switch (property) {
    case CONTROL:
    case CR:
    case LF: return false;
    case EXTEND:
    case JOINER:
    case SPACING: return true;
    default: break;
    }
    unsigned last = so_far->last;
    if (last == PREPEND)
        return true;
    bool vowel = property == HANGUL_V, trailing = property == HANGUL_T;
    bool leads = property == HANGUL_L || property == HANGUL_LV || property == HANGUL_LVT;
    if ((last == HANGUL_L && (leads || vowel)) || ((last == HANGUL_LV || last == HANGUL_V) && (vowel || trailing)) ||
        ((last == HANGUL_LVT || last == HANGUL_T) && trailing))
        return true;
    if (so_far->joined_pictograph && property_pictographic(c))
        return true;
    return so_far->linked && property_conjunct(c) == CONJUNCT_CONSONANT;
}

size_t grapheme_end(const uint8_t *text, size_t length, size_t at) {
    uint32_t c = utf8_next(text, &at);
    if (c == '\r' && at < length && text[at] == '\n')
        return at + 1;
    cluster so_far = {0};
    unsigned property = unicode_trait(c) & TRAIT_CLUSTERS ? property_grapheme(c) : OTHER;
    if (property == CONTROL || c == '\r' || c == '\n')
        return at;
    take(&so_far, c, property);
    while (at < length) {
        size_t end = at;
        c = utf8_next(text, &end);
        property = unicode_trait(c) & TRAIT_CLUSTERS ? property_grapheme(c) : OTHER;
        if (!takes(&so_far, c, property))
            break;
        take(&so_far, c, property);
        at = end;
    }
    return at;
}
