/* gguf_pre.c - see gguf_pre.h. */
#include "text/load/gguf_pre.h"
#include "text/load/component.h"

enum { PRE_IGNORE_MERGES = 1, PRE_ADD_BOS = 2, PRE_NFC = 4 };
#define MAX_PATTERNS 7 /* of a group, with the NULL at the end */

#define SCANNER(name, pattern) static const char pattern_##name[] = pattern;
#include "text/split/scanners.def"
#undef SCANNER

typedef enum {
#define GROUP(name, flags, ...) GROUP_##name,
#define PRE(name, group)
#include "text/load/gguf_pre.def"
#undef GROUP
#undef PRE
} pre_group;

static const struct {
    int flags;
    const char *patterns[MAX_PATTERNS];
} groups[] = {
#define GROUP(name, flags, ...) {flags, {__VA_ARGS__}},
#define PRE(name, group)
#include "text/load/gguf_pre.def"
#undef GROUP
#undef PRE
};

static const struct {
    const char *name;
    pre_group group;
} names[] = {
#define GROUP(name, flags, ...)
#define PRE(name, group) {name, GROUP_##group},
#include "text/load/gguf_pre.def"
#undef GROUP
#undef PRE
};
enum { N_NAMES = sizeof names / sizeof names[0] };

static gm_status add_split(pretokenizer *p, const char *pattern) {
    pretokenize_step *step = &p->steps[p->n_steps++]; /* freed with the tokenizer, also after errors */
    step->match = MATCH_SCANNER;
    step->scanner = scanner_for(pattern, strlen(pattern));
    if (step->scanner != SCANNER_NONE)
        return GM_OK;
    step->match = MATCH_REGEX;
    return regex_new(pattern, strlen(pattern), &step->regex);
}

bool gm_gguf_pre_type(size_t i, gm_gguf_pre *out) {
    if (i >= N_NAMES)
        return false;
    int flags = groups[names[i].group].flags;
    *out = (gm_gguf_pre){names[i].name, groups[names[i].group].patterns, (flags & PRE_NFC) != 0,
                         (flags & PRE_IGNORE_MERGES) != 0, (flags & PRE_ADD_BOS) != 0};
    return true;
}

static gm_status refuse(const char *path, const char *name, size_t length) {
    byte_buffer known = {0};
    gm_status status = GM_OK;
    for (size_t i = 0; i < N_NAMES && status == GM_OK; i++) {
        status = bytes_append(&known, i == 0 ? "" : ", ", i == 0 ? 0 : 2);
        if (status == GM_OK)
            status = bytes_append(&known, names[i].name, strlen(names[i].name));
    }
    if (status == GM_OK)
        status = gm_fail(GM_EUNSUPPORTED, "%s: tokenizer.ggml.pre '%.*s' is not supported, expected one of %.*s", path,
                         length < 64 ? (int)length : 64, name, (int)known.size, (const char *)known.data);
    memory_free(known.data);
    return status;
}

gm_status gguf_pre(gm_tokenizer *t, const char *path, const char *name, size_t length, bool *add_bos) {
    gm_gguf_pre pre;
    size_t i = 0;
    while (gm_gguf_pre_type(i, &pre) && !(strlen(pre.name) == length && memcmp(pre.name, name, length) == 0))
        i++;
    if (i == N_NAMES)
        return refuse(path, name, length);
    for (int k = 0; pre.patterns[k]; k++)
        GM_TRY(add_split(&t->pretokenizer, pre.patterns[k]));
    t->pretokenizer.byte_level = true;
    t->model.bpe.ignore_merges = pre.ignore_merges;
    *add_bos = pre.add_bos;
    return pre.nfc ? component_literal(t, component_normalizer, "{\"type\":\"NFC\"}") : GM_OK;
}
