/* pieces.c - the cache of pieces.h. */
#include "text/fast/pieces.h"
#include "text/fast/word.h"
#include "kernels.h"

#define FIRST_SHORTS ((size_t)1 << 14) /* 512 KiB */
#define MOST_SHORTS ((size_t)1 << 20)  /* 32 MiB */
#define FIRST_MEDIUMS ((size_t)1 << 10)
#define MOST_MEDIUMS ((size_t)1 << 18) /* 16 MiB */
#define LARGE_TABLE ((size_t)2 << 20)  /* bytes; a larger table gets its largest capacity at once */
#define FIRST_LONGS ((size_t)1 << 8)
#define MOST_LONGS ((size_t)1 << 17) /* 4 MiB */
#define MOST_MANY ((size_t)1 << 22)
#define MOST_TEXT ((size_t)1 << 24)

static unsigned shift_of(size_t n_slots) { return 64 - (unsigned)__builtin_ctzll(n_slots); }

/* Weak, because a build may be without an instruction set, whose kernels are then never chosen. */
extern const piece_kernels piece_kernels_generic;
#if defined(__x86_64__)
extern const piece_kernels piece_kernels_avx2 __attribute__((weak)), piece_kernels_avx512 __attribute__((weak));
#elif defined(__aarch64__)
extern const piece_kernels piece_kernels_neon __attribute__((weak));
#endif

const piece_kernels *piece_kernels_get(void) {
    const gm_kernels *table = kernels_select(NULL); /* NULL: GOMLX_ISA names one that cannot run */
    const char *family = table ? kernels_family(table) : "generic";
#if defined(__x86_64__)
    if (strcmp(family, "avx512") == 0)
        return &piece_kernels_avx512;
    if (strcmp(family, "avx2") == 0)
        return &piece_kernels_avx2;
#elif defined(__aarch64__)
    if (strcmp(family, "neon") == 0)
        return &piece_kernels_neon;
#endif
    (void)family;
    return &piece_kernels_generic;
}

gm_status piece_cache_new(piece_cache *cache) {
    cache->shorts = memory_table(FIRST_SHORTS * sizeof(short_slot));
    cache->mediums = memory_table(FIRST_MEDIUMS * sizeof(medium_slot));
    cache->longs = memory_table(FIRST_LONGS * sizeof(long_slot));
    cache->n_shorts = cache->shorts_capacity = FIRST_SHORTS;
    cache->short_shift = shift_of(FIRST_SHORTS);
    cache->medium_shift = shift_of(FIRST_MEDIUMS);
    cache->n_mediums = cache->mediums_capacity = FIRST_MEDIUMS;
    cache->n_longs = FIRST_LONGS;
    return cache->shorts && cache->mediums && cache->longs ? GM_OK : GM_ENOMEM;
}

void piece_cache_free(piece_cache *cache) {
    memory_table_free(cache->shorts, cache->shorts_capacity * sizeof(short_slot));
    memory_table_free(cache->mediums, cache->mediums_capacity * sizeof(medium_slot));
    memory_table_free(cache->longs, cache->n_longs * sizeof(long_slot));
    memory_free(cache->many.data);
    memory_free(cache->texts.data);
    *cache = (piece_cache){0};
}

/* Loads n <= 16 bytes, padded with zeros. */
static void load_padded(uint64_t key[2], const uint8_t *piece, size_t n) {
    key[0] = n < 8 ? short_word(piece, n) : load_bytes(piece, 8);
    key[1] = n > 8 ? load_bytes(piece + n - 8, 8) >> 8 * (16 - n) : 0;
}

/* The key of a short piece has two words, that of a medium one four. */
static void key_of(uint64_t *key, size_t words, const uint8_t *piece, size_t length) {
    if (words == 2) {
        load_padded(key, piece, length);
    } else {
        load_padded(key, piece, 16);
        load_padded(key + 2, piece + 16, length - 16);
    }
    key[words - 1] |= (uint64_t)length << 56;
}

static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
}

static size_t short_home(const piece_cache *cache, const uint64_t key[2]) {
    return short_hash((const uint64_t[]){key[0], key[1] & ~MANY_KEY}) >> cache->short_shift;
}

static size_t medium_home(const piece_cache *cache, const uint64_t key[4]) {
    return medium_hash(key) >> cache->medium_shift;
}

static uint64_t long_hash(const uint8_t *piece, size_t length) {
    uint64_t hash = length, words[2];
    for (size_t at = 0; at + 16 <= length; at += 16) {
        memcpy(words, piece + at, 16);
        hash = mix(words[0] ^ hash, words[1]);
    }
    memcpy(words, piece + length - 16, 16);
    return mix(words[0] ^ hash, words[1]);
}

/* The piece's slot, or the one to put it in. */
static long_slot *long_at(const piece_cache *cache, const uint8_t *piece, size_t length, uint64_t hash) {
    size_t at = hash & (cache->n_longs - 1);
    for (int i = 1; i < CACHE_PROBES; i++, at = (at + 1) & (cache->n_longs - 1)) {
        long_slot *slot = &cache->longs[at];
        if (slot->length == 0 || (slot->hash == hash && slot->length == length &&
                                  memcmp(cache->texts.data + slot->text, piece, length) == 0))
            return slot;
    }
    return &cache->longs[at];
}

/* ---- lookup ---- */
size_t piece_cache_short(piece_cache *cache, const uint64_t key[2], int32_t *out, size_t more, far_ids *far) {
    size_t home = short_home(cache, key), at = home;
    for (int i = 0; i < CACHE_PROBES; i++, at = (at + 1) & (cache->n_shorts - 1)) {
        short_slot *slot = &cache->shorts[at], found = *slot;
        if (found.key[1] == 0)
            return PIECE_NOT_KEPT;
        if (found.key[0] != key[0] || (found.key[1] & ~MANY_KEY) != key[1])
            continue;
        *slot = cache->shorts[home];
        cache->shorts[home] = found;
        if (found.key[1] & MANY_KEY)
            return far_find(cache, found.ids[0], found.ids[1], out, more, far) ? found.ids[1] : PIECE_NOT_KEPT;
        memcpy(out, found.ids, sizeof found.ids);
        out[SHORT_IDS - 1] &= (1 << COUNT_SHIFT) - 1;
        return found.ids[SHORT_IDS - 1] >> COUNT_SHIFT;
    }
    return PIECE_NOT_KEPT;
}

size_t piece_cache_medium(const piece_cache *cache, const uint64_t key[4], int32_t *out, size_t more, far_ids *far) {
    size_t at = medium_home(cache, key);
    for (int i = 0; i < CACHE_PROBES; i++, at = (at + 1) & (cache->n_mediums - 1)) {
        const medium_slot *slot = &cache->mediums[at];
        if (slot->key[3] == 0)
            return PIECE_NOT_KEPT;
        if (memcmp(slot->key, key, sizeof slot->key) != 0)
            continue;
        if (slot->count == COUNT_MANY)
            return far_find(cache, slot->ids[0], slot->ids[1], out, more, far) ? slot->ids[1] : PIECE_NOT_KEPT;
        memcpy(out, slot->ids, sizeof slot->ids);
        return slot->count;
    }
    return PIECE_NOT_KEPT;
}

size_t piece_cache_find(piece_cache *cache, const uint8_t *piece, size_t length, int32_t *out, size_t more,
                        far_ids *far) {
    uint64_t key[4];
    far->count = 0;
    if (length <= PIECE_SHORT) {
        key_of(key, 2, piece, length);
        return piece_cache_short(cache, key, out, more, far);
    }
    if (length <= PIECE_MEDIUM) {
        key_of(key, 4, piece, length);
        return piece_cache_medium(cache, key, out, more, far);
    }
    if (length > PIECE_LONG)
        return PIECE_NOT_KEPT;
    uint64_t hash = long_hash(piece, length);
    const long_slot *slot = long_at(cache, piece, length, hash);
    if (slot->hash != hash || slot->length != length || memcmp(cache->texts.data + slot->text, piece, length) != 0)
        return PIECE_NOT_KEPT;
    return far_find(cache, slot->ids, slot->count, out, more, far) ? slot->count : PIECE_NOT_KEPT;
}

/* ---- insertion ---- */
/* Puts the slot into the piece's own or a free one near its home, otherwise over the last one probed. */
static void put_short(piece_cache *cache, const short_slot *slot) {
    short_slot *slots = cache->shorts;
    size_t at = short_home(cache, slot->key);
    for (int i = 1;
         i < CACHE_PROBES && slots[at].key[1] != 0 && memcmp(slots[at].key, slot->key, sizeof slot->key) != 0; i++)
        at = (at + 1) & (cache->n_shorts - 1);
    cache->shorts_used += slots[at].key[1] == 0;
    slots[at] = *slot;
}

/* Widens the table in place: from the back each entry moves to its new home, which is after all entries that are still
 * to be moved, except those at the front. */
static void widen_shorts(piece_cache *cache, size_t n_new) {
    short_slot front[2 * CACHE_PROBES], *slots = cache->shorts;
    const size_t n_front = sizeof front / sizeof front[0];
    size_t n = cache->n_shorts;
    memcpy(front, slots, sizeof front);
    memset(slots, 0, sizeof front);
    cache->n_shorts = n_new;
    cache->short_shift = shift_of(n_new);
    cache->shorts_used = 0;
    for (size_t i = n; i-- > n_front;) {
        short_slot moved = slots[i];
        if (moved.key[1] == 0)
            continue;
        slots[i] = (short_slot){0};
        if (short_home(cache, moved.key) > i) /* otherwise it was too far from its home to be found */
            put_short(cache, &moved);
    }
    for (size_t i = 0; i < n_front; i++)
        if (front[i].key[1] != 0)
            put_short(cache, &front[i]);
}

/* The next number of slots of a table that has spare capacity. */
static size_t wider(size_t n, size_t capacity) { return 4 * n <= capacity ? 4 * n : capacity; }

/* The next number of slots, and the capacity to allocate for them. */
static size_t next_size(size_t n, size_t slot_bytes, size_t most, size_t *capacity) {
    if (4 * n * slot_bytes < LARGE_TABLE)
        return *capacity = 4 * n;
    *capacity = most;
    return LARGE_TABLE / slot_bytes;
}

/* Makes a larger table, or empties one of the largest size. */
static gm_status grow_shorts(piece_cache *cache) {
    if (cache->n_shorts == MOST_SHORTS) {
        memset(cache->shorts, 0, MOST_SHORTS * sizeof(short_slot));
        cache->shorts_used = 0;
        return GM_OK;
    }
    if (cache->n_shorts < cache->shorts_capacity) {
        widen_shorts(cache, wider(cache->n_shorts, cache->shorts_capacity));
        return GM_OK;
    }
    size_t capacity, n_old = cache->n_shorts, n = next_size(n_old, sizeof(short_slot), MOST_SHORTS, &capacity);
    short_slot *slots = memory_table(capacity * sizeof *slots), *old = cache->shorts;
    if (!slots)
        return GM_ENOMEM;
    cache->shorts = slots;
    cache->n_shorts = n;
    cache->shorts_capacity = capacity;
    cache->short_shift = shift_of(n);
    cache->shorts_used = 0;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].key[1] != 0)
            put_short(cache, &old[i]);
    memory_table_free(old, n_old * sizeof *old);
    return GM_OK;
}

static void put_medium(piece_cache *cache, const medium_slot *slot) {
    medium_slot *slots = cache->mediums;
    size_t at = medium_home(cache, slot->key);
    for (int i = 1;
         i < CACHE_PROBES && slots[at].key[3] != 0 && memcmp(slots[at].key, slot->key, sizeof slot->key) != 0; i++)
        at = (at + 1) & (cache->n_mediums - 1);
    cache->mediums_used += slots[at].key[3] == 0;
    slots[at] = *slot;
}

static void widen_mediums(piece_cache *cache, size_t n_new) {
    medium_slot front[2 * CACHE_PROBES], *slots = cache->mediums;
    const size_t n_front = sizeof front / sizeof front[0];
    size_t n = cache->n_mediums;
    memcpy(front, slots, sizeof front);
    memset(slots, 0, sizeof front);
    cache->n_mediums = n_new;
    cache->medium_shift = shift_of(n_new);
    cache->mediums_used = 0;
    for (size_t i = n; i-- > n_front;) {
        medium_slot moved = slots[i];
        if (moved.key[3] == 0)
            continue;
        slots[i] = (medium_slot){0};
        put_medium(cache, &moved);
    }
    for (size_t i = 0; i < n_front; i++)
        if (front[i].key[3] != 0)
            put_medium(cache, &front[i]);
}

static gm_status grow_mediums(piece_cache *cache) {
    if (cache->n_mediums == MOST_MEDIUMS) {
        memset(cache->mediums, 0, MOST_MEDIUMS * sizeof(medium_slot));
        cache->mediums_used = 0;
        return GM_OK;
    }
    if (cache->n_mediums < cache->mediums_capacity) {
        widen_mediums(cache, wider(cache->n_mediums, cache->mediums_capacity));
        return GM_OK;
    }
    size_t capacity, n_old = cache->n_mediums, n = next_size(n_old, sizeof(medium_slot), MOST_MEDIUMS, &capacity);
    medium_slot *slots = memory_table(capacity * sizeof *slots), *old = cache->mediums;
    if (!slots)
        return GM_ENOMEM;
    cache->mediums = slots;
    cache->n_mediums = n;
    cache->mediums_capacity = capacity;
    cache->medium_shift = shift_of(n);
    cache->mediums_used = 0;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].key[3] != 0)
            put_medium(cache, &old[i]);
    memory_table_free(old, n_old * sizeof *old);
    return GM_OK;
}

static gm_status grow_longs(piece_cache *cache) {
    size_t n = cache->n_longs < MOST_LONGS ? 2 * cache->n_longs : cache->n_longs;
    long_slot *slots = memory_table(n * sizeof *slots), *old = cache->longs;
    size_t old_bytes = cache->n_longs * sizeof *old, n_old = n > cache->n_longs ? cache->n_longs : 0;
    if (!slots)
        return GM_ENOMEM;
    cache->longs = slots;
    cache->n_longs = n;
    cache->longs_used = 0;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].length == 0)
            continue;
        long_slot *slot = long_at(cache, cache->texts.data + old[i].text, old[i].length, old[i].hash);
        cache->longs_used += slot->length == 0;
        *slot = old[i];
    }
    memory_table_free(old, old_bytes);
    return GM_OK;
}

static gm_status keep_long(piece_cache *cache, const uint8_t *piece, size_t length, const int32_t *ids, size_t count) {
    if (2 * cache->longs_used >= cache->n_longs)
        GM_TRY(grow_longs(cache));
    uint64_t hash = long_hash(piece, length);
    long_slot kept = {hash, (uint32_t)cache->texts.size, (uint32_t)length, (uint32_t)cache->many.size, (uint32_t)count};
    long_slot *slot = long_at(cache, piece, length, hash);
    GM_TRY(bytes_append(&cache->texts, piece, length));
    GM_TRY(ids_reserve(&cache->many, count));
    if (count > 0)
        memcpy(cache->many.data + cache->many.size, ids, count * sizeof *ids);
    cache->many.size += count;
    cache->longs_used += slot->length == 0;
    *slot = kept;
    return GM_OK;
}

/* Puts ids into a slot that has `capacity` of them, or into `many`. */
static gm_status put_ids(piece_cache *cache, uint32_t *slot, size_t capacity, const int32_t *ids, size_t count,
                         uint32_t *code) {
    if (count <= capacity) {
        copy_ids((int32_t *)slot, ids, count);
        *code = (uint32_t)count;
        return GM_OK;
    }
    slot[0] = (uint32_t)cache->many.size;
    slot[1] = (uint32_t)count;
    *code = COUNT_MANY;
    GM_TRY(ids_reserve(&cache->many, count));
    copy_ids(cache->many.data + cache->many.size, ids, count);
    cache->many.size += count;
    return GM_OK;
}

gm_status piece_cache_keep(piece_cache *cache, const uint8_t *piece, size_t length, const int32_t *ids, size_t count) {
    if (cache->many.size > MOST_MANY || cache->texts.size > MOST_TEXT) {
        memset(cache->shorts, 0, cache->n_shorts * sizeof(short_slot));
        memset(cache->mediums, 0, cache->n_mediums * sizeof(medium_slot));
        memset(cache->longs, 0, cache->n_longs * sizeof(long_slot));
        cache->shorts_used = cache->mediums_used = cache->longs_used = cache->many.size = cache->texts.size = 0;
    }
    uint32_t code;
    if (length <= PIECE_SHORT) {
        if (5 * cache->shorts_used >= 2 * cache->n_shorts) /* fuller is slower, larger needs pages */
            GM_TRY(grow_shorts(cache));
        short_slot slot = {0};
        key_of(slot.key, 2, piece, length);
        GM_TRY(put_ids(cache, slot.ids, SHORT_IDS, ids, count, &code));
        slot.ids[SHORT_IDS - 1] |= code == COUNT_MANY ? 0 : code << COUNT_SHIFT;
        slot.key[1] |= code == COUNT_MANY ? MANY_KEY : 0;
        put_short(cache, &slot);
    } else if (length <= PIECE_MEDIUM) {
        if (2 * cache->mediums_used >= cache->n_mediums)
            GM_TRY(grow_mediums(cache));
        medium_slot slot = {0};
        key_of(slot.key, 4, piece, length);
        GM_TRY(put_ids(cache, slot.ids, MEDIUM_IDS, ids, count, &code));
        slot.count = code;
        put_medium(cache, &slot);
    } else if (length <= PIECE_LONG) {
        return keep_long(cache, piece, length, ids, count);
    }
    return GM_OK;
}
