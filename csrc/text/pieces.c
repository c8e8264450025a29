/* pieces.c - the cache of pieces.h. */
#include "text/pieces.h"
#include "gomlx.h"

#define FIRST_SHORTS ((size_t)1 << 12)
#define MOST_SHORTS ((size_t)1 << 19)     /* 16 MiB */
#define FIRST_MEDIUMS ((size_t)1 << 8)
#define MOST_MEDIUMS ((size_t)1 << 16)    /* 4 MiB */
#define MOST_MANY ((size_t)1 << 20)

extern const piece_kernels
#if defined(__x86_64__)
    piece_kernels_avx2, piece_kernels_avx512,
#elif defined(__aarch64__)
    piece_kernels_neon,
#endif
    piece_kernels_generic;

const piece_kernels *piece_kernels_get(void) {
    const char *isa = gm_isa();
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0)
        return &piece_kernels_avx512;
    if (strcmp(isa, "avx2") == 0)
        return &piece_kernels_avx2;
#elif defined(__aarch64__)
    if (strcmp(isa, "neon") == 0)
        return &piece_kernels_neon;
#endif
    (void)isa;
    return &piece_kernels_generic;
}

gm_status piece_cache_new(piece_cache *cache) {
    cache->shorts = memory_table(FIRST_SHORTS * sizeof(short_slot));
    cache->mediums = memory_table(FIRST_MEDIUMS * sizeof(medium_slot));
    cache->n_shorts = FIRST_SHORTS;
    cache->n_mediums = FIRST_MEDIUMS;
    return cache->shorts == NULL || cache->mediums == NULL ? GM_ENOMEM : GM_OK;
}

void piece_cache_free(piece_cache *cache) {
    memory_table_free(cache->shorts, cache->n_shorts * sizeof(short_slot));
    memory_table_free(cache->mediums, cache->n_mediums * sizeof(medium_slot));
    memory_free(cache->many.data);
    *cache = (piece_cache){ 0 };
}

static void key_of(uint64_t *key, size_t words, const uint8_t *piece, size_t length, unsigned flags) {
    uint8_t bytes[PIECE_MEDIUM + 1] = { 0 };
    memcpy(bytes, piece, length);
    bytes[8 * words - 1] = (uint8_t)(length | flags);
    memcpy(key, bytes, 8 * words);
}

static size_t medium_home(const piece_cache *cache, const uint64_t key[4]) {
    return piece_mix(piece_mix(key[0], key[1]), piece_mix(key[2], key[3])) & (cache->n_mediums - 1);
}

static size_t short_home(const piece_cache *cache, const uint64_t key[2]) {
    return piece_mix(key[0], key[1]) & (cache->n_shorts - 1);
}

const uint32_t *piece_cache_find(const piece_cache *cache, const uint8_t *piece, size_t length, unsigned flags,
                                 size_t *count) {
    uint64_t key[4];
    const uint32_t *ids = NULL;
    size_t n = 0;
    if (length <= PIECE_SHORT) {
        key_of(key, 2, piece, length, flags);
        size_t at = short_home(cache, key);
        for (int i = 0; i < CACHE_PROBES && ids == NULL; i++, at = (at + 1) & (cache->n_shorts - 1)) {
            const short_slot *slot = &cache->shorts[at];
            if (slot->key[1] == 0)
                return NULL;
            if (slot->key[0] != key[0] || slot->key[1] != key[1])
                continue;
            ids = slot->ids;
            n = slot->ids[SHORT_IDS - 1] >> COUNT_SHIFT;
        }
    } else if (length <= PIECE_MEDIUM) {
        key_of(key, 4, piece, length, flags);
        size_t at = medium_home(cache, key);
        for (int i = 0; i < CACHE_PROBES && ids == NULL; i++, at = (at + 1) & (cache->n_mediums - 1)) {
            const medium_slot *slot = &cache->mediums[at];
            if (slot->key[3] == 0)
                return NULL;
            if (memcmp(slot->key, key, sizeof key) != 0)
                continue;
            ids = slot->ids;
            n = slot->count;
        }
    }
    if (ids != NULL && n == COUNT_MANY) {
        n = ids[1];
        ids = (const uint32_t *)cache->many.data + ids[0];
    }
    *count = n;
    return ids;
}

/* Twice the table, or the same one empty when it has its largest size. */
static gm_status grow_shorts(piece_cache *cache) {
    size_t n = cache->n_shorts < MOST_SHORTS ? 2 * cache->n_shorts : cache->n_shorts;
    short_slot *slots = memory_table(n * sizeof *slots), *old = cache->shorts;
    size_t old_bytes = cache->n_shorts * sizeof *old, n_old = n > cache->n_shorts ? cache->n_shorts : 0;
    if (slots == NULL)
        return GM_ENOMEM;
    cache->shorts = slots;
    cache->n_shorts = n;
    cache->shorts_used = 0;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].key[1] == 0)
            continue;
        size_t at = short_home(cache, old[i].key);
        int probes = 0;
        while (slots[at].key[1] != 0 && ++probes < CACHE_PROBES)
            at = (at + 1) & (n - 1);
        cache->shorts_used += slots[at].key[1] == 0;
        slots[at] = old[i];
    }
    memory_table_free(old, old_bytes);
    return GM_OK;
}

static gm_status grow_mediums(piece_cache *cache) {
    size_t n = cache->n_mediums < MOST_MEDIUMS ? 2 * cache->n_mediums : cache->n_mediums;
    medium_slot *slots = memory_table(n * sizeof *slots), *old = cache->mediums;
    size_t old_bytes = cache->n_mediums * sizeof *old, n_old = n > cache->n_mediums ? cache->n_mediums : 0;
    if (slots == NULL)
        return GM_ENOMEM;
    cache->mediums = slots;
    cache->n_mediums = n;
    cache->mediums_used = 0;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].key[3] == 0)
            continue;
        size_t at = medium_home(cache, old[i].key);
        int probes = 0;
        while (slots[at].key[3] != 0 && ++probes < CACHE_PROBES)
            at = (at + 1) & (n - 1);
        cache->mediums_used += slots[at].key[3] == 0;
        slots[at] = old[i];
    }
    memory_table_free(old, old_bytes);
    return GM_OK;
}

/* The ids as a slot holds them: themselves, or where they lie in `many`. */
static gm_status put_ids(piece_cache *cache, uint32_t *slot, size_t room, const int32_t *ids, size_t count,
                         uint32_t *code) {
    if (count <= room) {
        memcpy(slot, ids, count * sizeof *ids);
        *code = (uint32_t)count;
        return GM_OK;
    }
    slot[0] = (uint32_t)cache->many.size;
    slot[1] = (uint32_t)count;
    *code = COUNT_MANY;
    for (size_t i = 0; i < count; i++)
        GM_TRY(ids_append(&cache->many, ids[i]));
    return GM_OK;
}

gm_status piece_cache_keep(piece_cache *cache, const uint8_t *piece, size_t length, unsigned flags,
                           const int32_t *ids, size_t count) {
    if (cache->many.size > MOST_MANY) {
        memset(cache->shorts, 0, cache->n_shorts * sizeof(short_slot));
        memset(cache->mediums, 0, cache->n_mediums * sizeof(medium_slot));
        cache->shorts_used = cache->mediums_used = cache->many.size = 0;
    }
    uint32_t code;
    if (length <= PIECE_SHORT) {
        if (2 * cache->shorts_used >= cache->n_shorts)
            GM_TRY(grow_shorts(cache));
        short_slot slot = { 0 };
        key_of(slot.key, 2, piece, length, flags);
        GM_TRY(put_ids(cache, slot.ids, SHORT_IDS, ids, count, &code));
        slot.ids[SHORT_IDS - 1] |= code << COUNT_SHIFT;
        size_t at = short_home(cache, slot.key);
        for (int i = 1; i < CACHE_PROBES && cache->shorts[at].key[1] != 0; i++)
            at = (at + 1) & (cache->n_shorts - 1);
        cache->shorts_used += cache->shorts[at].key[1] == 0;
        cache->shorts[at] = slot;
    } else if (length <= PIECE_MEDIUM) {
        if (2 * cache->mediums_used >= cache->n_mediums)
            GM_TRY(grow_mediums(cache));
        medium_slot slot = { 0 };
        key_of(slot.key, 4, piece, length, flags);
        GM_TRY(put_ids(cache, slot.ids, MEDIUM_IDS, ids, count, &code));
        slot.count = code;
        size_t at = medium_home(cache, slot.key);
        for (int i = 1; i < CACHE_PROBES && cache->mediums[at].key[3] != 0; i++)
            at = (at + 1) & (cache->n_mediums - 1);
        cache->mediums_used += cache->mediums[at].key[3] == 0;
        cache->mediums[at] = slot;
    }
    return GM_OK;
}
