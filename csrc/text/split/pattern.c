/* pattern.c - see pattern.h. */
#include "text/split/pattern.h"
#include "text/unicode/property.h"
#include "text/unicode/unicode.h"

#define MAX_DEPTH 100                /* of nested groups, and of nested classes */
#define MOST_BYTES ((size_t)1 << 24) /* of the result: PCRE2 accepts less, and two bytes (\b) may become 60,000 */

typedef struct {
    size_t atom;   /* the group's start in `out` */
    bool caseless; /* restored after the group */
    int closes;    /* additional parentheses to close in `out` */
} group;

typedef struct {
    const char *text;
    size_t length, at;
    byte_buffer *out;
    size_t atom; /* the start in `out` of what a quantifier would repeat */
    bool has_atom, caseless;
    uint32_t before; /* the literal written last; 0 for anything else */
    group groups[MAX_DEPTH];
    int depth;
} rewriter;

static gm_status refuse(const rewriter *r, size_t start, const char *why) {
    size_t n = r->length - start;
    return gm_fail(GM_EUNSUPPORTED, "tokenizer: pattern '%.*s': '%.*s' %s", r->length < 300 ? (int)r->length : 300,
                   r->text, n < 12 ? (int)n : 12, r->text + start, why);
}

static bool starts(const rewriter *r, const char *what) {
    size_t n = strlen(what);
    return r->length - r->at >= n && memcmp(r->text + r->at, what, n) == 0;
}

static uint32_t next_scalar(rewriter *r) { return utf8_next((const uint8_t *)r->text, &r->at); }

static gm_status put_text(rewriter *r, const char *text) { return bytes_append(r->out, text, strlen(text)); }

static gm_status put_scalar(rewriter *r, uint32_t c) {
    static const char digits[] = "0123456789abcdef";
    char text[16] = "\\x{";
    size_t n = 3;
    for (int shift = 20; shift >= 0; shift -= 4)
        text[n++] = digits[c >> shift & 15];
    text[n++] = '}';
    return bytes_append(r->out, text, n);
}

/* Writes the set as a class; brackets cannot be empty. */
static gm_status put_set(rewriter *r, const scalar_set *set, bool negated) {
    if (set->size == 0)
        return put_text(r, negated ? "[\\x{0}-\\x{10ffff}]" : "(?!)");
    GM_TRY(put_text(r, negated ? "[^" : "["));
    for (size_t i = 0; i < set->size; i++) {
        GM_TRY(put_scalar(r, set->data[i].first));
        GM_TRY(put_text(r, "-"));
        GM_TRY(put_scalar(r, set->data[i].last));
    }
    return put_text(r, "]");
}

/* ---- sets ---- */
/* Adds a set or its complement, and frees it. */
static gm_status merge(scalar_set *into, scalar_set *from, bool negated, gm_status status) {
    if (status == GM_OK) {
        set_order(from);
        if (negated)
            status = set_invert(from);
    }
    for (size_t i = 0; i < from->size && status == GM_OK; i++)
        status = set_add(into, from->data[i].first, from->data[i].last);
    set_free(from);
    return status;
}

/* Reads {name} or {^name}, at the brace. */
static gm_status add_property(rewriter *r, size_t start, bool negated, bool in_class, scalar_set *set) {
    if (!starts(r, "{"))
        return refuse(r, start, "has no {name}");
    r->at++;
    if (starts(r, "^")) {
        negated = !negated;
        r->at++;
    }
    size_t name = r->at;
    while (r->at < r->length && r->text[r->at] != '}')
        r->at++;
    scalar_set members = {0};
    bool known = false;
    gm_status status = GM_OK;
    if (r->at < r->length)
        status = property_add(r->text + name, r->at - name, in_class, &members, &known);
    if (status == GM_OK && !known)
        status = refuse(r, start, "names a class that is not supported");
    r->at++;
    return merge(set, &members, negated, status);
}

/* Reads \p \s \d \w \h or their complements, after the letter. *found is false for any other letter. */
static gm_status add_class_escape(rewriter *r, size_t start, bool in_class, scalar_set *set, bool *found) {
    char c = r->text[r->at - 1];
    bool known;
    scalar_set members = {0};
    gm_status status = GM_OK;
    *found = true;
    switch (c) {
    case 'p':
    case 'P': return add_property(r, start, c == 'P', in_class, set);
    case 's':
    case 'S': status = property_add_space(&members); break;
    case 'd':
    case 'D': status = property_add("Nd", 2, in_class, &members, &known); break;
    case 'w':
    case 'W': status = property_add_word(in_class, &members); break;
    case 'h':
    case 'H':
        status = set_add(&members, '0', '9');
        if (status == GM_OK)
            status = set_add(&members, 'A', 'F');
        if (status == GM_OK)
            status = set_add(&members, 'a', 'f');
        break;
    default: *found = false; return GM_OK;
    }
    return merge(set, &members, c < 'a', status);
}

/* Reads \x41, \x{41} or \u0041, at the digits. */
static gm_status read_hex(rewriter *r, size_t start, char kind, uint32_t *out) {
    bool braces = kind == 'x' && starts(r, "{");
    size_t most = kind == 'u' ? 4 : braces ? 8 : 2, n = 0;
    uint32_t c = 0;
    r->at += braces;
    for (; n < most && r->at < r->length; n++, r->at++) {
        uint8_t d = (uint8_t)r->text[r->at];
        if (d >= '0' && d <= '9')
            c = c << 4 | (uint32_t)(d - '0');
        else if ((d | 0x20) >= 'a' && (d | 0x20) <= 'f')
            c = c << 4 | ((d | 0x20u) - 'a' + 10);
        else
            break;
    }
    bool closed = !braces || starts(r, "}"), whole = n > 0 && (kind == 'x' || n == 4);
    bool surrogate = c >= 0xD800 && c < 0xE000;
    if (!closed || !whole || surrogate || c > 0x10FFFF || (kind == 'x' && !braces && c > 0x7F))
        return refuse(r, start, "is not a character");
    r->at += braces;
    *out = c;
    return GM_OK;
}

/* Reads an escape of one character, after the backslash. */
static gm_status read_character(rewriter *r, size_t start, bool inside, uint32_t *out) {
    static const struct {
        char name, c;
    } controls[] = {
        {'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}, {'a', '\a'}, {'e', 0x1B},
    };
    char c = r->text[r->at];
    if (c == 'x' || c == 'u') {
        r->at++;
        return read_hex(r, start, c, out);
    }
    for (size_t i = 0; i < sizeof controls / sizeof controls[0]; i++) {
        if (controls[i].name == c) {
            r->at++;
            *out = (uint8_t)controls[i].c;
            return GM_OK;
        }
    }
    if (inside && c == 'b') {
        r->at++;
        *out = '\b';
        return GM_OK;
    }
    *out = next_scalar(r);
    bool literal = *out >= 0x80 || strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", (int)*out);
    return literal && *out != 0 ? GM_OK : refuse(r, start, "is not supported");
}

static gm_status read_set(rewriter *r, int depth, scalar_set *set, bool *negated);

/* Reads [:digit:] and the like, at the bracket. */
static gm_status add_posix(rewriter *r, scalar_set *set) {
    static const struct {
        const char *name, *parts[3];
    } names[] = {
        {"digit", {"Nd"}}, {"space", {"Space"}}, {"word", {"Word"}}, {"punct", {"P", "S"}}, {"cntrl", {"Cc"}},
    };
    size_t start = r->at;
    bool negated = starts(r, "[:^");
    r->at += negated ? 3 : 2;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = strlen(names[i].name);
        if (!starts(r, names[i].name) || r->length - r->at < n + 2 || memcmp(r->text + r->at + n, ":]", 2) != 0)
            continue;
        scalar_set members = {0};
        gm_status status = GM_OK;
        bool known;
        for (int k = 0; k < 3 && names[i].parts[k] && status == GM_OK; k++)
            status = property_add(names[i].parts[k], strlen(names[i].parts[k]), true, &members, &known);
        r->at += n + 2;
        return merge(set, &members, negated, status);
    }
    return refuse(r, start, "names a class that is not supported");
}

/* Reads a class up to && or its end: the union of its members. */
static gm_status read_members(rewriter *r, int depth, scalar_set *set) {
    while (r->at < r->length && !starts(r, "]") && !starts(r, "&&")) {
        size_t start = r->at;
        uint32_t first, last;
        bool is_class = false;
        if (starts(r, "[:") || starts(r, "[")) {
            if (starts(r, "[:")) {
                GM_TRY(add_posix(r, set));
                continue;
            }
            if (r->caseless)
                return refuse(r, start, "inside a class is not supported with (?i)");
            scalar_set inner = {0};
            bool negated = false;
            gm_status status = read_set(r, depth + 1, &inner, &negated);
            GM_TRY(merge(set, &inner, negated, status));
            continue;
        }
        if (starts(r, "\\")) {
            if (++r->at == r->length)
                return refuse(r, start, "ends the pattern");
            r->at++;
            GM_TRY(add_class_escape(r, start, true, set, &is_class));
            if (is_class) {
                if (starts(r, "-") && r->at + 1 < r->length && r->text[r->at + 1] != ']')
                    return refuse(r, start, "does not begin a range");
                continue;
            }
            r->at--;
            GM_TRY(read_character(r, start, true, &first));
        } else {
            first = next_scalar(r);
        }
        last = first;
        if (starts(r, "-") && r->at + 1 < r->length && r->text[r->at + 1] != ']') {
            r->at++;
            if (starts(r, "[") || starts(r, "&&"))
                return refuse(r, start, "is not a range");
            if (starts(r, "\\") && ++r->at < r->length)
                GM_TRY(read_character(r, start, true, &last));
            else if (r->at < r->length)
                last = next_scalar(r);
        }
        if (last < first)
            return refuse(r, start, "is a range from its end to its start");
        GM_TRY(set_add(set, first, last));
    }
    set_order(set);
    return GM_OK;
}

/* Reads a class, at the bracket, to its end. The set is ordered. */
static gm_status read_set(rewriter *r, int depth, scalar_set *set, bool *negated) {
    size_t start = r->at++;
    if (depth > MAX_DEPTH)
        return refuse(r, start, "nests classes too deep");
    *negated = starts(r, "^");
    r->at += *negated;
    if (starts(r, "]"))
        return refuse(r, start, "is a class that begins with ]");
    GM_TRY(read_members(r, depth, set));
    while (starts(r, "&&")) {
        if (r->caseless)
            return refuse(r, r->at, "is not supported with (?i)");
        r->at += 2;
        scalar_set right = {0};
        gm_status status = read_members(r, depth, &right);
        if (status == GM_OK)
            status = set_intersect(set, &right);
        set_free(&right);
        GM_TRY(status);
    }
    if (r->at >= r->length)
        return refuse(r, start, "is not closed");
    r->at++;
    return GM_OK;
}

/* ---- the pattern ---- */
static void begin_atom(rewriter *r) {
    r->atom = r->out->size;
    r->has_atom = true;
    r->before = 0;
}

static gm_status rewrite_brackets(rewriter *r) {
    scalar_set set = {0};
    bool negated = false;
    begin_atom(r);
    gm_status status = read_set(r, 0, &set, &negated);
    if (status == GM_OK)
        status = put_set(r, &set, negated);
    set_free(&set);
    return status;
}

static gm_status rewrite_word_boundary(rewriter *r, bool negated) {
    scalar_set word = {0};
    const char *parts[] = {
        "(?:(?<=", NULL, negated ? ")(?=" : ")(?!", NULL, ")|(?<!", NULL, negated ? ")(?!" : ")(?=", NULL, "))"};
    gm_status status = property_add_word(false, &word);
    set_order(&word);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == GM_OK; i++)
        status = parts[i] ? put_text(r, parts[i]) : put_set(r, &word, false);
    set_free(&word);
    return status;
}

/* Whether the two characters, or c alone, fold into a sequence of another length, which Oniguruma matches with (?i). */
static bool folds_together(uint32_t before, uint32_t c) {
    uint32_t a = before | 0x20, b = c | 0x20;
    if (before < 0x80 && c < 0x80)
        return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
    return c == 0xDF || c == 0x130 || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587 ||
           (c >= 0x300 && c <= 0x36F) || (c >= 0x1E96 && c <= 0x1E9E) || (c >= 0x1F50 && c <= 0x1FFC) ||
           (c >= 0xFB00 && c <= 0xFB17);
}

static gm_status put_literal(rewriter *r, size_t start, uint32_t c) {
    uint32_t before = r->before;
    if (r->caseless && folds_together(before, c))
        return refuse(r, start, "matches several characters with (?i), which is not supported");
    begin_atom(r);
    r->before = c;
    return put_scalar(r, c);
}

static gm_status rewrite_escape(rewriter *r) {
    size_t start = r->at++;
    if (r->at == r->length)
        return refuse(r, start, "ends the pattern");
    char c = r->text[r->at++];
    if (c == 'b' || c == 'B') {
        begin_atom(r);
        return rewrite_word_boundary(r, c == 'B');
    }
    if (c == 'A' || c == 'z' || c == 'Z') {
        begin_atom(r);
        return bytes_append(r->out, r->text + start, 2);
    }
    scalar_set set = {0};
    bool found;
    begin_atom(r);
    gm_status status = add_class_escape(r, start, false, &set, &found);
    if (status == GM_OK && found) { /* outside brackets a class is not folded */
        set_order(&set);
        status = r->caseless ? put_text(r, "(?-i:") : GM_OK;
        if (status == GM_OK)
            status = put_set(r, &set, false);
        if (status == GM_OK && r->caseless)
            status = put_text(r, ")");
    }
    set_free(&set);
    GM_TRY(status);
    if (found)
        return GM_OK;
    uint32_t literal;
    r->at--;
    GM_TRY(read_character(r, start, false, &literal));
    return put_literal(r, start, literal);
}

static gm_status open_group(rewriter *r, const char *as) {
    if (r->depth == MAX_DEPTH)
        return refuse(r, r->at, "is nested too deep");
    r->groups[r->depth++] = (group){r->out->size, r->caseless, 0};
    r->has_atom = false;
    r->before = 0;
    return put_text(r, as);
}

/* Rewrites (?im-x) or (?im-x:...); Ruby's m is PCRE2's s. Without a colon it applies to the end of the group,
 * alternatives included: a(?i)b|c is a(?i:b|c). */
static gm_status rewrite_options(rewriter *r) {
    size_t start = r->at;
    bool on = true, caseless = r->caseless;
    char options[16] = "(?";
    size_t n = 2;
    for (r->at += 2; r->at < r->length && n < sizeof options - 2; r->at++) {
        char c = r->text[r->at];
        if (c == '-' && on) {
            on = false;
            options[n++] = '-';
        } else if (c == 'i' || c == 'm') {
            if (c == 'i')
                caseless = on;
            options[n++] = c == 'm' ? 's' : c;
        } else {
            break;
        }
    }
    bool scoped = starts(r, ":");
    if (n == 2 || !(scoped || starts(r, ")")))
        return r->at = start, refuse(r, start, "is not supported");
    r->at++;
    options[n++] = ':';
    options[n] = 0;
    if (scoped) {
        GM_TRY(open_group(r, options));
    } else {
        r->has_atom = false;
        r->before = 0;
        r->groups[r->depth - 1].closes++;
        GM_TRY(put_text(r, options));
    }
    r->caseless = caseless;
    return GM_OK;
}

static gm_status rewrite_group(rewriter *r) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (!starts(r, "(?")) {
        GM_TRY(open_group(r, "("));
        r->at++;
        return GM_OK;
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (starts(r, same[i])) {
            GM_TRY(open_group(r, same[i]));
            r->at += strlen(same[i]);
            return GM_OK;
        }
    }
    return rewrite_options(r);
}

static gm_status close_group(rewriter *r) {
    if (r->depth == 1)
        return refuse(r, r->at, "closes no group");
    group *closed = &r->groups[--r->depth];
    for (int i = 0; i < closed->closes; i++)
        GM_TRY(put_text(r, ")"));
    r->atom = closed->atom;
    r->has_atom = true;
    r->before = 0;
    r->caseless = closed->caseless;
    r->at++;
    return put_text(r, ")");
}

/* Puts the last atom with its quantifiers into a group. */
static gm_status wrap_atom(rewriter *r) {
    static const char open[] = "(?:";
    GM_TRY(bytes_reserve(r->out, 4));
    uint8_t *at = r->out->data + r->atom;
    memmove(at + 3, at, r->out->size - r->atom);
    memcpy(at, open, 3);
    r->out->size += 3;
    return put_text(r, ")");
}

static size_t read_number(rewriter *r, uint32_t *out) {
    size_t n = 0;
    for (*out = 0; r->at < r->length && r->text[r->at] >= '0' && r->text[r->at] <= '9' && n < 6; r->at++, n++)
        *out = 10 * *out + (uint32_t)(r->text[r->at] - '0');
    return n;
}

static gm_status put_number(rewriter *r, uint32_t n) {
    char digits[16];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    return bytes_append(r->out, digits + at, sizeof digits - at);
}

/* Rewrites {n}, {n,}, {,m} or {n,m}; any other brace is text. In Ruby's syntax a + after it repeats and is not
 * possessive, and a ? after {n} makes the whole optional. */
static gm_status rewrite_interval(rewriter *r) {
    size_t start = r->at++;
    uint32_t low, high;
    size_t n_low = read_number(r, &low), n_high = 0;
    bool comma = starts(r, ",");
    r->at += comma;
    if (comma)
        n_high = read_number(r, &high);
    if (!starts(r, "}") || n_low + n_high == 0 || !r->has_atom) {
        r->at = start + 1;
        return put_literal(r, start, '{');
    }
    r->at++;
    GM_TRY(put_text(r, "{"));
    GM_TRY(put_number(r, low));
    if (comma)
        GM_TRY(put_text(r, ","));
    if (n_high > 0)
        GM_TRY(put_number(r, high));
    GM_TRY(put_text(r, "}"));
    bool whole = starts(r, "+") || (starts(r, "?") && !comma);
    return whole ? wrap_atom(r) : GM_OK;
}

static gm_status rewrite_next(rewriter *r) {
    size_t start = r->at;
    char c = r->text[r->at];
    switch (c) {
    case '\\': return rewrite_escape(r);
    case '[': return rewrite_brackets(r);
    case '(': return rewrite_group(r);
    case ')': return close_group(r);
    case '{': return rewrite_interval(r);
    case '|':
        r->has_atom = false;
        r->before = 0;
        break;
    case '*':
    case '+':
    case '?': r->before = 0; break;
    case '.':
    case '^':
    case '$': begin_atom(r); break;
    default: return put_literal(r, start, next_scalar(r));
    }
    r->at++;
    return bytes_append(r->out, &c, 1);
}

gm_status pattern_rewrite(const char *pattern, size_t length, byte_buffer *out) {
    rewriter r = {.text = pattern, .length = length, .out = out};
    size_t fault = utf8_check((const uint8_t *)pattern, length);
    if (fault < length)
        return gm_fail(GM_EBADFILE, "tokenizer: a pattern is not UTF-8 at byte %zu", fault);
    r.depth = 1; /* the pattern itself */
    while (r.at < length) {
        if (out->size > MOST_BYTES)
            return refuse(&r, r.at, "makes it too large");
        GM_TRY(rewrite_next(&r));
    }
    if (r.depth > 1)
        return refuse(&r, 0, "has a group that is not closed");
    for (int i = 0; i < r.groups[0].closes; i++)
        GM_TRY(put_text(&r, ")"));
    return GM_OK;
}
