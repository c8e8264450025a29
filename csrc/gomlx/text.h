/* text.h - tokenizers: a chapter of gomlx.h. */
#ifndef GOMLX_TEXT_H
#define GOMLX_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx/base.h"

/* ---- tokenizers (csrc/text) ---- */
typedef struct gm_tokenizer gm_tokenizer;
typedef struct gm_detokenizer gm_detokenizer;
/* A tokenizer.json file's text. name is used in messages. */
gm_status gm_tokenizer_from_json(const char *json, size_t length, const char *name, gm_tokenizer **out);
/* The vocabulary in a GGUF file's metadata. */
gm_status gm_tokenizer_from_gguf(const char *path, gm_tokenizer **out);
/* What tokenizer.ggml.pre may be and stands for: patterns that cut text one after the other (NULL behind the last), NFC
 * before them, whole pieces looked up before merges, the start token unless the file says otherwise. */
typedef struct {
    const char *name;
    const char *const *patterns;
    bool nfc, ignore_merges, add_bos;
} gm_gguf_pre;
bool gm_gguf_pre_type(size_t i, gm_gguf_pre *out); /* false: there are no more than i */
/* A SentencePiece .model file's bytes. parts, which may be empty: the text of a tokenizer.json without a model, for
 * added tokens, of which such a file knows only some. add_bos, add_eos: around a text, with the ids that the file
 * gives. */
typedef struct {
    const char *parts;
    size_t parts_length;
    bool add_bos, add_eos;
} gm_sentencepiece_options;
gm_status gm_tokenizer_from_sentencepiece(const void *data, size_t length, const gm_sentencepiece_options *o,
                                          const char *name, gm_tokenizer **out);
gm_tokenizer *gm_tokenizer_retain(gm_tokenizer *t);
void gm_tokenizer_release(gm_tokenizer *t);
/* Texts are UTF-8, else GM_EVALUE; with raw they may be any bytes: what is not UTF-8 becomes tokens of single bytes,
 * GM_EVALUE where the vocabulary has none. valid: it is known to be UTF-8, and not checked again. */
typedef struct {
    const char *data;
    size_t length;
    bool raw, valid;
} gm_text;
typedef enum { GM_TRUNCATE_LONGEST_FIRST, GM_TRUNCATE_ONLY_FIRST, GM_TRUNCATE_ONLY_SECOND } gm_truncation_strategy;
/* In tokens, special ones included; neighbouring parts have stride tokens in common. left: a text's start is cut off.
 */
typedef struct {
    size_t max_length, stride;
    gm_truncation_strategy strategy;
    bool left;
} gm_truncation;
/* fixed: to `length` tokens, else to the longest of the texts; then up to a multiple (0: none). */
typedef struct {
    bool fixed, left;
    size_t length, multiple_of;
    int32_t id, type_id;
    const char *token; /* what tells of the padding's tokens call them */
    size_t token_length;
} gm_padding;
/* add_special: what the post-processor adds, such as BOS. parse_special: text of special tokens becomes those tokens
 * (as Hugging Face does). truncation and padding: NULL for none. */
typedef struct {
    bool add_special, parse_special;
    const gm_truncation *truncation;
    const gm_padding *padding;
} gm_encode_options;
/* What the file declares, NULL for nothing. Borrowed. */
const gm_truncation *gm_tokenizer_truncation(const gm_tokenizer *t);
const gm_padding *gm_tokenizer_padding(const gm_tokenizer *t);
/* Ids of a text, or of a pair of texts (pair NULL: one); *ids is from gm_buffer_free's allocator. truncated (NULL is
 * fine): whether any were cut off. */
gm_status gm_tokenizer_encode(gm_tokenizer *t, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                              int32_t **ids, size_t *count, bool *truncated);
/* The same, and all that is known about the tokens: the bytes of the text that each stands for (raw), or its scalars;
 * the number of its word and of its type; whether it was added (special), whether it is more than padding. */
typedef struct {
    int32_t id, type_id, word, start, end;
    bool special, attention;
} gm_token_info; /* word -1: none */
typedef struct gm_encoding gm_encoding;
gm_status gm_tokenizer_encoding(gm_tokenizer *t, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                                gm_encoding **out);
size_t gm_encoding_size(const gm_encoding *e);
gm_token_info gm_encoding_token(const gm_encoding *e, size_t i);
/* What token i is called. whole: the encoding that e is, or is an overflowing part of. Borrowed; NULL for a hole. */
const char *gm_encoding_text(const gm_encoding *whole, const gm_encoding *e, size_t i, const gm_tokenizer *t,
                             size_t *length);
void gm_encoding_sequences(const gm_encoding *e, int32_t *out); /* of each token: 0, 1, or -1 for none */
/* What truncation took away, in parts of at most its length. Borrowed. */
size_t gm_encoding_overflowing(const gm_encoding *e);
const gm_encoding *gm_encoding_overflow(const gm_encoding *e, size_t i);
void gm_encoding_free(gm_encoding *e);
/* Many texts (pairs: NULL, or one for each) on several threads, in slices as evaluation is: begin, step until it is not
 * GM_AGAIN, free. What each becomes does not depend on the others nor on the threads, but for padding to the longest.
 * The texts are borrowed until free. A failure is that of the first text that fails, whose number the message tells. */
typedef struct {
    const gm_text *texts, *pairs;
    size_t n;
    bool encodings; /* whole encodings; else ids alone */
    int threads;    /* at most; 0: those of the engine */
} gm_encode_request;
typedef struct gm_encode_batch gm_encode_batch;
gm_status gm_encode_begin(gm_tokenizer *t, const gm_encode_request *request, const gm_encode_options *o,
                          gm_encode_batch **out);
gm_status gm_encode_step(gm_encode_batch *b, int slice_ms);
/* Without encodings: the ids, which lie in some blocks. take gives a block away, for gm_buffer_free. */
typedef struct {
    size_t block, start, count;
    bool truncated;
} gm_encoded;
size_t gm_encode_blocks(const gm_encode_batch *b);
int32_t *gm_encode_take(gm_encode_batch *b, size_t block, size_t *count);
gm_encoded gm_encode_result(const gm_encode_batch *b, size_t i);
const int32_t *gm_encode_ids(const gm_encode_batch *b, size_t i);
gm_encoding *gm_encode_encoding(gm_encode_batch *b, size_t i); /* given away */
void gm_encode_free(gm_encode_batch *b);
/* Text of ids; bytes that are not UTF-8 become U+FFFD as in Hugging Face's decode. Not NUL-terminated. */
gm_status gm_tokenizer_decode(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **text,
                              size_t *length);
/* The bytes of ids of a byte-level vocabulary, UTF-8 or not; any other is GM_EUNSUPPORTED. */
gm_status gm_tokenizer_decode_bytes(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **bytes,
                                    size_t *length);
/* The bytes that each of the ids adds to a text that others have begun: of a part of a character that part, of
 * WordPiece's beginnings of words a space before them, of a special token its own text, nothing of an id that no token
 * has. first: one or two ids with text of their own, which begin that text; a byte-level vocabulary needs none. The id
 * i has the bytes from ends[i - 1] (0 for the first) to ends[i]; *bytes is given away, for gm_buffer_free. */
gm_status gm_tokenizer_token_bytes(gm_tokenizer *t, const int32_t *ids, size_t count, const int32_t *first,
                                   size_t n_first, size_t *ends, char **bytes);
int64_t gm_tokenizer_vocab_size(const gm_tokenizer *t); /* added tokens included: largest id + 1 */
/* The same of the model's vocabulary alone, without what is an added token too. */
int64_t gm_tokenizer_base_size(const gm_tokenizer *t);
/* The token's own string; NULL for a hole. *length in bytes. Borrowed. */
const char *gm_tokenizer_token(const gm_tokenizer *t, int32_t id, size_t *length);
int32_t gm_tokenizer_id(const gm_tokenizer *t, const char *token, size_t length); /* -1 when there is none */
bool gm_tokenizer_is_special(const gm_tokenizer *t, int32_t id);
void gm_buffer_free(void *buffer);
/* Incremental decoding: each push gives the text that is certain now; never half a character, never U+FFFD early.
 * The concatenation of all pushes and the finish equals the batch decode, but for a run of <0xNN> tokens that is not
 * UTF-8: of that the batch, as Hugging Face, keeps nothing, a stream what was whole. strict: such runs are held back
 * until they end, and there is no exception. *text is borrowed until the next call. */
gm_status gm_detokenizer_new(gm_tokenizer *t, bool skip_special, bool strict, gm_detokenizer **out);
gm_status gm_detokenizer_push(gm_detokenizer *d, int32_t id, const char **text, size_t *length);
gm_status gm_detokenizer_finish(gm_detokenizer *d, const char **text, size_t *length);
void gm_detokenizer_free(gm_detokenizer *d);
#endif
