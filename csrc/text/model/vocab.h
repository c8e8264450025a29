/* vocab.h - token strings and ids, both ways.
 *  (1) Strings lie in one blob; ids may have holes; an id has one string; a string given twice is found under
 *      its last id, and then `repeats` is set.
 *  (2) Ids are below VOCAB_MAX: a hostile file cannot ask for gigabytes with one number. */
#ifndef GOMLX_TEXT_VOCAB_H
#define GOMLX_TEXT_VOCAB_H
#include <stdbool.h>
#include "text/buffer.h"

#define VOCAB_MAX (1 << 22)
#define VOCAB_BATCH 192

typedef struct { uint32_t offset, length; } vocab_token;    /* length UINT32_MAX: a hole */
typedef struct { uint32_t hash; int32_t id; } vocab_slot;   /* id -1: free */
typedef struct { const char *text; size_t length; } vocab_string;

typedef struct {
    byte_buffer blob;
    vocab_token *tokens;      /* by id */
    size_t n_ids, id_capacity;
    vocab_slot *slots;        /* open addressing, at most half full */
    size_t n_slots, n_strings;
    bool repeats;             /* some string is there under more than one id */
} vocab;

/* Room for n strings of `bytes` bytes together; only saves time. */
gm_status vocab_reserve(vocab *v, size_t n, size_t bytes);
gm_status vocab_add(vocab *v, const char *text, size_t length, int64_t id);
/* The same for a vocabulary of hundreds of thousands: all strings first, which then cannot be found until vocab_index
 * has been called once. */
gm_status vocab_append(vocab *v, const char *text, size_t length, int64_t id);
gm_status vocab_index(vocab *v);
int32_t vocab_find(const vocab *v, const void *text, size_t length);             /* -1 when there is none */
const char *vocab_text(const vocab *v, int32_t id, size_t *length);             /* NULL for a hole */
/* Whether the string is these two in a row, and is found under this id. */
bool vocab_is_joined(const vocab *v, int32_t id, vocab_string left, vocab_string right);
/* Looks up n <= VOCAB_BATCH strings at a time, so that waiting for memory overlaps. */
void vocab_find_strings(const vocab *v, const vocab_string *strings, size_t n, int32_t *ids);
/* The tokens <0x00> to <0xFF>; -1 where there is none. */
void vocab_find_bytes(const vocab *v, int32_t ids[256]);
void vocab_free(vocab *v);
#endif
