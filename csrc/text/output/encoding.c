/* encoding.c - see encoding.h. */
#include "text/output/encoding.h"

gm_encoding *encoding_new(void) { return memory_zeroed(sizeof(gm_encoding)); }

void gm_encoding_free(gm_encoding *e) {
    if (!e)
        return;
    encodings_free(&e->overflowing);
    memory_free(e->tokens);
    memory_free(e->ranges);
    memory_free(e->strings.data);
    memory_free(e);
}

void encodings_free(encoding_list *list) {
    for (size_t i = 0; i < list->size; i++)
        gm_encoding_free(list->data[i]);
    memory_free(list->data);
    *list = (encoding_list){0};
}

gm_status encodings_push(encoding_list *list, gm_encoding *e) {
    if (!e)
        return GM_ENOMEM;
    if (grow_array(&list->data, list->size, &list->capacity, 1, sizeof *list->data) != GM_OK) {
        gm_encoding_free(e);
        return GM_ENOMEM;
    }
    list->data[list->size++] = e;
    return GM_OK;
}

static gm_status reserve(gm_encoding *e, size_t more) {
    return grow_array(&e->tokens, e->size, &e->capacity, more, sizeof *e->tokens);
}

static gm_status append(gm_encoding *e, const encoding_token *tokens, size_t n) {
    GM_TRY(reserve(e, n));
    if (n > 0)
        memcpy(e->tokens + e->size, tokens, n * sizeof *tokens);
    e->size += n;
    return GM_OK;
}

gm_status encoding_push(gm_encoding *e, gm_token_info info, uint32_t text) {
    return append(e, &(encoding_token){info, text}, 1);
}

gm_status encoding_set_range(gm_encoding *e, int32_t sequence, size_t start, size_t end) {
    size_t at = 0;
    while (at < e->n_ranges && e->ranges[at].sequence != sequence)
        at++;
    if (at == e->n_ranges)
        GM_TRY(grow_array(&e->ranges, e->n_ranges, &e->range_capacity, 1, sizeof *e->ranges));
    e->ranges[at] = (sequence_range){sequence, start, end};
    e->n_ranges += at == e->n_ranges;
    return GM_OK;
}

void encoding_set_type(gm_encoding *e, int32_t type_id) {
    for (size_t i = 0; i < e->size; i++)
        e->tokens[i].info.type_id = type_id;
}

/* Copies tokens and ranges of `from`, not its overflow. */
static gm_status copy_into(gm_encoding *e, const gm_encoding *from) {
    GM_TRY(append(e, from->tokens, from->size));
    for (size_t i = 0; i < from->n_ranges; i++)
        GM_TRY(encoding_set_range(e, from->ranges[i].sequence, from->ranges[i].start, from->ranges[i].end));
    return GM_OK;
}

gm_encoding *encoding_clone(const gm_encoding *from) {
    gm_encoding *e = encoding_new();
    if (!e)
        return NULL;
    gm_status status = copy_into(e, from);
    for (size_t i = 0; i < from->overflowing.size && status == GM_OK; i++)
        status = encodings_push(&e->overflowing, encoding_clone(from->overflowing.data[i]));
    if (status == GM_OK)
        return e;
    gm_encoding_free(e);
    return NULL;
}

gm_status encoding_string(byte_buffer *strings, const void *text, size_t length, uint32_t *out) {
    uint32_t n = (uint32_t)length;
    if (length > INT32_MAX || strings->size > INT32_MAX)
        return gm_fail(GM_EOVERFLOW, "encode: the tokens' texts are longer than %d bytes", INT32_MAX);
    *out = (uint32_t)strings->size;
    GM_TRY(bytes_append(strings, &n, sizeof n));
    return bytes_append(strings, text, length);
}

/* ---- truncation ---- */
/* A copy of the tokens [start, end), without ranges. */
static gm_encoding *part_of(const gm_encoding *e, size_t start, size_t end) {
    gm_encoding *part = encoding_new();
    if (part && append(part, e->tokens + start, end - start) == GM_OK)
        return part;
    gm_encoding_free(part);
    return NULL;
}

gm_status encoding_truncate(gm_encoding *e, size_t max_length, size_t stride, bool left) {
    size_t n = e->size;
    if (max_length >= n)
        return GM_OK;
    if (max_length == 0) {
        gm_encoding *whole = encoding_new();
        if (!whole)
            return GM_ENOMEM;
        *whole = *e;
        whole->strings = (byte_buffer){0};
        *e = (gm_encoding){.strings = e->strings};
        return encodings_push(&e->overflowing, whole);
    }
    if (stride >= max_length)
        return gm_fail(GM_EVALUE,
                       "encode: the stride of truncation is %zu, expected less than the %zu tokens that are "
                       "kept of a text, not counting special tokens",
                       stride, max_length);
    size_t step = max_length - stride, first_start = left ? n - max_length : 0;
    encodings_free(&e->overflowing);
    for (size_t skip = step;; skip += step) {
        /* The part begins `skip` tokens from the start, or from the end if left. */
        size_t start = left ? (n - skip > max_length ? n - skip - max_length : 0) : skip;
        size_t end = left ? n - skip : (n - skip > max_length ? skip + max_length : n);
        GM_TRY(encodings_push(&e->overflowing, part_of(e, start, end)));
        if (left ? start == 0 : end == n)
            break;
    }
    memmove(e->tokens, e->tokens + first_start, max_length * sizeof *e->tokens);
    e->size = max_length;
    e->n_ranges = 0;
    return GM_OK;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

gm_status encodings_truncate(gm_encoding *first, gm_encoding *second, const gm_truncation *how) {
    size_t limit = how->max_length, n1 = first->size, n2 = second ? second->size : 0;
    if (limit > 0 && n1 + n2 <= limit)
        return GM_OK;
    size_t excess = n1 + n2 - limit;
    if (limit == 0) {
        n1 = n2 = 0;
    } else if (how->strategy != GM_TRUNCATE_LONGEST_FIRST) {
        bool is_first = how->strategy == GM_TRUNCATE_ONLY_FIRST;
        if (!is_first && !second)
            return gm_fail(GM_EVALUE, "encode: truncation is only_second, but there is only one text");
        size_t *target = is_first ? &n1 : &n2;
        if (*target <= excess)
            return gm_fail(GM_EVALUE, "encode: truncation would remove %zu tokens of the %s text, which has %zu",
                           excess, is_first ? "first" : "second", *target);
        *target -= excess;
    } else if (!second) {
        n1 = limit;
    } else {
        /* The shorter text is not truncated while it fits into half the limit. */
        size_t shorter = least(n1, n2), longer;
        longer = shorter > limit ? shorter : limit - shorter > shorter ? limit - shorter : shorter;
        if (shorter + longer > limit) {
            shorter = limit / 2;
            longer = shorter + limit % 2;
        }
        bool swapped = n1 > n2;
        n1 = swapped ? longer : shorter;
        n2 = swapped ? shorter : longer;
    }
    GM_TRY(encoding_truncate(first, n1, how->stride, how->left));
    return second ? encoding_truncate(second, n2, how->stride, how->left) : GM_OK;
}

/* ---- padding ---- */
size_t padded_length(const gm_padding *how, size_t longest) {
    size_t length = how->fixed ? how->length : longest;
    if (how->multiple_of > 1 && length % how->multiple_of != 0)
        length += how->multiple_of - length % how->multiple_of;
    return length;
}

gm_status encoding_pad(gm_encoding *e, size_t length, const gm_padding *how, uint32_t text) {
    for (size_t i = 0; i < e->overflowing.size; i++)
        GM_TRY(encoding_pad(e->overflowing.data[i], length, how, text));
    if (e->size >= length)
        return GM_OK;
    size_t n = e->size, more = length - n;
    encoding_token pad = {{.id = how->id, .type_id = how->type_id, .word = -1, .special = true}, text};
    GM_TRY(reserve(e, more));
    if (how->left) {
        memmove(e->tokens + more, e->tokens, n * sizeof *e->tokens);
        for (size_t i = 0; i < e->n_ranges; i++) {
            e->ranges[i].start += more;
            e->ranges[i].end += more;
        }
    }
    for (size_t i = 0; i < more; i++)
        e->tokens[how->left ? i : n + i] = pad;
    e->size = length;
    return GM_OK;
}

/* ---- joining ---- */
static gm_status push_joined(encoding_list *list, const gm_encoding *a, const gm_encoding *b) {
    gm_encoding *joined = encoding_clone(a);
    if (joined && encoding_join(joined, b) != GM_OK) {
        gm_encoding_free(joined);
        joined = NULL;
    }
    return encodings_push(list, joined);
}

static gm_status join_overflowing(const gm_encoding *e, const gm_encoding *next, encoding_list *out) {
    for (size_t i = 0; i < e->overflowing.size; i++) {
        GM_TRY(push_joined(out, e->overflowing.data[i], next));
        for (size_t j = 0; j < next->overflowing.size; j++)
            GM_TRY(push_joined(out, e->overflowing.data[i], next->overflowing.data[j]));
    }
    for (size_t j = 0; j < next->overflowing.size; j++)
        GM_TRY(push_joined(out, e, next->overflowing.data[j]));
    return GM_OK;
}

gm_status encoding_join(gm_encoding *e, const gm_encoding *next) {
    encoding_list overflowing = {0};
    size_t before = e->size;
    gm_status status = join_overflowing(e, next, &overflowing);
    if (status == GM_OK)
        status = append(e, next->tokens, next->size);
    for (size_t i = 0; i < next->n_ranges && status == GM_OK; i++)
        status = encoding_set_range(e, next->ranges[i].sequence, before + next->ranges[i].start,
                                    before + next->ranges[i].end);
    if (status != GM_OK) {
        encodings_free(&overflowing);
        return status;
    }
    encodings_free(&e->overflowing);
    e->overflowing = overflowing;
    return GM_OK;
}

/* ---- offsets ---- */
/* A position that moves byte by byte, because successive offsets are close. */
typedef struct {
    const uint8_t *text;
    size_t length, byte, scalar;
} scalar_cursor;

/* The index of the scalar that has the byte; at the text's end, the number of scalars. */
static size_t scalar_at(scalar_cursor *c, size_t byte) {
    for (; c->byte < byte; c->byte++)
        c->scalar += c->byte + 1 >= c->length || (c->text[c->byte + 1] & 0xC0) != 0x80;
    for (; c->byte > byte; c->byte--)
        c->scalar -= c->byte >= c->length || (c->text[c->byte] & 0xC0) != 0x80;
    return c->scalar;
}

void encoding_to_scalars(gm_encoding *e, size_t from, const uint8_t *text, size_t length) {
    uint8_t bits = 0;
    for (size_t i = 0; i < length; i++)
        bits |= text[i];
    if (bits < 0x80)
        return; /* each byte is a scalar */
    scalar_cursor cursor = {.text = text, .length = length};
    for (size_t i = from; i < e->size; i++) {
        gm_token_info *info = &e->tokens[i].info;
        /* The reference does not convert what starts at the text's end. */
        if ((size_t)info->start >= length || (size_t)info->end > length)
            continue;
        info->start = (int32_t)scalar_at(&cursor, (size_t)info->start);
        info->end = (int32_t)scalar_at(&cursor, (size_t)info->end);
    }
}

/* ---- gomlx.h ---- */
size_t gm_encoding_size(const gm_encoding *e) { return e->size; }
gm_token_info gm_encoding_token(const gm_encoding *e, size_t i) { return e->tokens[i].info; }
size_t gm_encoding_overflowing(const gm_encoding *e) { return e->overflowing.size; }
const gm_encoding *gm_encoding_overflow(const gm_encoding *e, size_t i) { return e->overflowing.data[i]; }

const char *gm_encoding_text(const gm_encoding *whole, const gm_encoding *e, size_t i, const gm_tokenizer *t,
                             size_t *length) {
    uint32_t at = e->tokens[i].text, n;
    if (at == OWN_TEXT)
        return gm_tokenizer_token(t, e->tokens[i].info.id, length);
    memcpy(&n, whole->strings.data + at, sizeof n);
    *length = n;
    return (const char *)whole->strings.data + at + sizeof n;
}

void gm_encoding_sequences(const gm_encoding *e, int32_t *out) {
    size_t n_sequences = e->n_ranges == 0 ? 1 : e->n_ranges;
    for (size_t i = 0; i < e->size; i++)
        out[i] = -1;
    /* The reference counts sequences from 0, and one without a range is the whole encoding. */
    for (size_t s = 0; s < n_sequences; s++) {
        size_t start = 0, end = e->size;
        for (size_t k = 0; k < e->n_ranges; k++) {
            if (e->ranges[k].sequence == (int32_t)s) {
                start = e->ranges[k].start;
                end = least(e->ranges[k].end, e->size);
            }
        }
        for (size_t i = start; i < end; i++)
            out[i] = (int32_t)s;
    }
}
