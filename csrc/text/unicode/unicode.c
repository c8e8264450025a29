/* unicode.c - UTF-8 steps, class lookup and the normal forms. See unicode.h. */
#include "text/text_view.h"
#include "text/generated/unicode_tables.inc"

#define ROWS(table) (sizeof(table) / sizeof(table)[0] / 3)

/* Hangul syllables are arithmetic, not tables (Unicode 3.12). */
enum { HANGUL = 0xAC00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11A7, N_L = 19, N_V = 21, N_T = 28 };
#define N_HANGUL ((uint32_t)(N_L * N_V * N_T))

const uint16_t *const unicode_class_index = class_index, *const unicode_class_blocks = class_blocks;

unsigned unicode_trait(uint32_t c) {
    return trait_blocks[trait_index[c / UNICODE_BLOCK] * UNICODE_BLOCK + c % UNICODE_BLOCK];
}

int unicode_lower(uint32_t c, uint32_t lower[2]) {
    size_t low = 0, high = sizeof lowercase_runs / sizeof lowercase_runs[0] / 4;
    lower[0] = c;
    if (c == 0x130) {
        lower[0] = 'i';
        lower[1] = 0x307;
        return 2;
    }
    while (low < high) {
        size_t middle = (low + high) / 2;
        const uint32_t *run = lowercase_runs + 4 * middle; /* first, last, step, difference */
        if (c < run[0]) {
            high = middle;
        } else if (c > run[1]) {
            low = middle + 1;
        } else {
            if ((c - run[0]) % run[2] == 0)
                lower[0] = c + run[3];
            break;
        }
    }
    return 1;
}

size_t utf8_put(uint32_t c, uint8_t *out) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

int utf8_step(const uint8_t *bytes, size_t n) {
    uint8_t lead = bytes[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return -1;
    int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* The second byte is narrower where the scalar would be overlong, a surrogate or above U+10FFFF. */
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n)
            return 0;
        if (bytes[i] < low || bytes[i] > high)
            return -i;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

/* Behind the ASCII at `at`, as far as it goes in whole words. */
static inline size_t skip_ascii(const uint8_t *text, size_t at, size_t n) {
    for (uint64_t word; at + sizeof word <= n; at += sizeof word) {
        memcpy(&word, text + at, sizeof word);
        if (word & 0x8080808080808080u)
            break;
    }
    return at;
}

size_t utf8_check(const uint8_t *bytes, size_t n) {
    size_t at = 0;
    while (at < n) {
        at = skip_ascii(bytes, at, n);
        /* The two common cases of text beyond ASCII; utf8_step checks all others. */
        while (at + 3 <= n && bytes[at] >= 0x80) {
            uint8_t lead = bytes[at], second = bytes[at + 1];
            if (lead >= 0xC2 && lead < 0xE0 && (second & 0xC0) == 0x80)
                at += 2;
            else if (lead > 0xE0 && lead < 0xED && (second & 0xC0) == 0x80 && (bytes[at + 2] & 0xC0) == 0x80)
                at += 3;
            else
                break;
        }
        if (at == n)
            break;
        int step = utf8_step(bytes + at, n - at);
        if (step <= 0)
            return at;
        at += (size_t)step;
    }
    return n;
}

/* ---- normal forms ---- */
static unsigned combining_class(uint32_t c) {
    size_t low = 0, high = ROWS(combining_runs);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const uint32_t *run = combining_runs + 3 * middle;
        if (c < run[0])
            high = middle;
        else if (c > run[1])
            low = middle + 1;
        else
            return run[2];
    }
    return 0;
}

/* The two parts of c (the second is 0 if there is one), or NULL. */
static const uint32_t *decomposition(uint32_t c) {
    size_t low = 0, high = ROWS(decompositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const uint32_t *row = decompositions + 3 * middle;
        if (row[0] == c)
            return row + 1;
        if (c < row[0])
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* The full compatibility decomposition of c if it differs from the canonical one; otherwise *n is 0. */
static const uint16_t *compatible(uint32_t c, size_t *n) {
    size_t low = 0, high = sizeof compatible_chars / sizeof compatible_chars[0] - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t found = compatible_chars[middle] >> 15, start = compatible_chars[middle] & 0x7FFF;
        if (found == c) {
            *n = (compatible_chars[middle + 1] & 0x7FFF) - start;
            return compatible_text + start;
        }
        if (c < found)
            high = middle;
        else
            low = middle + 1;
    }
    *n = 0;
    return NULL;
}

/* The composition of two scalars, or 0. */
static uint32_t composition(uint32_t a, uint32_t b) {
    if (a - HANGUL_L < N_L && b - HANGUL_V < N_V)
        return HANGUL + ((a - HANGUL_L) * N_V + (b - HANGUL_V)) * N_T;
    if (a - HANGUL < N_HANGUL && (a - HANGUL) % N_T == 0 && b - HANGUL_T - 1 < N_T - 1)
        return a + (b - HANGUL_T);
    size_t low = 0, high = ROWS(compositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const uint32_t *row = compositions + 3 * middle;
        if (row[0] == a && row[1] == b)
            return row[2];
        if (a < row[0] || (a == row[0] && b < row[1]))
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

typedef struct {
    uint32_t c, combining;
    int change;
} normal_char; /* change: text_change's */
typedef struct {
    normal_char *chars, *sorted;
    size_t size, capacity;
    normal_form form;
} normal_run;

/* Appends to a run: one starter and the marks after it, decomposed. */
static gm_status run_append(normal_run *run, uint32_t c, int change) {
    size_t capacity = run->capacity; /* of both arrays, which grow alike */
    GM_TRY(grow_array(&run->sorted, run->size, &capacity, 1, sizeof *run->sorted));
    GM_TRY(grow_array(&run->chars, run->size, &run->capacity, 1, sizeof *run->chars));
    run->chars[run->size++] = (normal_char){c, combining_class(c), change};
    return GM_OK;
}

/* Sorts the marks by combining class, stably. Counting takes linear time even for a million marks. */
static void run_sort(normal_run *run, size_t first) {
    size_t n = run->size - first;
    normal_char *chars = run->chars + first;
    if (n <= 8) {
        for (size_t i = 1; i < n; i++) {
            normal_char moved = chars[i];
            size_t j = i;
            for (; j > 0 && chars[j - 1].combining > moved.combining; j--)
                chars[j] = chars[j - 1];
            chars[j] = moved;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[chars[i].combining + 1]++;
    for (int k = 0; k < 256; k++)
        start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++)
        run->sorted[start[chars[i].combining]++] = chars[i];
    memcpy(chars, run->sorted, n * sizeof(normal_char));
}

/* Sorts the run, and composes it if the form does. */
static void run_close(normal_run *run) {
    if (run->size == 0)
        return;
    size_t first = run->chars[0].combining == 0 ? 1 : 0;
    run_sort(run, first);
    if (run->form == NORMAL_D || run->form == NORMAL_KD)
        return;
    uint32_t last_combining = 0;
    size_t kept = first;
    for (size_t i = first; i < run->size; i++) {
        normal_char mark = run->chars[i];
        uint32_t joined = 0;
        /* An earlier mark of its class that is kept blocks a mark. */
        if (first == 1 && (kept == 1 || last_combining < mark.combining))
            joined = composition(run->chars[0].c, mark.c);
        if (joined != 0) {
            run->chars[0].c = joined;
            run->chars[0].change += mark.change - 1;
        } else {
            last_combining = mark.combining;
            run->chars[kept++] = mark;
        }
    }
    run->size = kept;
}

static gm_status run_write(normal_run *run, text_writer *w) {
    for (size_t i = 0; i < run->size; i++)
        GM_TRY(text_change(w, run->chars[i].c, run->chars[i].change));
    run->size = 0;
    return GM_OK;
}

/* Appends one fully decomposed scalar. One that begins a new run closes the previous one. */
static gm_status run_push(normal_run *run, uint32_t c, int change, text_writer *w) {
    if (run->size > 0 && combining_class(c) == 0) {
        /* Two starters compose only if no mark is kept between them. */
        run_close(run);
        normal_char *starter = &run->chars[0];
        bool composes = run->form == NORMAL_C || run->form == NORMAL_KC;
        bool alone = run->size == 1 && starter->combining == 0;
        uint32_t joined = composes && alone ? composition(starter->c, c) : 0;
        if (joined != 0) {
            starter->c = joined;
            starter->change += change - 1;
            return GM_OK;
        }
        GM_TRY(run_write(run, w));
    }
    return run_append(run, c, change);
}

static gm_status run_decompose(normal_run *run, uint32_t c, int change, text_writer *w) {
    if (c - HANGUL < N_HANGUL) {
        uint32_t s = c - HANGUL;
        GM_TRY(run_push(run, HANGUL_L + s / (N_V * N_T), change, w));
        GM_TRY(run_push(run, HANGUL_V + s % (N_V * N_T) / N_T, 1, w));
        return s % N_T != 0 ? run_push(run, HANGUL_T + s % N_T, 1, w) : GM_OK;
    }
    size_t n = 0;
    const uint16_t *text = run->form < NORMAL_KC ? NULL : compatible(c, &n);
    for (size_t i = 0; i < n; i++)
        GM_TRY(run_push(run, text[i], i == 0 ? change : 1, w));
    if (n > 0)
        return GM_OK;
    const uint32_t *parts = decomposition(c);
    if (!parts)
        return run_push(run, c, change, w);
    GM_TRY(run_decompose(run, parts[0], change, w)); /* at most four deep: a property of the table */
    return parts[1] != 0 ? run_decompose(run, parts[1], 1, w) : GM_OK;
}

/* The bytes of a word, their highest bit set, with which characters begin that may need a check for NFC. None below
 * U+0300 does, and none of Cyrillic, Armenian, Han and Hangul, but for a few blocks: it is 0xCC..0xCE, 0xD2,
 * 0xD6..0xE3, 0xEA and those from 0xEF on. A byte's bit changes with each end of a range that is not above the
 * byte. */
static inline uint64_t nfc_leads(uint64_t word) {
    const uint64_t ones = 0x0101010101010101u, high = 0x80 * ones, low = word & ~high;
#define FROM(byte) (low + (0x100u - (byte)) * ones)
    return (FROM(0xCC) ^ FROM(0xCF) ^ FROM(0xD2) ^ FROM(0xD3) ^ FROM(0xD6) ^ FROM(0xE4) ^ FROM(0xEA) ^ FROM(0xEB) ^
            FROM(0xEF)) &
           word & high;
#undef FROM
}

/* The first character at or after `at` that may need a check for NFC. */
static inline size_t skip_nfc(const uint8_t *text, size_t at, size_t n) {
    uint64_t word;
    for (; at + sizeof word <= n; at += sizeof word) {
        memcpy(&word, text + at, sizeof word);
        if ((word & 0x8080808080808080u) != 0 && nfc_leads(word) != 0)
            break;
    }
    while (at < n && nfc_leads(text[at]) == 0)
        at++;
    return at;
}

/* The first character at or after `at` that may have to change; n if there is none. Every other character is a starter
 * that does not compose with the one before it. */
static size_t find_check(normal_form form, const uint8_t *text, size_t at, size_t n) {
    bool composed = form == NORMAL_C || form == NORMAL_KC;
    unsigned traits = (composed ? 0 : TRAIT_NFD_CHECK) | (form < NORMAL_KC ? 0 : TRAIT_COMPATIBLE);
    while (at < n) {
        at = form == NORMAL_C ? skip_nfc(text, at, n) : skip_ascii(text, at, n);
        for (int i = 0; i < 8 && at < n; i++) {
            if (text[at] < 0x80) {
                at++;
                continue;
            }
            size_t after = at;
            uint32_t c = utf8_next(text, &after);
            if ((traits != 0 && (unicode_trait(c) & traits)) || (composed && (unicode_class(c) & CLASS_NFC_CHECK)))
                return at;
            at = after;
        }
    }
    return n;
}

bool unicode_is_normal(normal_form form, const uint8_t *text, size_t n) { return find_check(form, text, 0, n) == n; }

/* Only the characters around those that may change go through a run: from the one before to the next that stays. */
gm_status unicode_normalize(normal_form form, text_writer *w) {
    normal_run run = {.form = form};
    const uint8_t *text = w->in.bytes;
    size_t n = w->in.length, at = w->at;
    gm_status status = bytes_reserve(&w->out->bytes, n + n / 16); /* composing makes some texts longer */
    if (status == GM_OK)
        memory_expect(w->out->bytes.data, w->out->bytes.capacity);
    while (at < n && status == GM_OK) {
        size_t check = find_check(form, text, at, n);
        at = check > at && check < n ? utf8_previous(text, check) : check;
        status = text_keep(w, at);
        while (at < n && status == GM_OK && (at <= check || find_check(form, text, at, at + 1) == at))
            status = run_decompose(&run, utf8_next(text, &at), 0, w);
        run_close(&run);
        if (status == GM_OK)
            status = run_write(&run, w);
    }
    memory_free(run.chars);
    memory_free(run.sorted);
    return status;
}
