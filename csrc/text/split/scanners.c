/* scanners.c - see scanners.h. Each function is one alternative of the patterns in scanners.def. Alternatives are tried
 * in the patterns' order; where a regular expression would backtrack, the code computes what backtracking finds. */
#include "text/split/scanners.h"
#include "text/unicode/unicode.h"

typedef struct {
    const uint8_t *text;
    size_t length;
} scan_text;
typedef struct {
    uint32_t c;
    unsigned class;
    size_t end;
} scan_char; /* class 0, end == at: the text's end */

static const struct {
    const char *pattern;
    scanner kind;
} patterns[] = {
#define SCANNER(name, pattern) {pattern, SCANNER_##name},
#include "text/split/scanners.def"
#undef SCANNER
};

scanner scanner_for(const char *pattern, size_t length) {
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (strlen(patterns[i].pattern) == length && memcmp(patterns[i].pattern, pattern, length) == 0)
            return patterns[i].kind;
    return SCANNER_NONE;
}

static inline scan_char char_at(scan_text t, size_t at) {
    if (at >= t.length)
        return (scan_char){.end = at};
    scan_char ch = {.end = at};
    ch.c = utf8_next(t.text, &ch.end);
    ch.class = unicode_class(ch.c);
    return ch;
}

static inline bool is_newline(uint32_t c) { return c == '\r' || c == '\n'; }

/* [any of these classes]* */
static inline size_t run_of(scan_text t, size_t at, unsigned classes) {
    for (;;) {
        scan_char ch = char_at(t, at);
        if (!(ch.class & classes))
            return at;
        at = ch.end;
    }
}

/* [none of these classes]* */
static inline size_t run_without(scan_text t, size_t at, unsigned classes) {
    while (at < t.length) {
        scan_char ch = char_at(t, at);
        if (ch.class & classes)
            break;
        at = ch.end;
    }
    return at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d), or without (?i). U+017F folds to s. */
static size_t contraction(scan_text t, size_t at, bool any_case) {
    if (at + 1 >= t.length || t.text[at] != '\'')
        return at;
    const uint8_t fold = any_case ? 0x20 : 0;
    const uint8_t *p = t.text + at + 1;
    size_t left = t.length - at - 1;
    uint8_t first = p[0] | fold, second = left > 1 ? p[1] | fold : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
        return at + 3;
    if (any_case && left > 1 && p[0] == 0xC5 && p[1] == 0xBF)
        return at + 3;
    return at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+, the first of them only with_newlines. */
static size_t spaces(scan_text t, size_t at, bool with_newlines) {
    size_t end = at, last = at, after_newline = at;
    for (;;) {
        scan_char ch = char_at(t, end);
        if (!(ch.class & CLASS_SPACE))
            break;
        last = end;
        end = ch.end;
        if (with_newlines && is_newline(ch.c))
            after_newline = end;
    }
    if (after_newline > at)
        return after_newline;
    /* Before a non-space, a run of two or more gives back its last character. */
    return end == t.length || last == at ? end : last;
}

/* \p{N}{1,most} */
static size_t numbers(scan_text t, size_t at, int most) {
    for (int i = 0; i < most; i++) {
        scan_char ch = char_at(t, at);
        if (!(ch.class & CLASS_NUMBER))
            break;
        at = ch.end;
    }
    return at;
}

/*  ?[^classes]+[\r\n]*, or [\r\n/]* at the end. */
static size_t others(scan_text t, size_t at, unsigned classes, bool with_slash) {
    size_t start = at + (t.text[at] == ' ');
    size_t end = run_without(t, start, classes);
    if (end == start)
        return at;
    while (end < t.length && (is_newline(t.text[end]) || (with_slash && t.text[end] == '/')))
        end++;
    return end;
}

static size_t gpt2(scan_text t, size_t at) {
    size_t end = contraction(t, at, false);
    if (end > at)
        return end;
    size_t start = at + (t.text[at] == ' ');
    scan_char ch = char_at(t, start);
    if (ch.class & CLASS_LETTER)
        return run_of(t, ch.end, CLASS_LETTER);
    if (ch.class & CLASS_NUMBER)
        return run_of(t, ch.end, CLASS_NUMBER);
    end = run_without(t, start, CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER);
    return end > start ? end : spaces(t, at, false);
}

/* [^\r\n\p{L}and`excluded`]?[`letters`]+ where letters has \p{L} in it. */
static size_t prefixed_word(scan_text t, size_t at, unsigned excluded, unsigned letters) {
    scan_char ch = char_at(t, at);
    if (!(ch.class & (CLASS_LETTER | excluded)) && !is_newline(ch.c)) {
        size_t end = run_of(t, ch.end, letters);
        if (end > ch.end)
            return end;
    }
    return ch.class & letters ? run_of(t, ch.end, letters) : at;
}

static size_t cl100k(scan_text t, size_t at, int most_digits, unsigned marks) {
    size_t end = contraction(t, at, true);
    if (end > at)
        return end;
    if ((end = prefixed_word(t, at, CLASS_NUMBER, CLASS_LETTER | marks)) > at)
        return end;
    if ((end = numbers(t, at, most_digits)) > at)
        return end;
    if ((end = others(t, at, CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER | marks, false)) > at)
        return end;
    return spaces(t, at, true);
}

/* [upper]*[lower]+: the uppers run as far as they can; if nothing lower follows, they give back one character that is
 * also lower (a mark, a letter without case). */
static size_t uppers_lowers(scan_text t, size_t at) {
    size_t uppers = run_of(t, at, CLASS_UPPER);
    size_t end = run_of(t, uppers, CLASS_LOWER);
    if (end > uppers)
        return end;
    while (uppers > at) {
        size_t before = utf8_previous(t.text, uppers);
        if (char_at(t, before).class & CLASS_LOWER)
            return uppers;
        uppers = before;
    }
    return at;
}

/* [upper]+[lower]* where uppers_lowers found nothing: no lower follows the run. */
static size_t uppers_only(scan_text t, size_t at) { return run_of(t, at, CLASS_UPPER); }

static size_t o200k(scan_text t, size_t at, int most_digits, bool contractions) {
    scan_char ch = char_at(t, at);
    bool prefix = !(ch.class & (CLASS_LETTER | CLASS_NUMBER)) && !is_newline(ch.c);
    size_t end = at;
    if (prefix && (end = uppers_lowers(t, ch.end)) == ch.end)
        end = at;
    if (end == at)
        end = uppers_lowers(t, at);
    if (end == at && prefix && (end = uppers_only(t, ch.end)) == ch.end)
        end = at;
    if (end == at)
        end = uppers_only(t, at);
    if (end > at)
        return contractions ? contraction(t, end, true) : end;
    if ((end = numbers(t, at, most_digits)) > at)
        return end;
    if ((end = others(t, at, CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER, true)) > at)
        return end;
    return spaces(t, at, true);
}

static bool is_ascii_letter(uint8_t c) { return (uint8_t)((c | 0x20) - 'a') < 26; }

static bool is_ascii_punctuation(uint8_t c) {
    return c > ' ' && c < 0x7F && !is_ascii_letter(c) && (uint8_t)(c - '0') >= 10;
}

static size_t deepseek(scan_text t, size_t at) {
    size_t end = at + 1;
    if (is_ascii_punctuation(t.text[at]) && end < t.length && is_ascii_letter(t.text[end])) {
        while (end < t.length && is_ascii_letter(t.text[end]))
            end++;
        return end;
    }
    end = prefixed_word(t, at, CLASS_PUNCTUATION | CLASS_SYMBOL, CLASS_LETTER | CLASS_MARK);
    if (end > at)
        return end;
    size_t start = at + (t.text[at] == ' ');
    end = run_of(t, start, CLASS_PUNCTUATION | CLASS_SYMBOL);
    if (end > start) {
        while (end < t.length && is_newline(t.text[end]))
            end++;
        return end;
    }
    return spaces(t, at, true);
}

static size_t cjk(scan_text t, size_t at) {
    for (;;) {
        scan_char ch = char_at(t, at);
        if (!((ch.c >= 0x4E00 && ch.c <= 0x9FA5) || (ch.c >= 0x3040 && ch.c <= 0x30FF)))
            return at;
        at = ch.end;
    }
}

size_t scanner_match(scanner kind, const uint8_t *text, size_t length, size_t at) {
    scan_text t = {text, length};
    switch (kind) {
    case SCANNER_GPT2: return gpt2(t, at);
    case SCANNER_CL100K: return cl100k(t, at, 3, 0);
    case SCANNER_QWEN2: return cl100k(t, at, 1, 0);
    case SCANNER_QWEN35: return cl100k(t, at, 1, CLASS_MARK);
    case SCANNER_O200K: return o200k(t, at, 3, true);
    case SCANNER_TEKKEN: return o200k(t, at, 1, false);
    case SCANNER_NUMBER: return numbers(t, at, 1);
    case SCANNER_NUMBERS3: return numbers(t, at, 3);
    case SCANNER_CJK: return cjk(t, at);
    case SCANNER_DEEPSEEK: return deepseek(t, at);
    case SCANNER_NONE: break;
    }
    return at;
}
