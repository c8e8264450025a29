/* fuzz_tokenizer.c - any bytes as a tokenizer.json, as a GGUF vocabulary and as a SentencePiece model; a tokenizer made
 * of them encodes and decodes a sample and its own file. The first byte chooses: 0 a tokenizer.json, 1 a GGUF file, 2 a
 * SentencePiece model, 3 that with a part of a tokenizer.json, which begins behind the first byte of 255.
 * clang -fsanitize=fuzzer,address,undefined with all of csrc/base and csrc/text,
 * kernels/quants.c and -lpcre2-8; seeds: small files behind such a byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memory_file.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The way that knows where each token comes from must give the same ids, from within the text. */
static void check_offsets(gm_tokenizer *t, const gm_text *input, const gm_encode_options *options, const int32_t *ids,
                          size_t count) {
    gm_encoding *e;
    gm_error error;
    if (gm_tokenizer_encoding(t, input, NULL, options, &e) != GM_OK) { /* a pattern that goes too far */
        if (gm_take_error(&error) != GM_EUNSUPPORTED)
            abort();
        return;
    }
    if (gm_encoding_size(e) != count)
        abort();
    for (size_t i = 0; i < count; i++) {
        gm_token_info token = gm_encoding_token(e, i);
        if (token.id != ids[i] || token.start < 0 || (size_t)token.end > input->length)
            abort();
    }
    gm_encoding_free(e);
}

/* Without the fast path, the ids are the same. */
static void check_general(gm_tokenizer *t, const gm_text *input, const gm_encode_options *options, const int32_t *ids,
                          size_t count) {
    quick_kind kind = t->quick.kind;
    bool by_lengths = t->by_lengths;
    int32_t *others;
    size_t n_others;
    t->quick.kind = QUICK_NOTHING;
    t->by_lengths = false;
    if (gm_tokenizer_encode(t, input, NULL, options, &others, &n_others, NULL) != GM_OK)
        abort();
    if (n_others != count || (count > 0 && memcmp(ids, others, count * sizeof *ids) != 0))
        abort();
    check_offsets(t, input, options, ids, count);
    gm_buffer_free(others);
    t->quick.kind = kind;
    t->by_lengths = by_lengths;
}

/* Encodes, decodes at once and as a stream. */
static void round_trip(gm_tokenizer *t, const char *text, size_t size) {
    int32_t *ids;
    size_t count, length, n;
    char *decoded;
    const char *part;
    gm_detokenizer *d;
    gm_error e;
    const gm_text input = {text, size, false, false};
    const gm_encode_options options = {.add_special = true, .parse_special = true};
    if (gm_tokenizer_encode(t, &input, NULL, &options, &ids, &count, NULL) != GM_OK) {
        if (gm_take_error(&e) == GM_OK)
            abort();
        return;
    }
    check_offsets(t, &input, &options, ids, count);
    check_general(t, &input, &options, ids, count);
    if (gm_tokenizer_decode(t, ids, count, false, &decoded, &length) != GM_OK) { /* a pattern that goes too far */
        if (gm_take_error(&e) != GM_EUNSUPPORTED)
            abort();
        gm_buffer_free(ids);
        return;
    }
    if (utf8_check((const uint8_t *)decoded, length) != length)
        abort();
    if (gm_detokenizer_new(t, false, false, &d) != GM_OK)
        abort();
    for (size_t i = 0; i <= count; i++) {
        gm_status status = i < count ? gm_detokenizer_push(d, ids[i], &part, &n) : gm_detokenizer_finish(d, &part, &n);
        if (status != GM_OK || utf8_check((const uint8_t *)part, n) != n)
            abort();
    }
    gm_detokenizer_free(d);
    gm_buffer_free(decoded);
    gm_buffer_free(ids);
}

/* All that is known about any bytes: offsets lie in them; whole encodings have the ids that encoding gives. */
static void encode_bytes(gm_tokenizer *t, const char *bytes, size_t size) {
    int32_t *ids;
    size_t count, length;
    gm_encoding *e;
    gm_error error;
    const gm_text input = {bytes, size, true, false};
    const gm_encode_options options = {.parse_special = true};
    if (gm_tokenizer_encode(t, &input, NULL, &options, &ids, &count, NULL) != GM_OK) {
        if (gm_take_error(&error) == GM_OK)
            abort();
        return;
    }
    if (gm_tokenizer_encoding(t, &input, NULL, &options, &e) != GM_OK || gm_encoding_size(e) != count)
        abort();
    for (size_t i = 0; i < count; i++) {
        gm_token_info token = gm_encoding_token(e, i);
        if (token.id != ids[i] || token.start < 0 || (size_t)token.end > size)
            abort();
        gm_encoding_text(e, e, i, t, &length);
    }
    gm_encoding_free(e);
    gm_buffer_free(ids);
    const gm_truncation truncation = {.max_length = 6 + size % 5, .stride = size % 3, .left = size % 2};
    const gm_padding padding = {.multiple_of = 4, .left = size % 3 == 0, .id = 1, .token = "pad", .token_length = 3};
    const gm_text first = {bytes, size < 64 ? size : 64, true, false};
    const gm_encode_options cut = {.add_special = true, .truncation = &truncation, .padding = &padding};
    if (gm_tokenizer_encoding(t, &first, &first, &cut, &e) == GM_OK) {
        if (gm_encoding_size(e) % 4 != 0)
            abort();
        gm_encoding_free(e);
    } else if (gm_take_error(&error) == GM_OK) {
        abort();
    }
}

static gm_status load(uint8_t kind, const uint8_t *data, size_t size, gm_tokenizer **out) {
    const char *parts = "";
    size_t n_parts = 0;
    if (kind == 0)
        return gm_tokenizer_from_json((const char *)data, size, "fuzz", out);
    if (kind == 1)
        return gm_tokenizer_from_gguf(memory_file(data, size), out);
    const uint8_t *split = kind == 2 || size == 0 ? NULL : memchr(data, 255, size);
    if (split != NULL) {
        parts = (const char *)split + 1;
        n_parts = size - (size_t)(split - data) - 1;
        size = (size_t)(split - data);
    }
    return gm_tokenizer_from_sentencepiece(data, size, &(gm_sentencepiece_options){parts, n_parts, true, true}, "fuzz",
                                           out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char sample[] = "Hello  world, it's 12345 \xE4\xB8\xAD\xE6\x96\x87 e\xCC\x81\n <s> <0x41>";
    gm_tokenizer *t;
    gm_error e;
    if (size == 0)
        return 0;
    uint8_t kind = *data++ % 4;
    size--;
    gm_status status = load(kind, data, size, &t);
    if (status != GM_OK) {
        if (gm_take_error(&e) != status)
            abort();
        return 0;
    }
    round_trip(t, sample, sizeof sample - 1);
    round_trip(t, (const char *)data, size < 4096 ? size : 4096);
    encode_bytes(t, (const char *)data, size < 4096 ? size : 4096);
    gm_tokenizer_release(t);
    return 0;
}
