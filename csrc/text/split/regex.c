/* regex.c - see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "text/split/pattern.h"
#include "text/split/regex.h"
#include "text/unicode/unicode.h"

#define OUT_OF_MEMORY PCRE2_ERROR_HEAP_FAILED /* of pcre2_compile */
#define JIT_STACK_FIRST (32 << 10)
#define JIT_STACK_MOST (4 << 20)
/* How much a search may backtrack, and how much more for each byte of the text. A search that needs more is an error:
 * it could take for ever. */
#define STEPS_LEAST 200000
#define STEPS_PER_BYTE 64
#define HEAP_LIMIT_KIB (64 << 10)

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

/* ---- PCRE2 ---- */
static void *pcre_new(size_t bytes, void *unused) { return (void)unused, memory_new(bytes); }
static void pcre_free(void *block, void *unused) { (void)unused, memory_free(block); }

static gm_status compile(regex *r, const byte_buffer *pattern) {
    pcre2_compile_context *context = pcre2_compile_context_create(r->memory);
    if (!context)
        return GM_ENOMEM;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    r->code = pcre2_compile(pattern->data, pattern->size, PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                            &offset, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        char why[200];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return gm_fail(code == OUT_OF_MEMORY ? GM_ENOMEM : GM_EUNSUPPORTED, "tokenizer: pattern '%.300s': %s",
                       r->pattern, why);
    }
    /* Without a JIT the interpreter finds the same matches, slower. */
    code = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return code == PCRE2_ERROR_NOMEMORY ? gm_fail(GM_ENOMEM, "out of memory: a pattern's machine code") : GM_OK;
}

gm_status regex_new(const char *pattern, size_t length, regex **out) {
    *out = NULL;
    regex *r = memory_zeroed(sizeof *r);
    if (!r)
        return GM_ENOMEM;
    byte_buffer rewritten = {0};
    gm_status status = GM_ENOMEM;
    if ((r->pattern = memory_copy_text(pattern, length)))
        status = pattern_rewrite(pattern, length, &rewritten);
    if (status == GM_OK && !(r->memory = pcre2_general_context_create(pcre_new, pcre_free, NULL)))
        status = GM_ENOMEM;
    if (status == GM_OK)
        status = compile(r, &rewritten);
    memory_free(rewritten.data);
    if (status != GM_OK) {
        regex_free(r);
        return status;
    }
    *out = r;
    return GM_OK;
}

void regex_free(regex *r) {
    if (!r)
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
    if (!w)
        return GM_ENOMEM;
    w->match = pcre2_match_data_create(1, r->memory);
    w->context = pcre2_match_context_create(r->memory);
    w->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, r->memory);
    if (!w->match || !w->context || (!w->stack && has_jit())) {
        regex_work_free(w);
        return gm_fail(GM_ENOMEM, "out of memory: the workspace of a pattern");
    }
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    pcre2_set_heap_limit(w->context, HEAP_LIMIT_KIB);
    *out = w;
    return GM_OK;
}

void regex_work_free(regex_work *w) {
    if (!w)
        return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    memory_free(w);
}

gm_status regex_search(const regex *r, regex_work *w, const uint8_t *text, size_t length, size_t at, regex_match *out) {
    uint64_t steps = STEPS_LEAST + (uint64_t)length * STEPS_PER_BYTE;
    pcre2_set_match_limit(w->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    int code = pcre2_match(r->code, text, length, at, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(r->code, text, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->context);
    out->found = code >= 0;
    if (code >= 0) {
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
        out->start = range[0];
        out->end = range[1];
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
                     regex_match *out) {
    for (;;) {
        out->found = false;
        if (walk->at > length)
            return GM_OK;
        GM_TRY(regex_search(r, w, text, length, walk->at, out));
        if (!out->found) {
            walk->at = length + 1;
            return GM_OK;
        }
        if (out->start != out->end || !walk->has_last || out->end != walk->last_end)
            break;
        if (walk->at < length)
            utf8_next(text, &walk->at);
        else
            walk->at++;
    }
    walk->at = walk->last_end = out->end;
    walk->has_last = true;
    return GM_OK;
}
