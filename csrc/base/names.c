/* names.c - open addressing with linear probing; names are never removed. */
#include "base/names.h"
#include <string.h>
#include <sys/random.h>
#include "base/error.h"
#include "base/memory.h"

static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_name(uint64_t seed, const char *text, size_t length) {
    uint64_t hash = seed ^ length, word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = mix(hash ^ word, seed | 0x9E3779B97F4A7C15u);
    }
    word = 0;
    if (length)
        memcpy(&word, text, length);
    hash = mix(hash ^ word, seed | 0x9E3779B97F4A7C15u);
    return mix(hash, 0xD6E8FEB86659FD93u);
}

/* The name's slot, or the free one to put it in. */
static name_slot *slot_of(const name_table *t, const char *text, size_t length) {
    for (size_t i = hash_name(t->seed, text, length);; i++) {
        name_slot *slot = &t->slots[i & (t->capacity - 1)];
        if (!slot->text || (slot->length == length && memcmp(slot->text, text, length) == 0))
            return slot;
    }
}

static gm_status widen(name_table *t) {
    name_table wider = {.capacity = t->capacity ? t->capacity * 2 : 64, .count = t->count, .seed = t->seed};
    if (wider.capacity > SIZE_MAX / sizeof(name_slot))
        return gm_fail(GM_ENOMEM, "out of memory: a table of more than %zu names cannot be addressed", t->count);
    if (!t->slots && getrandom(&wider.seed, sizeof wider.seed, GRND_NONBLOCK) != sizeof wider.seed)
        wider.seed = (uint64_t)(uintptr_t)t; /* there is no randomness early at boot */
    wider.slots = memory_zeroed(wider.capacity * sizeof(name_slot));
    if (!wider.slots)
        return GM_ENOMEM;
    for (size_t i = 0; i < t->capacity; i++)
        if (t->slots[i].text)
            *slot_of(&wider, t->slots[i].text, t->slots[i].length) = t->slots[i];
    memory_free(t->slots);
    *t = wider;
    return GM_OK;
}

gm_status names_add(name_table *t, const char *text, size_t length, int64_t number, int64_t *earlier) {
    if (t->count + 1 > t->capacity / 2)
        GM_TRY(widen(t));
    name_slot *slot = slot_of(t, text, length);
    *earlier = slot->text ? slot->number : -1;
    if (slot->text)
        return GM_OK;
    *slot = (name_slot){.text = text, .length = length, .number = number};
    t->count++;
    return GM_OK;
}

int64_t names_find(const name_table *t, const char *text, size_t length) {
    if (!t->slots)
        return -1;
    const name_slot *slot = slot_of(t, text, length);
    return slot->text ? slot->number : -1;
}

void names_free(name_table *t) {
    memory_free(t->slots);
    *t = (name_table){0};
}
