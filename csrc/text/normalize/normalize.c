/* normalize.c - see normalize.h. */
#include "text/normalize/normalize.h"
#include "text/unicode/alphabet.h"

void normalize_step_free(normalize_step *step) {
    memory_free(step->from);
    memory_free(step->to);
    regex_free(step->regex);
    charsmap_free(step->charsmap);
}

gm_status normalizer_add(normalizer *n, normalize_step step) {
    if (grow_array(&n->steps, n->n_steps, &n->capacity, 1, sizeof *n->steps) != GM_OK) {
        normalize_step_free(&step);
        return GM_ENOMEM;
    }
    n->steps[n->n_steps++] = step;
    return GM_OK;
}

void normalizer_free(normalizer *n) {
    for (size_t i = 0; i < n->n_steps; i++)
        normalize_step_free(&n->steps[i]);
    memory_free(n->steps);
    *n = (normalizer){0};
}

void normalize_work_free(normalize_work *work) {
    text_buffer_free(&work->buffers[0]);
    text_buffer_free(&work->buffers[1]);
    for (size_t i = 0; i < work->n_regexes; i++)
        regex_work_free(work->regexes[i]);
    memory_free(work->regexes);
}

/* ---- character by character ---- */
static bool is_chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

/* SentencePiece's rules for machine translation drop control characters and make spaces of further characters. */
static int nmt(uint32_t c, uint32_t out[4]) {
    switch (c) {
    case '\t':
    case '\n':
    case '\f':
    case '\r':
    case 0x1680:
    case 0x200B:
    case 0x200C:
    case 0x200D:
    case 0x200E:
    case 0x200F:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xFEFF:
    case 0xFFFD: out[0] = ' '; return 1;
    default: return (c >= 1 && c < ' ') || c == 0x7F || c == 0x8F || c == 0x9F ? 0 : 1;
    }
}

static int byte_level(uint32_t c, uint32_t out[4]) {
    uint8_t bytes[4];
    size_t n = utf8_put(c, bytes);
    for (size_t i = 0; i < n; i++)
        out[i] = alphabet_char(bytes[i]);
    return (int)n;
}

/* Writes what the step makes of a character, up to four, and returns how many. */
static int change_char(normalize_kind kind, uint32_t c, uint32_t out[4]) {
    out[0] = c;
    switch (kind) {
    case NORMALIZE_LOWERCASE:
        if (c < 0x80)
            out[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        else if (unicode_trait(c) & TRAIT_LOWERS)
            return unicode_lower(c, out);
        return 1;
    case NORMALIZE_STRIP_ACCENTS: return unicode_trait(c) & TRAIT_COMBINING ? 0 : 1;
    case NORMALIZE_NONSPACING: return unicode_trait(c) & TRAIT_NONSPACING ? 0 : 1;
    case NORMALIZE_NMT: return nmt(c, out);
    case NORMALIZE_BYTE_LEVEL: return byte_level(c, out);
    case NORMALIZE_CLEAN:
        if (unicode_trait(c) & TRAIT_CONTROL)
            return 0;
        if (unicode_class(c) & CLASS_SPACE)
            out[0] = ' ';
        return 1;
    default: /* NORMALIZE_IDEOGRAPHS */
        if (!is_chinese(c))
            return 1;
        out[0] = out[2] = ' ';
        out[1] = c;
        return 3;
    }
}

/* Finds the next character that changes, from *at to *after, and returns how many characters it becomes. *at is the
 * text's end if there is none. */
static int next_change(normalize_kind kind, const text_view *text, size_t *at, size_t *after, uint32_t out[4]) {
    while (*at < text->length) {
        *after = *at;
        uint32_t c = utf8_next(text->bytes, after);
        int n = change_char(kind, c, out);
        if (n != 1 || out[0] != c)
            return n;
        *at = *after;
    }
    return 0;
}

static gm_status write_chars(normalize_kind kind, text_writer *w, size_t at) {
    while (at < w->in.length) {
        uint32_t out[4];
        size_t after = at, length = 0;
        int n = next_change(kind, &w->in, &at, &after, out);
        GM_TRY(text_keep(w, at));
        if (at == w->in.length)
            break;
        uint8_t bytes[16];
        for (int i = 0; i < n; i++)
            length += utf8_put(out[i], bytes + length);
        GM_TRY(text_put(w, bytes, length, at));
        text_drop(w, after);
        at = after;
    }
    return GM_OK;
}

/* ---- the other steps ---- */
static text_view strip(const normalize_step *step, const text_view *text) {
    size_t start = 0, end = text->length;
    while (step->left && start < end) {
        size_t at = start;
        if (!(unicode_class(utf8_next(text->bytes, &at)) & CLASS_SPACE))
            break;
        start = at;
    }
    while (step->right && end > start) {
        size_t before = utf8_previous(text->bytes, end), at = before;
        if (!(unicode_class(utf8_next(text->bytes, &at)) & CLASS_SPACE))
            break;
        end = before;
    }
    return text_slice(text, start, end);
}

static gm_status replace_matches(const normalize_step *step, regex_work *matcher, text_writer *w) {
    regex_walk walk = {0};
    for (;;) {
        regex_match m;
        GM_TRY(regex_next(step->regex, matcher, w->in.bytes, w->in.length, &walk, &m));
        GM_TRY(text_keep(w, m.found ? m.start : w->in.length));
        if (!m.found)
            return GM_OK;
        text_drop(w, m.end);
        GM_TRY(text_insert(w, step->to, step->to_length));
    }
}

static gm_status regex_for(const normalizer *n, normalize_work *work, size_t i, regex_work **out) {
    if (!work->regexes) {
        work->regexes = memory_zeroed(n->n_steps * sizeof work->regexes[0]);
        if (!work->regexes)
            return GM_ENOMEM;
        work->n_regexes = n->n_steps;
    }
    if (!work->regexes[i])
        GM_TRY(regex_work_new(n->steps[i].regex, &work->regexes[i]));
    *out = work->regexes[i];
    return GM_OK;
}

/* Whether the step may change the text; *at is the first character that changes, for steps that go character by
 * character. */
static bool changes(const normalize_step *step, const text_view *text, size_t *at) {
    uint32_t out[4];
    size_t after;
    *at = 0;
    switch (step->kind) {
    case NORMALIZE_FORM: return !unicode_is_normal(step->form, text->bytes, text->length);
    case NORMALIZE_REPLACE: return step->regex || memmem(text->bytes, text->length, step->from, step->from_length);
    case NORMALIZE_PREPEND:
    case NORMALIZE_CHARSMAP:
    case NORMALIZE_LONGEST:
    case NORMALIZE_STRIP: return true;
    default: next_change(step->kind, text, at, &after, out); return *at < text->length;
    }
}

gm_status normalize(const normalizer *n, normalize_work *work, text_view *view) {
    int next = 0;
    for (size_t i = 0; i < n->n_steps && view->length > 0; i++) {
        const normalize_step *step = &n->steps[i];
        size_t first;
        if (step->kind == NORMALIZE_STRIP)
            *view = strip(step, view);
        if (step->kind == NORMALIZE_STRIP || !changes(step, view, &first))
            continue;
        text_writer w;
        text_write(&w, view, &work->buffers[next]);
        switch (step->kind) {
        case NORMALIZE_FORM: GM_TRY(unicode_normalize(step->form, &w)); break;
        case NORMALIZE_PREPEND:
            GM_TRY(text_put(&w, step->to, step->to_length, 0));
            GM_TRY(text_keep(&w, view->length));
            break;
        case NORMALIZE_REPLACE:
            if (!step->regex) {
                GM_TRY(text_replace(&w, step->from, step->from_length, step->to, step->to_length));
            } else {
                regex_work *matcher;
                GM_TRY(regex_for(n, work, i, &matcher));
                GM_TRY(replace_matches(step, matcher, &w));
            }
            break;
        case NORMALIZE_CHARSMAP: GM_TRY(charsmap_write(step->charsmap, &w)); break;
        case NORMALIZE_LONGEST: GM_TRY(charsmap_write_longest(step->charsmap, &w)); break;
        default: GM_TRY(write_chars(step->kind, &w, first)); break;
        }
        GM_TRY(text_written(&w, view));
        next = 1 - next;
    }
    return GM_OK;
}
