/* pretokenize.c - see pretokenize.h.
 *  (1) states[i] has the piece that step i is splitting; its parts are pieces of step i + 1.
 *  (2) A part's bytes are in the text, or in the `changed` buffer of the step that changed them. */
#include "text/split/pretokenize.h"
#include "text/unicode/alphabet.h"
#include "text/unicode/property.h"

void pretokenizer_free(pretokenizer *p) {
    for (int i = 0; i < p->n_steps; i++) {
        pretokenize_step *step = &p->steps[i];
        memory_free(step->space);
        memory_free(step->prefix);
        memory_free(step->text);
        regex_free(step->regex);
    }
    *p = (pretokenizer){0};
}

void pretokenizer_finish(pretokenizer *p, bool text_is_normalized) {
    for (int i = 0; i < p->n_steps; i++)
        p->by_origin = p->by_origin || (p->steps[i].scheme == PREFIX_FIRST && (i > 0 || text_is_normalized));
}

scanner pretokenizer_scanner(const pretokenizer *p) {
    scanner found = SCANNER_NONE;
    for (int i = 0; i < p->n_steps; i++) {
        const pretokenize_step *step = &p->steps[i];
        if (step->space || step->scheme != PREFIX_NEVER || step->alphabet)
            return SCANNER_NONE;
        if (step->match == MATCH_NOTHING)
            continue;
        if (found != SCANNER_NONE || step->match != MATCH_SCANNER || step->behavior != SPLIT_ISOLATED)
            return SCANNER_NONE;
        found = step->scanner;
    }
    return found;
}

void pretokens_free(pretoken_scan *scan) {
    for (int i = 0; i < PRETOKENIZE_MAX_STEPS; i++) {
        text_buffer_free(&scan->states[i].changed);
        regex_work_free(scan->states[i].regex);
    }
}

static bool begins_with(const text_view *text, const char *prefix, size_t length) {
    return text->length >= length && memcmp(text->bytes, prefix, length) == 0;
}

static gm_status write_alphabet(text_writer *w) {
    for (size_t at = 0; at < w->in.length; at++) {
        uint8_t bytes[4];
        GM_TRY(text_put(w, bytes, utf8_put(alphabet_char(w->in.bytes[at]), bytes), at));
    }
    return GM_OK;
}

/* Changes the piece's text as the step requires. */
static gm_status change_text(split_state *s, const pretokenize_step *step, text_view *text) {
    text_writer w;
    if (step->alphabet) {
        text_write(&w, text, &s->changed);
        GM_TRY(write_alphabet(&w));
        return text_written(&w, text);
    }
    bool spaces = step->space && memchr(text->bytes, ' ', text->length);
    bool wants_prefix = step->scheme == PREFIX_ALWAYS || (step->scheme == PREFIX_FIRST && s->first);
    if (wants_prefix) /* unless the piece has it once the spaces are replaced */
        wants_prefix = !(begins_with(text, step->prefix, step->prefix_length) || (spaces && text->bytes[0] == ' '));
    if (!spaces && !wants_prefix)
        return GM_OK;
    text_write(&w, text, &s->changed);
    if (wants_prefix)
        GM_TRY(text_put(&w, step->prefix, step->prefix_length, 0));
    if (spaces)
        GM_TRY(text_replace(&w, " ", 1, step->space, step->space_length));
    else
        GM_TRY(text_keep(&w, text->length));
    return text_written(&w, text);
}

/* Begins to split a non-empty piece. */
static gm_status state_open(split_state *s, const pretokenize_step *step, const text_view *text, bool first) {
    s->text = *text;
    s->first = text->aligned ? text_origin(text, 0, 1).start == 0 : first;
    GM_TRY(change_text(s, step, &s->text));
    if (step->match == MATCH_REGEX && !s->regex)
        GM_TRY(regex_work_new(step->regex, &s->regex));
    s->walk = (regex_walk){0};
    s->has_match = s->has_peeked = false;
    return GM_OK;
}

/* The end of the run at `at` of characters that have a class of the mask, or have none, as the first one. */
static size_t class_run(const text_view *text, size_t at, unsigned mask) {
    bool wanted = (unicode_class(utf8_next(text->bytes, &at)) & mask) != 0;
    while (at < text->length) {
        size_t after = at;
        unsigned class = unicode_class(utf8_next(text->bytes, &after));
        if (((class & mask) != 0) != wanted || (!wanted && (class & CLASS_SPACE)))
            break;
        at = after;
    }
    return at;
}

static size_t script_run(const text_view *text, size_t at, unsigned script) {
    while (at < text->length) {
        size_t after = at;
        unsigned next = property_split_script(utf8_next(text->bytes, &after));
        if (next != 0 && next != script)
            break;
        at = after;
    }
    return at;
}

/* The end of the match at `at`, or `at` if there is none. c is the character at `at`, `after` its end. */
static size_t match_here(const pretokenize_step *step, const text_view *text, size_t at, uint32_t c, size_t after) {
    bool one = false;
    unsigned script;
    switch (step->match) {
    case MATCH_SCANNER: return scanner_match(step->scanner, text->bytes, text->length, at);
    case MATCH_DIGIT: one = (unicode_class(c) & CLASS_NUMERIC) != 0; break;
    case MATCH_SPACE: one = (unicode_class(c) & CLASS_SPACE) != 0; break;
    case MATCH_PUNCTUATION: one = (unicode_trait(c) & TRAIT_PUNCTUATION) != 0; break;
    case MATCH_WORD: return unicode_class(c) & CLASS_SPACE ? at : class_run(text, at, CLASS_WORD);
    case MATCH_LENGTH:
        for (size_t n = 1; n < step->n_chars && after < text->length; n++)
            utf8_next(text->bytes, &after);
        return after;
    case MATCH_SCRIPT: script = property_split_script(c); return script == 0 ? at : script_run(text, after, script);
    case MATCH_NOTHING:
    case MATCH_REGEX:
    case MATCH_TEXT: break;
    }
    return one ? after : at;
}

static bool find_here(const pretokenize_step *step, const split_state *s, size_t *start, size_t *end) {
    for (size_t at = s->walk.at; at < s->text.length;) {
        size_t after = at;
        uint32_t c = utf8_next(s->text.bytes, &after);
        *end = match_here(step, &s->text, at, c, after);
        if (*end > at) {
            *start = at;
            return true;
        }
        at = after;
    }
    return false;
}

/* Finds the next gap or match; GM_END after the last one. */
static gm_status next_raw(const pretokenize_step *step, split_state *s, split_part *part) {
    if (s->has_match) {
        s->has_match = false;
        *part = s->match;
        return GM_OK;
    }
    const size_t done = s->walk.last_end;
    regex_match m = {0};
    if (step->match == MATCH_REGEX) {
        GM_TRY(regex_next(step->regex, s->regex, s->text.bytes, s->text.length, &s->walk, &m));
    } else if (step->match == MATCH_TEXT) {
        const uint8_t *text = s->text.bytes,
                      *hit = memmem(text + done, s->text.length - done, step->text, step->text_length);
        m.found = hit != NULL;
        m.start = hit ? (size_t)(hit - text) : 0;
        m.end = m.start + step->text_length;
    } else if (step->match != MATCH_NOTHING) {
        m.found = find_here(step, s, &m.start, &m.end);
    }
    if (!m.found) {
        s->walk.at = s->text.length + 1;
        s->walk.last_end = s->text.length;
        *part = (split_part){done, s->text.length, step->invert};
        return done < s->text.length ? GM_OK : GM_END;
    }
    s->walk.at = s->walk.last_end = m.end;
    split_part match = {m.start, m.end, !step->invert};
    if (done == m.start) {
        *part = match;
        return GM_OK;
    }
    s->match = match;
    s->has_match = true;
    *part = (split_part){done, m.start, step->invert};
    return GM_OK;
}

/* The next gap or match, first the one that was peeked at. */
static gm_status next_part(const pretokenize_step *step, split_state *s, split_part *part) {
    if (s->has_peeked) {
        s->has_peeked = false;
        *part = s->peeked;
        return GM_OK;
    }
    if (s->walk.at > s->text.length && !s->has_match)
        return GM_END;
    return next_raw(step, s, part);
}

/* Whether `next` joins the piece that ends with `last`. */
static bool joins(split_behavior behavior, split_part last, split_part next) {
    switch (behavior) {
    case SPLIT_CONTIGUOUS: return last.is_match == next.is_match;
    case SPLIT_WITH_PREVIOUS: return !last.is_match && next.is_match;
    case SPLIT_WITH_NEXT: return last.is_match && !next.is_match;
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED: break;
    }
    return false;
}

/* The step's next piece, joined as its behavior requires. */
static gm_status next_piece(const pretokenize_step *step, split_state *s, size_t *start, size_t *end) {
    split_part part;
    do
        GM_TRY(next_part(step, s, &part));
    while (step->behavior == SPLIT_REMOVED && part.is_match);
    *start = part.start;
    *end = part.end;
    while (step->behavior >= SPLIT_CONTIGUOUS) {
        split_part next;
        gm_status status = next_part(step, s, &next);
        if (status == GM_END)
            break;
        GM_TRY(status);
        if (!joins(step->behavior, part, next)) {
            s->peeked = next;
            s->has_peeked = true;
            break;
        }
        *end = next.end;
        part = next;
    }
    return GM_OK;
}

gm_status pretokens_open(pretoken_scan *scan, const pretokenizer *p, const text_view *text, bool at_start) {
    scan->p = p;
    scan->whole = *text;
    scan->level = text->length > 0 ? 0 : -1;
    return p->n_steps > 0 && text->length > 0 ? state_open(&scan->states[0], &p->steps[0], text, at_start) : GM_OK;
}

gm_status pretokens_next(pretoken_scan *scan, text_view *piece) {
    const pretokenizer *p = scan->p;
    if (p->n_steps == 0) {
        *piece = scan->whole;
        scan->whole.length = 0;
        return piece->length > 0 ? GM_OK : GM_END;
    }
    while (scan->level >= 0) {
        split_state *s = &scan->states[scan->level];
        size_t start, end;
        gm_status status = next_piece(&p->steps[scan->level], s, &start, &end);
        if (status == GM_END) {
            scan->level--;
            continue;
        }
        GM_TRY(status);
        if (start == end)
            continue;
        text_view part = text_slice(&s->text, start, end);
        if (scan->level == p->n_steps - 1) {
            *piece = part;
            return GM_OK;
        }
        scan->level++;
        GM_TRY(state_open(&scan->states[scan->level], &p->steps[scan->level], &part, s->first && start == 0));
    }
    return GM_END;
}
