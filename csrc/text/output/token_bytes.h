/* token_bytes.h - the bytes of a byte-level vocabulary's tokens, by id, in one block. Made when first needed, then only
 * read. */
#ifndef GOMLX_TEXT_TOKEN_BYTES_H
#define GOMLX_TEXT_TOKEN_BYTES_H
#include "text/buffer.h"

#define TOKEN_BYTES_MARGIN 16 /* bytes that can be read after the last one */

typedef struct {
    size_t n_ids;
    uint32_t *starts; /* of each id's bytes; starts[n_ids] is the end of all */
    uint8_t *data;
} token_bytes;

static inline uint32_t token_length(const token_bytes *b, int32_t id) {
    return (size_t)(uint32_t)id < b->n_ids ? b->starts[id + 1] - b->starts[id] : 0;
}

/* The bytes that the ByteLevel decoder gives: a token with a character outside the alphabet is its own text. */
gm_status token_bytes_of(gm_tokenizer *t, const token_bytes **out);
void token_bytes_free(token_bytes *b);
/* Appends the bytes of ids. */
gm_status token_bytes_join(const token_bytes *b, const gm_tokenizer *t, const int32_t *ids, size_t count,
                           bool skip_special, byte_buffer *out);
#endif
