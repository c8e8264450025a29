/* json.c - the pull reader: one pass over the text, exactly RFC 8259.
 * Every string is checked when it is read (UTF-8, escapes, surrogate pairs), so that resolving it later cannot fail. */
#include "base/json.h"
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

enum { IN_ARRAY, IN_OBJECT, AWAITS_VALUE }; /* what json_reader.stack holds */

void json_open(json_reader *r, const char *text, size_t length, const char *name) {
    *r = (json_reader){.text = text, .at = text, .end = text + length, .name = name};
}

/* ---- errors ---- */

static json_token fail_at(json_reader *r, const char *at, const char *what) {
    r->failed = true;
    r->type = JSON_ERROR;
    gm_fail(GM_EBADFILE, "%s: byte %zu: %s", r->name, (size_t)(at - r->text), what);
    return JSON_ERROR;
}

gm_status json_fail(json_reader *r, const char *format, ...) {
    char text[512];
    if (r->failed)
        return GM_EBADFILE;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_at(r, r->token ? r->token : r->at, text);
    return GM_EBADFILE;
}

/* ---- strings ---- */

/* The first byte of a string that is a quote, a backslash, a control character or above 0x7F. */
static const char *skip_plain(const char *at, const char *end) {
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    while (end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
        /* The lowest flag is exact: a borrow sets only flags above it. */
        uint64_t stop = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | (word - ones * 0x20) | word) & tops;
        if (stop) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return at + (__builtin_ctzll(stop) >> 3);
#else
            break;
#endif
        }
        at += 8;
    }
    while (at < end && (unsigned char)*at >= 0x20 && (unsigned char)*at < 0x80 && *at != '"' && *at != '\\')
        at++;
    return at;
}

static bool is_continuation(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

/* Length of the well-formed UTF-8 sequence (not ASCII) at `at`: shortest form, no surrogates. 0 if there is none. */
static size_t utf8_length(const char *at, const char *end) {
    unsigned char lead = (unsigned char)at[0];
    size_t left = (size_t)(end - at);
    if (lead < 0xC2 || lead > 0xF4 || left < 2 || !is_continuation(at[1]))
        return 0;
    if (lead < 0xE0)
        return 2;
    unsigned char second = (unsigned char)at[1];
    if (left < 3 || !is_continuation(at[2]))
        return 0;
    if (lead < 0xF0)
        return (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ? 0 : 3;
    if (left < 4 || !is_continuation(at[3]))
        return 0;
    return (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F) ? 0 : 4;
}

/* Four hexadecimal digits, or -1. */
static int32_t hex4(const char *at, const char *end) {
    int32_t value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Length of the escape at the backslash `at`, with its character in *code; 0 when it is invalid. */
static size_t read_escape(const char *at, const char *end, uint32_t *code) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (end - at < 2)
        return 0;
    if (at[1] != 'u') {
        const char *letter = at[1] ? strchr(letters, at[1]) : NULL;
        if (!letter)
            return 0;
        *code = (unsigned char)meant[letter - letters];
        return 2;
    }
    int32_t first = hex4(at + 2, end);
    if (first < 0)
        return 0;
    *code = (uint32_t)first;
    if (first < 0xD800 || first > 0xDFFF)
        return 6;
    if (first > 0xDBFF || end - at < 12 || at[6] != '\\' || at[7] != 'u')
        return 0;
    int32_t second = hex4(at + 8, end);
    if (second < 0xDC00 || second > 0xDFFF)
        return 0;
    *code = 0x10000u + (((uint32_t)first - 0xD800u) << 10) + ((uint32_t)second - 0xDC00u);
    return 12;
}

static size_t utf8_write(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)((0xF00 >> n) | code);
    return n;
}

/* Reads the string whose opening quote is at r->at, as a key or a value. */
static json_token read_string(json_reader *r, json_token type) {
    const char *at = r->at + 1;
    r->token = at;
    r->escaped = false;
    for (;;) {
        at = skip_plain(at, r->end);
        if (at == r->end)
            return fail_at(r, r->at, "the text ends inside this string");
        if (*at == '"')
            break;
        if (*at == '\\') {
            uint32_t code;
            size_t n = read_escape(at, r->end, &code);
            if (n == 0)
                return fail_at(r, at, "an invalid escape, or half of a surrogate pair");
            r->escaped = true;
            at += n;
        } else if ((unsigned char)*at < 0x20) {
            return fail_at(r, at, "a control character inside a string, expected an escape");
        } else {
            do {
                size_t n = utf8_length(at, r->end);
                if (n == 0)
                    return fail_at(r, at, "bytes that are not UTF-8");
                at += n;
            } while (at < r->end && (unsigned char)*at >= 0x80);
        }
    }
    r->token_length = (size_t)(at - r->token);
    r->at = at + 1;
    return r->type = type;
}

/* Resolves one piece of the string at *at: a run of plain bytes, or an escape's character in `scratch`. */
static size_t next_piece(const char **at, const char *end, char scratch[4], const char **piece) {
    if (**at == '\\') {
        uint32_t code = 0;
        *at += read_escape(*at, end, &code);
        *piece = scratch;
        return utf8_write(code, scratch);
    }
    const char *stop = memchr(*at, '\\', (size_t)(end - *at));
    if (!stop)
        stop = end;
    size_t n = (size_t)(stop - *at);
    *piece = *at;
    *at = stop;
    return n;
}

bool json_is(const json_reader *r, const char *text) {
    size_t length = strlen(text);
    const char *at = r->token, *end = at + r->token_length, *piece;
    char scratch[4];
    if (r->type != JSON_KEY && r->type != JSON_STRING)
        return false;
    if (!r->escaped)
        return length == r->token_length && memcmp(at, text, length) == 0;
    while (at < end) {
        size_t n = next_piece(&at, end, scratch, &piece);
        if (n > length || memcmp(piece, text, n) != 0)
            return false;
        text += n;
        length -= n;
    }
    return length == 0;
}

size_t json_string_length(const json_reader *r) {
    const char *at = r->token, *end = at + r->token_length, *piece;
    char scratch[4];
    size_t length = 0;
    if (!r->escaped)
        return r->token_length;
    while (at < end)
        length += next_piece(&at, end, scratch, &piece);
    return length;
}

void json_string_copy(const json_reader *r, char *out) {
    const char *at = r->token, *end = at + r->token_length, *piece;
    char scratch[4];
    if (!r->escaped) {
        memcpy(out, at, r->token_length);
        return;
    }
    while (at < end) {
        size_t n = next_piece(&at, end, scratch, &piece);
        memcpy(out, piece, n);
        out += n;
    }
}

char *json_string_new(const json_reader *r, size_t *length) {
    size_t n = json_string_length(r);
    char *copy = memory_new(n + 1);
    if (!copy)
        return NULL;
    json_string_copy(r, copy);
    copy[n] = 0;
    if (length)
        *length = n;
    return copy;
}

/* ---- numbers ---- */

static const char *skip_digits(const char *at, const char *end) {
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static json_token read_number(json_reader *r) {
    const char *at = r->at, *end = r->end, *digits;
    r->token = at;
    if (*at == '-')
        at++;
    digits = at;
    at = skip_digits(at, end);
    if (at == digits || (*digits == '0' && at - digits > 1))
        return fail_at(r, r->token, "a malformed number");
    if (at < end && *at == '.') {
        digits = at + 1;
        at = skip_digits(digits, end);
        if (at == digits)
            return fail_at(r, r->token, "a number without digits after its decimal point");
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        digits = at;
        at = skip_digits(digits, end);
        if (at == digits)
            return fail_at(r, r->token, "a number without digits in its exponent");
    }
    r->token_length = (size_t)(at - r->token);
    r->at = at;
    return r->type = JSON_NUMBER;
}

gm_status json_int(json_reader *r, int64_t *out) {
    const char *at = r->token, *end = at + r->token_length;
    if (r->type != JSON_NUMBER)
        return json_fail(r, "expected an integer");
    bool negative = *at == '-';
    int64_t value = 0;
    for (at += negative; at < end; at++) {
        if (*at < '0' || *at > '9')
            return json_fail(r, "a number with a fraction or an exponent, expected an integer");
        int digit = *at - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return json_fail(r, "an integer that does not fit in 64 bits");
    }
    *out = value;
    return GM_OK;
}

/* False unless the digits and the power of ten are both exact in a double, so that one operation rounds correctly. */
static bool exact_double(const char *at, const char *end, double *out) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    bool negative = *at == '-';
    uint64_t digits = 0;
    int power = 0;
    bool fraction = false;
    if (end - at > 18)
        return false; /* so that no sum below can overflow */
    for (at += negative; at < end && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        digits = digits * 10 + (uint64_t)(*at - '0');
        power -= fraction;
    }
    if (at < end) {
        bool down = *++at == '-';
        int exponent = 0;
        for (at += *at == '-' || *at == '+'; at < end; at++) {
            exponent = exponent * 10 + (*at - '0');
            if (exponent > 1000)
                return false;
        }
        power += down ? -exponent : exponent;
    }
    if (digits >> 53 || power < -22 || power > 22)
        return false;
    double value = power < 0 ? (double)digits / powers[-power] : (double)digits * powers[power];
    *out = negative ? -value : value;
    return true;
}

gm_status json_double(json_reader *r, double *out) {
    if (r->type != JSON_NUMBER)
        return json_fail(r, "expected a number");
    if (exact_double(r->token, r->token + r->token_length, out))
        return GM_OK;
    locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* the program's locale may have a decimal comma */
    char *copy = memory_copy_text(r->token, r->token_length);
    if (!copy || !locale) {
        memory_free(copy);
        return locale ? GM_ENOMEM : gm_fail(GM_ENOMEM, "out of memory: no C locale");
    }
    *out = strtod_l(copy, NULL, locale);
    memory_free(copy);
    freelocale(locale);
    return isinf(*out) ? json_fail(r, "a number too large for a double") : GM_OK;
}

/* ---- tokens ---- */

/* Indented files are half spaces, so eight are skipped at a time. */
static inline const char *after_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
        for (uint64_t word; end - at >= 8; at += 8) {
            memcpy(&word, at, 8);
            word ^= 0x2020202020202020u;
            if (word == 0)
                continue;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            at += __builtin_ctzll(word) >> 3;
#endif
            break;
        }
    }
    return at;
}

static inline void skip_space(json_reader *r) { r->at = after_space(r->at, r->end); }

static json_token begin(json_reader *r, json_token type) {
    if (r->depth == JSON_MAX_DEPTH)
        return fail_at(r, r->at, "nested deeper than 128 levels");
    r->token = r->at++;
    r->token_length = 1;
    r->stack[r->depth++] = type == JSON_OBJECT ? IN_OBJECT : IN_ARRAY;
    r->need_comma = false;
    return r->type = type;
}

static json_token finish(json_reader *r, json_token type) {
    r->token = r->at++;
    r->token_length = 1;
    r->depth--;
    r->need_comma = true;
    return r->type = type;
}

static json_token read_word(json_reader *r, const char *word, json_token type) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
        return fail_at(r, r->at, "expected a value");
    r->token = r->at;
    r->token_length = n;
    r->at += n;
    return r->type = type;
}

static json_token read_value(json_reader *r) {
    if (r->at == r->end)
        return fail_at(r, r->at, "the text ends, expected a value");
    if (r->depth > 0 && r->stack[r->depth - 1] == AWAITS_VALUE)
        r->stack[r->depth - 1] = IN_OBJECT;
    r->need_comma = true;
    switch (*r->at) {
    case '{': return begin(r, JSON_OBJECT);
    case '[': return begin(r, JSON_ARRAY);
    case '"': return read_string(r, JSON_STRING);
    case 't': return read_word(r, "true", JSON_TRUE);
    case 'f': return read_word(r, "false", JSON_FALSE);
    case 'n': return read_word(r, "null", JSON_NULL);
    default:
        if (*r->at != '-' && (*r->at < '0' || *r->at > '9'))
            return fail_at(r, r->at, "expected a value");
        return read_number(r);
    }
}

static json_token read_key(json_reader *r) {
    if (r->at == r->end || *r->at != '"')
        return fail_at(r, r->at, "expected a key in quotes");
    if (read_string(r, JSON_KEY) == JSON_ERROR)
        return JSON_ERROR;
    skip_space(r);
    if (r->at == r->end || *r->at != ':')
        return fail_at(r, r->at, "expected a colon after the key");
    r->at++;
    r->stack[r->depth - 1] = AWAITS_VALUE;
    return JSON_KEY;
}

json_token json_next(json_reader *r) {
    if (r->failed)
        return JSON_ERROR;
    skip_space(r);
    if (r->depth == 0) {
        if (!r->need_comma)
            return read_value(r);
        if (r->at != r->end)
            return fail_at(r, r->at, "text after the end of the value");
        return r->type = JSON_END;
    }
    int state = r->stack[r->depth - 1];
    if (state == AWAITS_VALUE)
        return read_value(r);
    if (r->at < r->end && *r->at == (state == IN_OBJECT ? '}' : ']'))
        return finish(r, state == IN_OBJECT ? JSON_OBJECT_END : JSON_ARRAY_END);
    if (r->need_comma) {
        if (r->at == r->end || *r->at != ',')
            return fail_at(r, r->at, state == IN_OBJECT ? "expected a comma or }" : "expected a comma or ]");
        r->at++;
        skip_space(r);
    }
    return state == IN_OBJECT ? read_key(r) : read_value(r);
}

/* The quote that ends a string whose text begins at `at`; NULL if an escape, a control character or the end comes
 * first. */
static inline const char *plain_end(const char *at, const char *end) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    for (uint64_t word; end - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
        uint64_t stop = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((word - ones * 0x20) & ~word)) & tops;
        if (stop) {
            at += __builtin_ctzll(stop) >> 3; /* the lowest flag is exact, as in skip_plain */
            return *at == '"' ? at : NULL;
        }
    }
#endif
    while (at < end && (unsigned char)*at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    return at < end && *at == '"' ? at : NULL;
}

static bool is_utf8(const char *at, const char *end) {
    while (at < end) {
        size_t n = (unsigned char)*at < 0x80 ? 1 : utf8_length(at, end);
        if (n == 0)
            return false;
        at += n;
    }
    return true;
}

/* Moves *at past white space and this character; false if another one follows. */
static inline bool skip_to(const char **at, const char *end, char c) {
    *at = after_space(*at, end);
    return *at < end && *(*at)++ == c;
}

bool json_plain_count(json_reader *r, json_text *key, int32_t *count) {
    const char *at = r->at, *end = r->end;
    if (r->failed || r->depth == 0 || r->stack[r->depth - 1] != IN_OBJECT)
        return false;
    if ((r->need_comma && !skip_to(&at, end, ',')) || !skip_to(&at, end, '"'))
        return false;
    const char *stop = plain_end(at, end);
    if (!stop || !is_utf8(at, stop))
        return false;
    *key = (json_text){at, (size_t)(stop - at)};
    at = stop + 1;
    if (!skip_to(&at, end, ':'))
        return false;
    at = after_space(at, end);
    const char *digits = at;
    int32_t value = 0;
    while (at < end && at - digits < 9 && *at >= '0' && *at <= '9')
        value = 10 * value + (*at++ - '0');
    /* The next character must be one that cannot continue a number. */
    if (at == digits || at == end || (*digits == '0' && at - digits > 1) ||
        !(*at == ',' || *at == '}' || *at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        return false;
    *count = value;
    r->token = digits;
    r->token_length = (size_t)(at - digits);
    r->at = at;
    r->need_comma = true;
    r->type = JSON_NUMBER;
    return true;
}

bool json_plain_pair(json_reader *r, json_text pair[2]) {
    const char *at = r->at, *end = r->end;
    if (r->failed || r->depth == 0 || r->depth == JSON_MAX_DEPTH || r->stack[r->depth - 1] != IN_ARRAY)
        return false;
    if ((r->need_comma && !skip_to(&at, end, ',')) || !skip_to(&at, end, '['))
        return false;
    for (int i = 0; i < 2; i++) {
        if ((i > 0 && !skip_to(&at, end, ',')) || !skip_to(&at, end, '"'))
            return false;
        const char *stop = plain_end(at, end);
        if (!stop)
            return false;
        pair[i] = (json_text){at, (size_t)(stop - at)};
        at = stop + 1;
    }
    if (!skip_to(&at, end, ']'))
        return false;
    r->token = at - 1;
    r->token_length = 1;
    r->at = at;
    r->need_comma = true;
    r->type = JSON_ARRAY_END;
    return true;
}

gm_status json_skip(json_reader *r) {
    if (r->failed)
        return GM_EBADFILE;
    if (r->type == JSON_KEY)
        json_next(r);
    if (r->type == JSON_OBJECT || r->type == JSON_ARRAY) {
        int outside = r->depth - 1;
        while (r->depth > outside)
            if (json_next(r) == JSON_ERROR)
                return GM_EBADFILE;
    }
    return r->failed ? GM_EBADFILE : GM_OK;
}

static const char *describe(json_token type) {
    switch (type) {
    case JSON_OBJECT: return "an object";
    case JSON_OBJECT_END: return "the end of the object";
    case JSON_ARRAY: return "an array";
    case JSON_ARRAY_END: return "the end of the array";
    case JSON_KEY: return "a key";
    case JSON_STRING: return "a string";
    case JSON_NUMBER: return "a number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    default: return "the end of the text";
    }
}

/* A reader of a member that was not found has the type JSON_NULL too, but not the token. */
gm_status json_mistyped(json_reader *r, const char *key, const char *expected) {
    const bool missing = r->type == JSON_NULL && (!r->token || *r->token != 'n');
    return json_fail(r, "'%s' is %s, expected %s", key, missing ? "missing" : describe(r->type), expected);
}

gm_status json_expect(json_reader *r, json_token type) {
    json_token got = json_next(r);
    if (got == JSON_ERROR)
        return GM_EBADFILE;
    return got == type ? GM_OK : json_fail(r, "%s, expected %s", describe(got), describe(type));
}
