/* regex.c - see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "text/regex.h"

#define OUT_OF_MEMORY PCRE2_ERROR_HEAP_FAILED    /* of pcre2_compile */
#define JIT_STACK_FIRST (32 << 10)
#define JIT_STACK_MOST (4 << 20)

struct regex {
    pcre2_code *code;
    char *pattern;
    pcre2_general_context *memory;
};

struct regex_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- classes ---- */
/* A scalar is a member when (class & mask) == value. */
typedef struct { const char *name; unsigned mask, value; } class_name;
static const class_name class_names[] = {
    { "L", CLASS_LETTER, CLASS_LETTER },
    { "N", CLASS_NUMBER, CLASS_NUMBER },
    { "M", CLASS_MARK, CLASS_MARK },
    { "P", CLASS_PUNCTUATION, CLASS_PUNCTUATION },
    { "S", CLASS_SYMBOL, CLASS_SYMBOL },
    { "Lu", CLASS_LETTER | CLASS_UPPER | CLASS_LOWER | CLASS_TITLE, CLASS_LETTER | CLASS_UPPER },
    { "Ll", CLASS_LETTER | CLASS_UPPER | CLASS_LOWER, CLASS_LETTER | CLASS_LOWER },
    { "Lt", CLASS_TITLE, CLASS_TITLE },
    { "Lm", CLASS_MODIFIER, CLASS_MODIFIER },
    { "Lo", CLASS_LETTER | CLASS_UPPER | CLASS_LOWER | CLASS_MODIFIER, CLASS_LETTER | CLASS_UPPER | CLASS_LOWER },
    { "Nd", CLASS_DIGIT, CLASS_DIGIT },
    { "Han", CLASS_HAN, CLASS_HAN },
};
static const class_name class_space = { "s", CLASS_SPACE, CLASS_SPACE };
static const class_name class_digit = { "d", CLASS_DIGIT, CLASS_DIGIT };
static const class_name class_word = { "w", CLASS_WORD, CLASS_WORD };

/* Oniguruma's \w against CLASS_WORD: it has the superscripts and fractions of Latin-1, and not the two joiners. */
static bool is_member(const class_name *name, uint32_t c) {
    if (name == &class_word && (c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE)))
        return true;
    if (name == &class_word && (c == 0x200C || c == 0x200D))
        return false;
    return (unicode_class(c) & name->mask) == name->value;
}

static gm_status put_text(byte_buffer *out, const char *text) { return bytes_append(out, text, strlen(text)); }

static gm_status put_scalar(byte_buffer *out, uint32_t c) {
    static const char digits[] = "0123456789abcdef";
    char text[16] = "\\x{";
    size_t n = 3;
    for (int shift = 20; shift >= 0; shift -= 4)
        text[n++] = digits[c >> shift & 15];
    text[n++] = '}';
    return bytes_append(out, text, n);
}

/* The members (or, negated, the others) as ranges that fit inside brackets. */
static gm_status put_ranges(byte_buffer *out, const class_name *name, bool negated) {
    uint32_t start = 0;
    bool inside = false;
    for (uint32_t c = 0; c <= 0x110000; c++) {
        bool in = c < 0x110000 && !(c >= 0xD800 && c < 0xE000) && is_member(name, c) != negated;
        if (in && !inside)
            start = c;
        if (!in && inside) {
            GM_TRY(put_scalar(out, start));
            GM_TRY(put_text(out, "-"));
            GM_TRY(put_scalar(out, c - 1));
        }
        inside = in;
    }
    return GM_OK;
}

static gm_status put_class(byte_buffer *out, const class_name *name, bool negated, bool inside_brackets) {
    if (inside_brackets)
        return put_ranges(out, name, negated);
    GM_TRY(put_text(out, negated ? "[^" : "["));
    GM_TRY(put_ranges(out, name, false));
    return put_text(out, "]");
}

/* ---- the pattern ---- */
typedef struct { const char *text; size_t length, at; byte_buffer out; } rewriter;

static gm_status refuse(const rewriter *r, size_t start, const char *why) {
    size_t n = r->length - start;
    return gm_fail(GM_EUNSUPPORTED, "tokenizer: pattern '%.*s': '%.*s' %s", r->length < 300 ? (int)r->length : 300,
                   r->text, n < 12 ? (int)n : 12, r->text + start, why);
}

static bool starts(const rewriter *r, const char *what) {
    size_t n = strlen(what);
    return r->length - r->at >= n && memcmp(r->text + r->at, what, n) == 0;
}

/* \p{..}, \p{^..}, \P{..}: at the brace. */
static gm_status rewrite_property(rewriter *r, size_t start, bool negated, bool inside) {
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
    size_t n = r->at - name;
    for (size_t i = 0; i < sizeof class_names / sizeof class_names[0] && r->at < r->length; i++) {
        if (strlen(class_names[i].name) == n && memcmp(class_names[i].name, r->text + name, n) == 0) {
            r->at++;
            return put_class(&r->out, &class_names[i], negated, inside);
        }
    }
    return refuse(r, start, "names a class that is not supported");
}

static gm_status rewrite_word_boundary(rewriter *r, bool negated) {
    byte_buffer word = { 0 };
    gm_status status = put_class(&word, &class_word, false, false);
    if (status == GM_OK)
        status = bytes_append(&word, "", 1);
    const char *w = (const char *)word.data;
    const char *parts[] = { "(?:(?<=", w, negated ? ")(?=" : ")(?!", w, ")|(?<!", w, negated ? ")(?!" : ")(?=", w,
                            "))" };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == GM_OK; i++)
        status = put_text(&r->out, parts[i]);
    memory_free(word.data);
    return status;
}

/* \x41, \x{41}, \u0041: at the digits. */
static gm_status rewrite_hex(rewriter *r, size_t start, char kind) {
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
    if (!closed || !whole || c > 0x10FFFF || (kind == 'x' && !braces && c > 0x7F))
        return refuse(r, start, "is not a character");
    r->at += braces;
    return put_scalar(&r->out, c);
}

static gm_status rewrite_escape(rewriter *r, bool inside) {
    size_t start = r->at++;
    if (r->at == r->length)
        return refuse(r, start, "ends the pattern");
    char c = r->text[r->at++];
    switch (c) {
    case 'p':
    case 'P':
        return rewrite_property(r, start, c == 'P', inside);
    case 's':
    case 'S':
        return put_class(&r->out, &class_space, c == 'S', inside);
    case 'd':
    case 'D':
        return put_class(&r->out, &class_digit, c == 'D', inside);
    case 'w':
    case 'W':
        return put_class(&r->out, &class_word, c == 'W', inside);
    case 'x':
    case 'u':
        return rewrite_hex(r, start, c);
    case 'v':
        return put_scalar(&r->out, 0x0B);
    case 'b':
    case 'B':
        if (!inside)
            return rewrite_word_boundary(r, c == 'B');
        break;
    case 'A':
    case 'z':
    case 'Z':
        if (!inside)
            return bytes_append(&r->out, r->text + start, 2);
        break;
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        return bytes_append(&r->out, r->text + start, 2);
    default:
        if (strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c) != NULL)
            return bytes_append(&r->out, r->text + start, 2);
        if ((uint8_t)c >= 0x80)    /* an escaped scalar is itself */
            return bytes_append(&r->out, r->text + start + 1, 1);
    }
    return refuse(r, start, "is not supported");
}

static gm_status rewrite_brackets(rewriter *r) {
    size_t start = r->at++;
    GM_TRY(put_text(&r->out, "["));
    if (starts(r, "^")) {
        GM_TRY(put_text(&r->out, "^"));
        r->at++;
    }
    bool first = true;
    for (; r->at < r->length && (first || r->text[r->at] != ']'); first = false) {
        if (starts(r, "[") || (first && starts(r, "]")))
            return refuse(r, r->at, "inside a class is not supported");
        if (starts(r, "&&"))
            return refuse(r, r->at, "(class intersection) is not supported");
        if (starts(r, "\\"))
            GM_TRY(rewrite_escape(r, true));
        else
            GM_TRY(bytes_append(&r->out, r->text + r->at++, 1));
    }
    if (r->at == r->length)
        return refuse(r, start, "is not closed");
    r->at++;
    return put_text(&r->out, "]");
}

static gm_status rewrite_group(rewriter *r) {
    static const char *const same[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)" };
    if (!starts(r, "(?")) {
        r->at++;
        return put_text(&r->out, "(");
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (starts(r, same[i])) {
            r->at += strlen(same[i]);
            return put_text(&r->out, same[i]);
        }
    }
    return refuse(r, r->at, "is not supported");
}

static gm_status rewrite(rewriter *r) {
    while (r->at < r->length) {
        char c = r->text[r->at];
        if (c == '\\')
            GM_TRY(rewrite_escape(r, false));
        else if (c == '[')
            GM_TRY(rewrite_brackets(r));
        else if (c == '(')
            GM_TRY(rewrite_group(r));
        else if (starts(r, "{,") || starts(r, "}+"))
            return refuse(r, r->at, "means different things in different engines");
        else
            GM_TRY(bytes_append(&r->out, r->text + r->at++, 1));
    }
    return GM_OK;
}

/* ---- PCRE2 ---- */
static void *pcre_new(size_t bytes, void *unused) { return (void)unused, memory_new(bytes); }
static void pcre_free(void *block, void *unused) { (void)unused, memory_free(block); }

static gm_status compile(regex *r, const byte_buffer *pattern) {
    pcre2_compile_context *context = pcre2_compile_context_create(r->memory);
    if (context == NULL)
        return GM_ENOMEM;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    r->code = pcre2_compile(pattern->data, pattern->size, PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                            &offset, context);
    pcre2_compile_context_free(context);
    if (r->code == NULL) {
        char why[200];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return gm_fail(code == OUT_OF_MEMORY ? GM_ENOMEM : GM_EUNSUPPORTED, "tokenizer: pattern '%.300s': %s",
                       r->pattern, why);
    }
    /* Where there is no JIT the interpreter runs: slower, the same matches. */
    code = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return code == PCRE2_ERROR_NOMEMORY ? gm_fail(GM_ENOMEM, "out of memory: a pattern's machine code") : GM_OK;
}

gm_status regex_new(const char *pattern, size_t length, regex **out) {
    *out = NULL;
    regex *r = memory_zeroed(sizeof *r);
    if (r == NULL)
        return GM_ENOMEM;
    rewriter rewritten = { .text = pattern, .length = length };
    gm_status status = GM_ENOMEM;
    if ((r->pattern = memory_copy_text(pattern, length)) != NULL)
        status = rewrite(&rewritten);
    if (status == GM_OK && (r->memory = pcre2_general_context_create(pcre_new, pcre_free, NULL)) == NULL)
        status = GM_ENOMEM;
    if (status == GM_OK)
        status = compile(r, &rewritten.out);
    memory_free(rewritten.out.data);
    if (status != GM_OK) {
        regex_free(r);
        return status;
    }
    *out = r;
    return GM_OK;
}

void regex_free(regex *r) {
    if (r == NULL)
        return;
    pcre2_code_free(r->code);
    pcre2_general_context_free(r->memory);
    memory_free(r->pattern);
    memory_free(r);
}

static bool has_jit(void) {
    uint32_t yes = 0;
    return pcre2_config(PCRE2_CONFIG_JIT, &yes) >= 0 && yes != 0;
}

gm_status regex_work_new(const regex *r, regex_work **out) {
    *out = NULL;
    regex_work *w = memory_zeroed(sizeof *w);
    if (w == NULL)
        return GM_ENOMEM;
    w->match = pcre2_match_data_create(1, r->memory);
    w->context = pcre2_match_context_create(r->memory);
    w->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, r->memory);
    if (w->match == NULL || w->context == NULL || (w->stack == NULL && has_jit())) {
        regex_work_free(w);
        return gm_fail(GM_ENOMEM, "out of memory: what a pattern needs to run");
    }
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    *out = w;
    return GM_OK;
}

void regex_work_free(regex_work *w) {
    if (w == NULL)
        return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    memory_free(w);
}

gm_status regex_search(const regex *r, regex_work *w, const uint8_t *text, size_t length, size_t at,
                       size_t *start, size_t *end, bool *found) {
    int code = pcre2_match(r->code, text, length, at, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(r->code, text, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->context);
    *found = code >= 0;
    if (code >= 0) {
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
        *start = range[0];
        *end = range[1];
        return GM_OK;
    }
    if (code == PCRE2_ERROR_NOMATCH)
        return GM_OK;
    char why[200];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return gm_fail(code == PCRE2_ERROR_NOMEMORY ? GM_ENOMEM : GM_EUNSUPPORTED,
                   "tokenizer: pattern '%.300s' on %zu bytes: %s", r->pattern, length, why);
}

gm_status regex_next(const regex *r, regex_work *w, const uint8_t *text, size_t length, regex_walk *walk,
                     size_t *start, size_t *end, bool *found) {
    for (;;) {
        *found = false;
        if (walk->at > length)
            return GM_OK;
        GM_TRY(regex_search(r, w, text, length, walk->at, start, end, found));
        if (!*found) {
            walk->at = length + 1;
            return GM_OK;
        }
        if (*start != *end || !walk->has_last || *end != walk->last_end)
            break;
        if (walk->at < length)
            utf8_next(text, &walk->at);
        else
            walk->at++;
    }
    walk->at = walk->last_end = *end;
    walk->has_last = true;
    return GM_OK;
}
