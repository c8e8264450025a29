/* charsmap.c - see charsmap.h. */
#include "text/normalize/charsmap.h"
#include "text/unicode/grapheme.h"

#define CLUSTER_MOST 5 /* bytes of a cluster that is looked up as a whole */

struct charsmap {
    uint32_t *units;
    size_t n_units;
    char *texts;
    size_t n_texts; /* bytes */
};

static uint32_t read_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

gm_status charsmap_new(const uint8_t *data, size_t length, const char *name, charsmap **out) {
    *out = NULL;
    uint32_t bytes = length >= 4 ? read_u32(data) : 0;
    if (bytes < 4 || bytes > length - 4)
        return gm_fail(GM_EBADFILE, "%s: the charsmap has %zu bytes, expected 4 and an array of %u bytes", name, length,
                       bytes);
    size_t n_units = bytes / 4;
    const uint8_t *texts = data + 4 + 4 * n_units; /* as in the reference, a remainder of 1 to 3 bytes is text */
    size_t n_texts = length - 4 - 4 * n_units, fault = utf8_check(texts, n_texts);
    if (fault < n_texts)
        return gm_fail(GM_EBADFILE, "%s: the charsmap's texts are not UTF-8 at byte %zu", name, fault);
    charsmap *map = memory_zeroed(sizeof *map);
    if (!map)
        return GM_ENOMEM;
    map->units = memory_array(n_units, sizeof map->units[0]);
    map->texts = memory_copy_text((const char *)texts, n_texts);
    if (!map->units || !map->texts) {
        charsmap_free(map);
        return GM_ENOMEM;
    }
    for (size_t i = 0; i < n_units; i++)
        map->units[i] = read_u32(data + 4 + 4 * i);
    map->n_units = n_units;
    map->n_texts = n_texts;
    *out = map;
    return GM_OK;
}

void charsmap_free(charsmap *map) {
    if (!map)
        return;
    memory_free(map->units);
    memory_free(map->texts);
    memory_free(map);
}

/* Bits of a unit: 0-7 and 31 the label, 8 whether a text ends there, 10-30 the offset of its children, times 256 if bit
 * 9 is set. */
static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

/* Finds the next longer text of the array that `text` begins with, and returns its value of *n bytes, or NULL. *matched
 * is the length found so far and *at the position in the array: at first 0 and offset_of(units[0]). */
static const char *find_next(const charsmap *map, const uint8_t *text, size_t length, size_t *at, size_t *matched,
                             size_t *n) {
    for (size_t i = *matched; i < length && text[i] != 0; i++) {
        *at ^= text[i];
        if (*at >= map->n_units)
            return NULL;
        uint32_t unit = map->units[*at];
        if ((unit & (1u << 31 | 0xFF)) != text[i])
            return NULL;
        *at ^= offset_of(unit);
        if (!(unit & 1u << 8))
            continue;
        size_t start = *at < map->n_units ? map->units[*at] & 0x7FFFFFFF : map->n_texts + 1;
        if (start > map->n_texts || ((uint8_t)map->texts[start] & 0xC0) == 0x80)
            return NULL;
        *n = strlen(map->texts + start); /* the last one is NUL-terminated too */
        *matched = i + 1;
        return map->texts + start;
    }
    return NULL;
}

/* Finds the shortest text. */
static const char *find(const charsmap *map, const uint8_t *text, size_t length, size_t *n) {
    size_t at = offset_of(map->units[0]), matched = 0;
    return find_next(map, text, length, &at, &matched, n);
}

/* The last change is held back, because deletions after it are added to it. */
typedef struct {
    text_writer *w;
    uint32_t c;
    int change;
    bool waits;
} pending_change;

static gm_status release(pending_change *last) {
    if (!last->waits)
        return GM_OK;
    last->waits = false;
    /* As in the reference, deletions at the start and after insertions are not counted, so the input may end early. */
    bool ended = last->w->at >= last->w->in.length;
    return text_change(last->w, last->c, ended ? 1 : last->change);
}

static gm_status change(pending_change *last, uint32_t c, int by) {
    GM_TRY(release(last));
    last->c = c;
    last->change = by;
    last->waits = true;
    return GM_OK;
}

static int count(const uint8_t *text, size_t length) {
    int n = 0;
    for (size_t at = 0; at < length; n++)
        utf8_next(text, &at);
    return n;
}

/* Replaces n_old characters by the text, one for one. Further new ones are inserted, further old ones are dropped. */
static gm_status replace(pending_change *last, int n_old, const uint8_t *text, size_t length) {
    int n_new = 0;
    for (size_t at = 0; at < length; n_new++)
        GM_TRY(change(last, utf8_next(text, &at), n_new < n_old ? 0 : 1));
    if (n_new < n_old && last->waits)
        last->change += n_new - n_old;
    return GM_OK;
}

gm_status charsmap_write(const charsmap *map, text_writer *w) {
    const uint8_t *text = w->in.bytes;
    size_t length = w->in.length, n;
    pending_change last = {.w = w};
    for (size_t at = 0, end; at < length; at = end) {
        end = grapheme_end(text, length, at);
        const char *found = end - at <= CLUSTER_MOST ? find(map, text + at, end - at, &n) : NULL;
        if (found) {
            GM_TRY(replace(&last, count(text + at, end - at), (const uint8_t *)found, n));
            continue;
        }
        for (size_t after = at; at < end; at = after) {
            uint32_t c = utf8_next(text, &after);
            found = find(map, text + at, after - at, &n);
            GM_TRY(found ? replace(&last, 1, (const uint8_t *)found, n) : change(&last, c, 0));
        }
    }
    return release(&last);
}

gm_status charsmap_write_longest(const charsmap *map, text_writer *w) {
    const uint8_t *text = w->in.bytes;
    size_t length = w->in.length;
    for (size_t at = 0, end; at < length; at = end) {
        size_t walk = offset_of(map->units[0]), matched = 0, n = 0, n_best = 0;
        const char *found, *best = NULL;
        end = at;
        utf8_next(text, &end);
        while ((found = find_next(map, text + at, length - at, &walk, &matched, &n))) {
            if (at + matched < length && (text[at + matched] & 0xC0) == 0x80)
                continue; /* half a character: the array is damaged */
            best = found;
            n_best = n;
            end = at + matched;
        }
        if (!best) {
            GM_TRY(text_keep(w, end));
            continue;
        }
        GM_TRY(text_put(w, best, n_best, at));
        text_drop(w, end);
    }
    return GM_OK;
}
