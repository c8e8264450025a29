/* decode.c - see decode.h. feed() passes step i a part of a token; `end` marks the token's last part.
 * A step that needs whole tokens collects the parts; most tokens come in one. */
#include "text/output/decode.h"
#include "text/unicode/alphabet.h"

#define PARTIAL_MOST 256 /* bytes of a Replace's text; a longer one is matched in whole tokens */

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void decode_step_free(decode_step *step) {
    memory_free(step->from);
    memory_free(step->to);
    regex_free(step->regex);
}

gm_status decoder_add(decoder *d, decode_step step) {
    gm_status status = d->n_steps == DECODE_MAX_STEPS
                           ? gm_fail(GM_EUNSUPPORTED, "tokenizer: more than %d decoders in a row", DECODE_MAX_STEPS)
                           : grow_array(&d->steps, d->n_steps, &d->capacity, 1, sizeof *d->steps);
    if (status != GM_OK) {
        decode_step_free(&step);
        return status;
    }
    d->given = true;
    d->steps[d->n_steps++] = step;
    return GM_OK;
}

void decoder_free(decoder *d) {
    for (size_t i = 0; i < d->n_steps; i++)
        decode_step_free(&d->steps[i]);
    memory_free(d->steps);
    *d = (decoder){0};
}

void decode_open(decode_state *s, const decoder *d, bool hold_runs) {
    s->decoder = d;
    s->hold_runs = hold_runs;
}

void decode_free(decode_state *s) {
    for (size_t i = 0; i < s->decoder->n_steps; i++) {
        decode_step_state *state = &s->steps[i];
        memory_free(state->parts.data);
        memory_free(state->held.data);
        memory_free(state->scratch[0].data);
        memory_free(state->scratch[1].data);
        regex_work_free(state->regex);
    }
}

static gm_status feed(decode_state *s, size_t i, const void *text, size_t length, bool end, byte_buffer *out);

/* ---- whole tokens ---- */
/* Appends the text with every `from` replaced; an empty one matches before, between and after all characters. */
static gm_status replace_all(const void *from, size_t from_length, const void *to, size_t to_length,
                             const uint8_t *text, size_t length, byte_buffer *out) {
    size_t at = 0;
    while (from_length == 0 && at < length) {
        size_t start = at;
        utf8_next(text, &at);
        GM_TRY(bytes_append(out, to, to_length));
        GM_TRY(bytes_append(out, text + start, at - start));
    }
    if (from_length == 0)
        return bytes_append(out, to, to_length);
    for (;;) {
        const uint8_t *found = length > at ? memmem(text + at, length - at, from, from_length) : NULL;
        if (!found)
            return bytes_append(out, text + at, length - at);
        GM_TRY(bytes_append(out, text + at, (size_t)(found - text) - at));
        GM_TRY(bytes_append(out, to, to_length));
        at = (size_t)(found - text) + from_length;
    }
}

/* Replaces `from` in *text, which moves to the scratch buffer that it is not in. */
static gm_status replace_in(decode_step_state *state, const void *from, size_t from_length, const void *to,
                            size_t to_length, const uint8_t **text, size_t *length) {
    if (from_length > 0 && (*length == 0 || !memmem(*text, *length, from, from_length)))
        return GM_OK;
    byte_buffer *changed = &state->scratch[*text && *text == state->scratch[0].data];
    changed->size = 0;
    GM_TRY(replace_all(from, from_length, to, to_length, *text, *length, changed));
    GM_TRY(bytes_reserve(changed, 1)); /* not NULL */
    *text = changed->data;
    *length = changed->size;
    return GM_OK;
}

/* The reference's cleanup of English, in this order. */
static gm_status clean_up(decode_step_state *state, const uint8_t **text, size_t *length) {
    static const struct {
        const char *from, *to;
    } marks[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    if (*length == 0 || !memchr(*text, ' ', *length))
        return GM_OK;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        GM_TRY(replace_in(state, marks[i].from, strlen(marks[i].from), marks[i].to, strlen(marks[i].to), text, length));
    return GM_OK;
}

static gm_status wordpiece(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    if (state->n_tokens > 0) {
        if (length >= step->from_length && memcmp(text, step->from, step->from_length) == 0) {
            text += step->from_length;
            length -= step->from_length;
        } else {
            state->scratch[0].size = 0;
            GM_TRY(bytes_append(&state->scratch[0], " ", 1));
            GM_TRY(bytes_append(&state->scratch[0], text, length));
            text = state->scratch[0].data;
            length = state->scratch[0].size;
        }
    }
    if (step->cleanup)
        GM_TRY(clean_up(state, &text, &length));
    return feed(s, i + 1, text, length, true, out);
}

static gm_status ctc(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    byte_buffer *before = &state->held;
    if (state->n_tokens > 0 && before->size == length && memcmp(before->data, text, length) == 0)
        return GM_OK;
    before->size = 0;
    GM_TRY(bytes_reserve(before, length + 1));
    GM_TRY(bytes_append(before, text, length));
    GM_TRY(replace_in(state, step->from, step->from_length, "", 0, &text, &length));
    if (step->cleanup) {
        GM_TRY(clean_up(state, &text, &length));
        GM_TRY(replace_in(state, step->to, step->to_length, " ", 1, &text, &length));
    }
    return length > 0 ? feed(s, i + 1, text, length, true, out) : GM_OK;
}

static gm_status replace_matches(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    regex_walk walk = {0};
    if (!state->regex)
        GM_TRY(regex_work_new(step->regex, &state->regex));
    byte_buffer *changed = &state->scratch[0];
    changed->size = 0;
    while (length > 0) {
        size_t done = walk.last_end;
        regex_match m;
        GM_TRY(regex_next(step->regex, state->regex, text, length, &walk, &m));
        GM_TRY(bytes_append(changed, text + done, (m.found ? m.start : length) - done));
        if (!m.found)
            break;
        GM_TRY(bytes_append(changed, step->to, step->to_length));
    }
    return feed(s, i + 1, changed->data, changed->size, true, out);
}

/* ---- parts of tokens ---- */
/* How many bytes at the text's end may begin a `from`. */
static size_t partial(const decode_step *step, const uint8_t *text, size_t length) {
    size_t most = step->from_length - 1 < length ? step->from_length - 1 : length;
    if (step->from_length > PARTIAL_MOST)
        return length;
    while (most > 0 && memcmp(text + length - most, step->from, most) != 0)
        most--;
    return most;
}

static gm_status replace_text(decode_state *s, size_t i, const uint8_t *text, size_t length, bool end,
                              byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    if (end && state->held.size == 0) {
        GM_TRY(replace_in(state, step->from, step->from_length, step->to, step->to_length, &text, &length));
        return feed(s, i + 1, text, length, true, out);
    }
    GM_TRY(bytes_append(&state->held, text, length));
    GM_TRY(bytes_reserve(&state->held, 1)); /* not NULL */
    text = state->held.data;
    length = state->held.size;
    size_t at = 0;
    for (;;) {
        const uint8_t *found = length > at ? memmem(text + at, length - at, step->from, step->from_length) : NULL;
        if (!found)
            break;
        GM_TRY(feed(s, i + 1, text + at, (size_t)(found - text) - at, false, out));
        GM_TRY(feed(s, i + 1, step->to, step->to_length, false, out));
        at = (size_t)(found - text) + step->from_length;
    }
    size_t kept = end ? 0 : partial(step, text + at, length - at);
    GM_TRY(feed(s, i + 1, text + at, length - at - kept, end, out));
    memmove(state->held.data, text + length - kept, kept);
    state->held.size = kept;
    return GM_OK;
}

/* At most `stop` c's at the end of the part are held back, and dropped if the token ends there. */
static gm_status strip(decode_state *s, size_t i, const uint8_t *text, size_t length, bool end, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    while (!state->inside && length > 0) {
        size_t at = 0;
        state->inside = state->n_dropped == step->start || utf8_next(text, &at) != step->c;
        if (state->inside)
            break;
        state->n_dropped++;
        text += at;
        length -= at;
    }
    size_t stop = length, n_last = 0;
    while (n_last < step->stop && stop > 0) {
        size_t before = utf8_previous(text, stop), at = before;
        if (utf8_next(text, &at) != step->c)
            break;
        n_last++;
        stop = before;
    }
    uint8_t c[4];
    size_t c_length = utf8_put(step->c, c);
    bool all = stop == 0; /* what is held is still at the token's end */
    size_t n_now = all ? state->n_held + n_last : n_last, n_kept = n_now < step->stop ? n_now : step->stop;
    size_t n_given = all ? n_now - n_kept : state->n_held;
    for (size_t k = 0; k < n_given; k++)
        GM_TRY(feed(s, i + 1, c, c_length, false, out));
    state->n_held = n_kept;
    if (!end)
        return feed(s, i + 1, text, stop, false, out);
    state->n_held = state->n_dropped = 0;
    state->inside = false;
    return feed(s, i + 1, text, stop, true, out);
}

static gm_status metaspace(decode_state *s, size_t i, const uint8_t *text, size_t length, bool end, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    uint8_t c[4];
    size_t c_length = utf8_put(step->c, c);
    bool drop = step->drop_first && state->n_tokens == 0;
    GM_TRY(replace_in(state, c, c_length, " ", drop ? 0 : 1, &text, &length));
    return feed(s, i + 1, text, length, end, out);
}

/* Passes on what is held from a suffix on. What replaces a suffix depends on whether another token follows. */
static gm_status suffix_release(decode_state *s, size_t i, bool last, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    const uint8_t *text = state->held.data;
    size_t length = state->held.size;
    if (!state->inside)
        return GM_OK;
    state->inside = false;
    state->held.size = 0;
    GM_TRY(replace_in(state, step->from, step->from_length, " ", last ? 0 : 1, &text, &length));
    return feed(s, i + 1, text, length, true, out);
}

static gm_status suffix(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    const decode_step *step = &s->decoder->steps[i];
    GM_TRY(suffix_release(s, i, false, out));
    const uint8_t *found = step->from_length == 0 ? text
                           : length == 0          ? NULL
                                                  : memmem(text, length, step->from, step->from_length);
    if (!found)
        return feed(s, i + 1, text, length, true, out);
    GM_TRY(feed(s, i + 1, text, (size_t)(found - text), false, out));
    s->steps[i].inside = true;
    return bytes_append(&s->steps[i].held, found, length - (size_t)(found - text));
}

/* ---- bytes ---- */
/* Passes on the complete characters at the start of the held bytes. An invalid part becomes one U+FFFD, or with
 * each_byte one for each of its bytes. */
static gm_status drain(decode_state *s, size_t i, bool each_byte, byte_buffer *out) {
    byte_buffer *held = &s->steps[i].held;
    size_t at = 0, valid = 0; /* [valid, at) is valid and not passed on yet */
    if (held->size == 0)
        return GM_OK;
    while (at < held->size) {
        int step = utf8_step(held->data + at, held->size - at);
        if (step == 0)
            break;
        if (step > 0) {
            at += (size_t)step;
            continue;
        }
        GM_TRY(feed(s, i + 1, held->data + valid, at - valid, false, out));
        for (int k = 0; k < (each_byte ? -step : 1); k++)
            GM_TRY(feed(s, i + 1, replacement, 3, false, out));
        valid = at += (size_t)-step;
    }
    GM_TRY(feed(s, i + 1, held->data + valid, at - valid, false, out));
    memmove(held->data, held->data + at, held->size - at);
    held->size -= at;
    return GM_OK;
}

/* The bytes of a byte-level token. A token with a character outside the alphabet is its own text. */
static gm_status byte_level(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    byte_buffer *held = &s->steps[i].held;
    size_t before = held->size;
    GM_TRY(bytes_reserve(held, length));
    for (size_t at = 0; at < length;) {
        int byte = alphabet_byte(utf8_next(text, &at));
        if (byte < 0) {
            memcpy(held->data + before, text, length);
            held->size = before + length;
            break;
        }
        held->data[held->size++] = (uint8_t)byte;
    }
    return drain(s, i, false, out);
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int decode_byte(const void *text, size_t length) {
    const uint8_t *token = text;
    if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = token[3] == '+' ? 0 : hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* Ends a run of bytes: text if all of it is valid, otherwise one U+FFFD for each byte. */
static gm_status flush(decode_state *s, size_t i, byte_buffer *out) {
    decode_step_state *state = &s->steps[i];
    size_t n = state->held.size;
    bool inside = state->inside; /* a part of the run was passed on */
    state->held.size = 0;
    state->inside = false;
    if (n > 0 && utf8_check(state->held.data, n) == n)
        return feed(s, i + 1, state->held.data, n, true, out);
    for (size_t k = 0; k < n; k++)
        GM_TRY(feed(s, i + 1, replacement, 3, true, out));
    return n == 0 && inside ? feed(s, i + 1, "", 0, true, out) : GM_OK;
}

static gm_status byte_fallback(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    decode_step_state *state = &s->steps[i];
    int byte = decode_byte(text, length);
    if (byte < 0) {
        GM_TRY(flush(s, i, out));
        return feed(s, i + 1, text, length, true, out);
    }
    GM_TRY(bytes_append(&state->held, &(uint8_t){(uint8_t)byte}, 1));
    if (s->hold_runs)
        return GM_OK;
    state->inside = true;
    return drain(s, i, true, out);
}

/* ---- the chain ---- */
/* Feeds a step that needs whole tokens. */
static gm_status feed_whole(decode_state *s, size_t i, const uint8_t *text, size_t length, byte_buffer *out) {
    switch (s->decoder->steps[i].kind) {
    case DECODE_BYTE_LEVEL: return byte_level(s, i, text, length, out);
    case DECODE_BYTE_FALLBACK: return byte_fallback(s, i, text, length, out);
    case DECODE_WORDPIECE: return wordpiece(s, i, text, length, out);
    case DECODE_SUFFIX: return suffix(s, i, text, length, out);
    case DECODE_CTC: return ctc(s, i, text, length, out);
    default: return replace_matches(s, i, text, length, out);
    }
}

static gm_status feed(decode_state *s, size_t i, const void *part, size_t length, bool end, byte_buffer *out) {
    if (i == s->decoder->n_steps)
        return bytes_append(out, part, length);
    const decode_step *step = &s->decoder->steps[i];
    decode_step_state *state = &s->steps[i];
    const uint8_t *text = length > 0 ? part : (const uint8_t *)"";
    gm_status status = GM_OK;
    switch (step->kind) {
    case DECODE_FUSE: return feed(s, i + 1, text, length, false, out);
    case DECODE_STRIP: status = strip(s, i, text, length, end, out); break;
    case DECODE_METASPACE: status = metaspace(s, i, text, length, end, out); break;
    default:
        if (step->kind == DECODE_REPLACE && !step->regex) {
            status = replace_text(s, i, text, length, end, out);
            break;
        }
        if (!end || state->parts.size > 0) {
            GM_TRY(bytes_append(&state->parts, text, length));
            text = state->parts.size > 0 ? state->parts.data : text;
            length = state->parts.size;
        }
        if (!end)
            return GM_OK;
        state->parts.size = 0; /* the bytes stay until the next part */
        status = feed_whole(s, i, text, length, out);
        break;
    }
    state->n_tokens += end;
    return status;
}

/* Ends the tokens of step i. */
static gm_status finish(decode_state *s, size_t i, byte_buffer *out) {
    switch (s->decoder->steps[i].kind) {
    case DECODE_BYTE_LEVEL: /* an incomplete character is one U+FFFD */
        return feed(s, i + 1, replacement, s->steps[i].held.size > 0 ? 3 : 0, true, out);
    case DECODE_BYTE_FALLBACK: return flush(s, i, out);
    case DECODE_FUSE: return feed(s, i + 1, "", 0, true, out);
    case DECODE_SUFFIX: return suffix_release(s, i, true, out);
    default: return GM_OK;
    }
}

gm_status decode_push(decode_state *s, const char *token, size_t length, byte_buffer *out) {
    if (!s->decoder->given && s->started)
        GM_TRY(bytes_append(out, " ", 1));
    s->started = true;
    return feed(s, 0, token, length, true, out);
}

gm_status decode_finish(decode_state *s, byte_buffer *out) {
    for (size_t i = 0; i < s->decoder->n_steps; i++)
        GM_TRY(finish(s, i, out));
    return GM_OK;
}
