/* property.c - see property.h. A row of a table of runs is the run's first scalar << 8 | its label. */
#include <ctype.h>
#include <stdlib.h>
#include "text/unicode/property.h"
#include "text/generated/property_tables.inc"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])
#define LABEL(table, c) label(table, COUNT(table), c)

static unsigned label(const uint32_t *runs, size_t n, uint32_t c) {
    size_t low = 0, high = n; /* runs[low] begins at or before c */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (runs[middle] >> 8 <= c)
            low = middle;
        else
            high = middle;
    }
    return runs[low] & 0xFF;
}

unsigned property_split_script(uint32_t c) { return LABEL(split_script_runs, c); }
unsigned property_grapheme(uint32_t c) { return LABEL(grapheme_runs, c); }
unsigned property_conjunct(uint32_t c) { return LABEL(conjunct_runs, c); }
bool property_pictographic(uint32_t c) { return LABEL(pictographic_runs, c) != 0; }

/* ---- sets ---- */
gm_status set_add(scalar_set *set, uint32_t first, uint32_t last) {
    if (set->size > 0 && set->data[set->size - 1].last + 1 == first) {
        set->data[set->size - 1].last = last;
        return GM_OK;
    }
    GM_TRY(grow_array(&set->data, set->size, &set->capacity, 1, sizeof *set->data));
    set->data[set->size++] = (scalar_range){first, last};
    return GM_OK;
}

static int compare_ranges(const void *a, const void *b) {
    const scalar_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

void set_order(scalar_set *set) {
    size_t n = 0;
    if (set->size > 1)
        qsort(set->data, set->size, sizeof set->data[0], compare_ranges);
    for (size_t i = 0; i < set->size; i++) {
        scalar_range range = set->data[i];
        if (n > 0 && range.first <= set->data[n - 1].last + 1) {
            if (range.last > set->data[n - 1].last)
                set->data[n - 1].last = range.last;
        } else {
            set->data[n++] = range;
        }
    }
    set->size = n;
}

/* Adds [first, last] without surrogates. */
static gm_status add_scalars(scalar_set *set, uint32_t first, uint32_t last) {
    if (first < 0xD800)
        GM_TRY(set_add(set, first, last < 0xD7FF ? last : 0xD7FF));
    if (last > 0xDFFF)
        GM_TRY(set_add(set, first > 0xE000 ? first : 0xE000, last));
    return GM_OK;
}

gm_status set_invert(scalar_set *set) {
    scalar_set out = {0};
    uint32_t next = 0;
    gm_status status = GM_OK;
    for (size_t i = 0; i < set->size && status == GM_OK; i++) {
        if (set->data[i].first > next)
            status = add_scalars(&out, next, set->data[i].first - 1);
        next = set->data[i].last + 1;
    }
    if (status == GM_OK && next <= 0x10FFFF)
        status = add_scalars(&out, next, 0x10FFFF);
    set_free(set);
    *set = out;
    return status;
}

gm_status set_intersect(scalar_set *set, const scalar_set *other) {
    scalar_set out = {0};
    gm_status status = GM_OK;
    for (size_t i = 0, k = 0; i < set->size && k < other->size && status == GM_OK;) {
        scalar_range a = set->data[i], b = other->data[k];
        uint32_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
        if (first <= last)
            status = set_add(&out, first, last);
        if (a.last < b.last)
            i++;
        else
            k++;
    }
    set_free(set);
    *set = out;
    return status;
}

void set_free(scalar_set *set) {
    memory_free(set->data);
    *set = (scalar_set){0};
}

/* ---- names ---- */
static const struct {
    const char *name, *of;
} long_names[] = {
    {"letter", "L"},
    {"mark", "M"},
    {"number", "N"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"separator", "Z"},
    {"other", "C"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"space", "s"},
    {"whitespace", "s"},
    {"word", "w"},
    {"digit", "Nd"},
    {"punct", "P"},
    {"cntrl", "Cc"},
    {"hira", "hiragana"},
    {"kana", "katakana"},
    {"hani", "han"},
    {"hang", "hangul"},
    {"latn", "latin"},
    {"cyrl", "cyrillic"},
    {"grek", "greek"},
    {"arab", "arabic"},
    {"hebr", "hebrew"},
    {"deva", "devanagari"},
    {"laoo", "lao"},
    {"khmr", "khmer"},
    {"mymr", "myanmar"},
    {"beng", "bengali"},
    {"taml", "tamil"},
    {"zyyy", "common"},
    {"zinh", "inherited"},
    {"tibt", "tibetan"},
};

static bool same(const char *name, const char *table) {
    for (; *name != 0; name++, table++) {
        while (*table == '_')
            table++;
        if (tolower((unsigned char)*table) != *name)
            return false;
    }
    return *table == 0;
}

static gm_status add_runs(const uint32_t *runs, size_t n, unsigned wanted, scalar_set *set) {
    for (size_t i = 0; i < n; i++)
        if ((runs[i] & 0xFF) == wanted)
            GM_TRY(add_scalars(set, runs[i] >> 8, i + 1 < n ? (runs[i + 1] >> 8) - 1 : 0x10FFFF));
    return GM_OK;
}

/* Adds a category of two letters, or all categories that begin with a letter. */
static gm_status add_categories(const char *name, scalar_set *set, bool *known) {
    for (unsigned i = 0; i < COUNT(category_names); i++) {
        const char *category = category_names[i];
        bool cased = strcmp(name, "lc") == 0 && category[0] == 'L' && strchr("ult", category[1]);
        bool group = tolower((unsigned char)category[0]) == name[0];
        bool fits = group && (name[1] == 0 || strcmp(category + 1, name + 1) == 0);
        if (!fits && !cased)
            continue;
        GM_TRY(add_runs(category_runs, COUNT(category_runs), i + 1, set));
        *known = true;
    }
    return GM_OK;
}

gm_status property_add_space(scalar_set *set) {
    static const scalar_range spaces[] = {{9, 13}, {0x85, 0x85}};
    bool known;
    for (size_t i = 0; i < COUNT(spaces); i++)
        GM_TRY(set_add(set, spaces[i].first, spaces[i].last));
    return add_categories("z", set, &known);
}

gm_status property_add_word(bool in_class, scalar_set *set) {
    static const char *const parts[] = {"l", "m", "nd", "pc"};
    bool known;
    for (size_t i = 0; i < COUNT(parts); i++)
        GM_TRY(add_categories(parts[i], set, &known));
    size_t first = 0;
    while (in_class && first < COUNT(word_runs) && word_runs[first] >> 8 < 0x100)
        first++;
    return add_runs(word_runs + first, COUNT(word_runs) - first, 1, set);
}

gm_status property_add(const char *name, size_t length, bool in_class, scalar_set *set, bool *known) {
    char folded[40];
    size_t n = 0;
    *known = false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] == ' ' || name[i] == '-' || name[i] == '_')
            continue;
        if (n + 1 == sizeof folded)
            return GM_OK;
        folded[n++] = (char)tolower((unsigned char)name[i]);
    }
    folded[n] = 0;
    for (size_t i = 0; i < COUNT(long_names); i++) {
        if (strcmp(folded, long_names[i].name) != 0)
            continue;
        n = strlen(long_names[i].of);
        for (size_t k = 0; k <= n; k++)
            folded[k] = (char)tolower((unsigned char)long_names[i].of[k]);
        break;
    }
    if (strcmp(folded, "s") == 0 && length > 1) {
        *known = true;
        return property_add_space(set);
    }
    if (strcmp(folded, "w") == 0 && length > 1) {
        *known = true;
        return property_add_word(in_class, set);
    }
    if (n > 0 && n <= 2)
        GM_TRY(add_categories(folded, set, known));
    for (unsigned i = 0; i < COUNT(script_names) && !*known && n > 0; i++) {
        if (!same(folded, script_names[i]))
            continue;
        *known = true;
        GM_TRY(add_runs(script_runs, COUNT(script_runs), i + 1, set));
    }
    return GM_OK;
}
