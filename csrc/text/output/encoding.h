/* encoding.h - the tokens of a text with their offsets, texts and types. Truncation, joining and padding do what the
 * reference does, also with the parts that overflow.
 *  (1) A token whose text differs from the vocabulary's has it in the strings of the whole encoding, which
 *      gm_tokenizer_encoding returns; its parts borrow them.
 *  (2) Overflowing parts may have overflowing parts themselves, if two sequences are both too long. */
#ifndef GOMLX_TEXT_ENCODING_H
#define GOMLX_TEXT_ENCODING_H
#include "text/buffer.h"
#include "text/text_view.h"

#define OWN_TEXT UINT32_MAX
/* text: the offset in strings of its length and bytes, or OWN_TEXT for the vocabulary's. */
typedef struct {
    gm_token_info info;
    uint32_t text;
} encoding_token;
/* Tokens [start, end) belong to a sequence. */
typedef struct {
    int32_t sequence;
    size_t start, end;
} sequence_range;

typedef struct {
    gm_encoding **data;
    size_t size, capacity;
} encoding_list;
struct gm_encoding {
    encoding_token *tokens;
    size_t size, capacity;
    sequence_range *ranges; /* at most one per sequence */
    size_t n_ranges, range_capacity;
    encoding_list overflowing;
    byte_buffer strings; /* of the whole encoding; empty in parts */
};

gm_encoding *encoding_new(void);
gm_status encoding_push(gm_encoding *e, gm_token_info info, uint32_t text);
gm_status encoding_set_range(gm_encoding *e, int32_t sequence, size_t start, size_t end);
void encoding_set_type(gm_encoding *e, int32_t type_id);
gm_encoding *encoding_clone(const gm_encoding *e);
/* Takes ownership of the encoding, also on failure. */
gm_status encodings_push(encoding_list *list, gm_encoding *e);
void encodings_free(encoding_list *list);
/* Appends a string; *out is its offset. */
gm_status encoding_string(byte_buffer *strings, const void *text, size_t length, uint32_t *out);

gm_status encoding_truncate(gm_encoding *e, size_t max_length, size_t stride, bool left);
/* Truncates one sequence (second is NULL) or two to a total length. */
gm_status encodings_truncate(gm_encoding *first, gm_encoding *second, const gm_truncation *how);
gm_status encoding_pad(gm_encoding *e, size_t length, const gm_padding *how, uint32_t text);
size_t padded_length(const gm_padding *how, size_t longest);
/* Appends a copy of next to e; joins overflowing parts in every combination. */
gm_status encoding_join(gm_encoding *e, const gm_encoding *next);
/* Converts the offsets of tokens [from, size) from bytes of the text to scalars. */
void encoding_to_scalars(gm_encoding *e, size_t from, const uint8_t *text, size_t length);
#endif
