/* fuzz_tokenizer.c - any bytes as a tokenizer.json, as a GGUF vocabulary, as a SentencePiece model, and as a text for
 * small tokenizers. The first byte chooses: 0 a tokenizer.json, 1 a GGUF file, 2 a SentencePiece model, else a text for
 * one of the patterns below.
 * clang -fsanitize=fuzzer,address,undefined with csrc/base/{error,memory,names,json,file,gguf}.c, csrc/text/ *.c,
 * kernels/quants.c and -lpcre2-8; seeds: small tokenizer.json files behind a zero byte, texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memory_file.h"
#include "text/bpe.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Lossless ones: what they encode decodes to the same text. */
static const char *const pre_tokenizers[] = {
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
#define SPLIT(pattern)                                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{" \
    "\"Regex\":\"" pattern "\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
    SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+"
          "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"),
    SPLIT("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}"
          "\\\\p{M}]+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}"
          "\\\\p{Lo}\\\\p{M}]*|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*"
          "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"),
    SPLIT("\\\\w+(?=\\\\s)|\\\\b|[^a-z]"),
};
enum { N_TEXTS = sizeof pre_tokenizers / sizeof pre_tokenizers[0] };

/* All bytes, and a few merges. */
static gm_tokenizer *make(const char *pre_tokenizer) {
    static char json[1 << 15];
    size_t n = 0;
    n += (size_t)sprintf(json + n,
                         "{\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true}],\"pre_tokenizer\":%s,"
                         "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{", pre_tokenizer);
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t text[5] = { 0 };
        utf8_put(alphabet_char((uint8_t)byte), text);
        bool escaped = byte == '"' || byte == '\\';
        n += (size_t)sprintf(json + n, "\"%s%s\":%u,", escaped ? "\\" : "", (char *)text, byte);
    }
    n += (size_t)sprintf(json + n,
                         "\"aa\":256,\"aaa\":257,\"aaaa\":258,\"ab\":259},\"merges\":[[\"aa\",\"a\"],[\"a\",\"a\"],"
                         "[\"aa\",\"aa\"],[\"a\",\"b\"]]}}");
    gm_tokenizer *t;
    if (gm_tokenizer_from_json(json, n, "fuzz", &t) != GM_OK) abort();
    return t;
}

/* The way that knows where each token comes from must give the same ids, from within the text. */
static void check_offsets(gm_tokenizer *t, const gm_text *input, const gm_encode_options *options, const int32_t *ids,
                          size_t count) {
    gm_encoding *e;
    gm_error error;
    if (gm_tokenizer_encoding(t, input, NULL, options, &e) != GM_OK) {    /* a pattern that goes too far */
        if (gm_take_error(&error) != GM_EUNSUPPORTED) abort();
        return;
    }
    if (gm_encoding_size(e) != count) abort();
    for (size_t i = 0; i < count; i++) {
        gm_token_info token = gm_encoding_token(e, i);
        if (token.id != ids[i] || token.start < 0 || (size_t)token.end > input->length) abort();
    }
    gm_encoding_free(e);
}

/* Encodes, decodes at once and as a stream. With `same`, the text must come back. */
static void round_trip(gm_tokenizer *t, const char *text, size_t size, bool same) {
    int32_t *ids;
    size_t count, length, done = 0, n;
    char *decoded;
    const char *part;
    gm_detokenizer *d;
    gm_error e;
    const gm_text input = { text, size, false, false };
    const gm_encode_options options = { .add_special = true, .parse_special = true };
    if (gm_tokenizer_encode(t, &input, NULL, &options, &ids, &count, NULL) != GM_OK) {
        if (gm_take_error(&e) == GM_OK || (same && utf8_check((const uint8_t *)text, size) == size)) abort();
        return;
    }
    check_offsets(t, &input, &options, ids, count);
    if (gm_tokenizer_decode(t, ids, count, false, &decoded, &length) != GM_OK) {    /* a pattern that goes too far */
        if (gm_take_error(&e) != GM_EUNSUPPORTED || same) abort();
        gm_buffer_free(ids);
        return;
    }
    if (utf8_check((const uint8_t *)decoded, length) != length) abort();
    if (same && (length != size || (size > 0 && memcmp(decoded, text, size) != 0))) abort();
    if (gm_detokenizer_new(t, false, false, &d) != GM_OK) abort();
    for (size_t i = 0; i <= count; i++) {
        gm_status status = i < count ? gm_detokenizer_push(d, ids[i], &part, &n) : gm_detokenizer_finish(d, &part, &n);
        if (status != GM_OK || utf8_check((const uint8_t *)part, n) != n) abort();
        if (same && (done + n > length || (n > 0 && memcmp(decoded + done, part, n) != 0))) abort();
        done += n;
    }
    if (same && done != length) abort();
    gm_detokenizer_free(d);
    gm_buffer_free(decoded);
    gm_buffer_free(ids);
}

/* All that is known about any bytes: offsets lie in them; whole encodings have the ids that encoding gives. With `same`,
 * the bytes come back. */
static void encode_bytes(gm_tokenizer *t, const char *bytes, size_t size, bool same) {
    int32_t *ids;
    size_t count, length;
    char *decoded;
    gm_encoding *e;
    gm_error error;
    const gm_text input = { bytes, size, true };
    const gm_encode_options options = { .parse_special = true };
    if (gm_tokenizer_encode(t, &input, NULL, &options, &ids, &count, NULL) != GM_OK) {
        if (gm_take_error(&error) == GM_OK || same) abort();
        return;
    }
    if (gm_tokenizer_encoding(t, &input, NULL, &options, &e) != GM_OK || gm_encoding_size(e) != count) abort();
    for (size_t i = 0; i < count; i++) {
        gm_token_info token = gm_encoding_token(e, i);
        if (token.id != ids[i] || token.start < 0 || (size_t)token.end > size) abort();
        gm_encoding_text(e, e, i, t, &length);
    }
    gm_encoding_free(e);
    if (same) {
        if (gm_tokenizer_decode_bytes(t, ids, count, false, &decoded, &length) != GM_OK) abort();
        if (length != size || (size > 0 && memcmp(decoded, bytes, size) != 0)) abort();
        gm_buffer_free(decoded);
    }
    gm_buffer_free(ids);
    const gm_truncation truncation = { .max_length = 6 + size % 5, .stride = size % 3, .left = size % 2 };
    const gm_padding padding = { .multiple_of = 4, .left = size % 3 == 0, .id = 1, .token = "pad", .token_length = 3 };
    const gm_text first = { bytes, size < 64 ? size : 64, true };
    const gm_encode_options cut = { .add_special = true, .truncation = &truncation, .padding = &padding };
    if (gm_tokenizer_encoding(t, &first, &first, &cut, &e) == GM_OK) {
        if (gm_encoding_size(e) % 4 != 0) abort();
        gm_encoding_free(e);
    } else if (gm_take_error(&error) == GM_OK) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gm_tokenizer *for_texts[N_TEXTS];
    static const char sample[] = "Hello  world, it's 12345 \xE4\xB8\xAD\xE6\x96\x87 e\xCC\x81\n <s> <0x41>";
    gm_tokenizer *t;
    gm_error e;
    if (size == 0) return 0;
    uint8_t kind = *data++;
    size--;
    if (kind > 2) {
        unsigned which = kind % N_TEXTS;
        if (!for_texts[which]) for_texts[which] = make(pre_tokenizers[which]);
        round_trip(for_texts[which], (const char *)data, size, true);
        encode_bytes(for_texts[which], (const char *)data, size, true);
        return 0;
    }
    gm_status status = kind == 0   ? gm_tokenizer_from_json((const char *)data, size, "fuzz", &t)
                       : kind == 1 ? gm_tokenizer_from_gguf(memory_file(data, size), &t)
                                   : gm_tokenizer_from_sentencepiece(data, size, "", 0, true, true, "fuzz", &t);
    if (status != GM_OK) {
        if (gm_take_error(&e) != status) abort();
        return 0;
    }
    round_trip(t, sample, sizeof sample - 1, false);
    round_trip(t, (const char *)data, size < 4096 ? size : 4096, false);
    encode_bytes(t, (const char *)data, size < 4096 ? size : 4096, false);
    gm_tokenizer_release(t);
    return 0;
}
