/* vocab.h - token strings and ids, both ways.
 *  (1) Strings are in one blob; ids may be unused; an id has one string; a string added twice is found under its last
 *      id, and `repeats` is set.
 *  (2) Ids are below VOCAB_MAX, so that one number of a hostile file cannot allocate gigabytes. */
#ifndef GOMLX_TEXT_VOCAB_H
#define GOMLX_TEXT_VOCAB_H
#include <stdbool.h>
#include "text/buffer.h"

#define VOCAB_MAX (1 << 22)
#define VOCAB_BATCH 192

typedef struct { uint32_t offset, length; } vocab_token; /* length UINT32_MAX: unused id */
typedef struct {
    uint32_t hash;
    int32_t id;
} vocab_slot; /* id -1: free */
typedef struct {
    const char *text;
    size_t length;
} vocab_string;

typedef struct {
    byte_buffer blob;
    vocab_token *tokens; /* by id */
    size_t n_ids, id_capacity;
    vocab_slot *slots; /* open addressing, at most half full */
    size_t n_slots, n_strings;
    bool repeats; /* some string has more than one id */
} vocab;

/* Reserves memory for n strings of `bytes` bytes in total, which only saves time. */
gm_status vocab_reserve(vocab *v, size_t n, size_t bytes);
gm_status vocab_add(vocab *v, const char *text, size_t length, int64_t id);
/* The same for a large vocabulary: add all strings, then call vocab_index once. Until then they cannot be found. */
gm_status vocab_append(vocab *v, const char *text, size_t length, int64_t id);
gm_status vocab_index(vocab *v);
int32_t vocab_find(const vocab *v, const void *text, size_t length); /* -1 if there is none */
const char *vocab_text(const vocab *v, int32_t id, size_t *length);  /* NULL for an unused id */
/* Whether this id's string is the concatenation of the two, and is found under this id. */
bool vocab_is_joined(const vocab *v, int32_t id, vocab_string left, vocab_string right);
/* Looks up n <= VOCAB_BATCH strings together, so that cache misses overlap. */
void vocab_find_strings(const vocab *v, const vocab_string *strings, size_t n, int32_t *ids);
/* The tokens <0x00> to <0xFF>; -1 for a missing one. */
void vocab_find_bytes(const vocab *v, int32_t ids[256]);
void vocab_free(vocab *v);
#endif
