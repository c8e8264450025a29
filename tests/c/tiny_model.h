/* tiny_model.h - two small random models, written to a temporary folder: a GGUF file with a SentencePiece vocabulary,
 * and safetensors with a byte-level tokenizer.json. */
#ifndef GOMLX_TESTS_TINY_MODEL_H
#define GOMLX_TESTS_TINY_MODEL_H
#include <stdlib.h>
#include <unistd.h>
#include "check.h"

enum { VOCAB = 300, HIDDEN = 64, LAYERS = 2, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, MLP = 96 };

static char folder[] = "/tmp/gomlx-test-XXXXXX";

typedef struct {
    uint8_t *data;
    size_t size, capacity;
} bytes;

static void put(bytes *b, const void *data, size_t size) {
    if (b->size + size > b->capacity) {
        b->capacity = 2 * (b->size + size);
        b->data = realloc(b->data, b->capacity);
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_u32(bytes *b, uint32_t v) { put(b, &v, 4); }
static void put_u64(bytes *b, uint64_t v) { put(b, &v, 8); }
static void put_string(bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}
static void put_text(bytes *b, const char *text) { put(b, text, strlen(text)); }

static const char *path_in(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, bytes *b) {
    FILE *f = fopen(path_in(name), "wb");
    CHECK(f && fwrite(b->data, 1, b->size, f) == b->size && fclose(f) == 0);
    free(b->data);
}

static uint32_t noise(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* ---- the weights ---- */
typedef struct {
    const char *hf, *gguf;
    int rows, columns;
} weight; /* columns 0: a vector; %d: the layer */

static const weight in_layer[] = {
    {"model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", HIDDEN, 0},
    {"model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", HEADS * HEAD_DIM, HIDDEN},
    {"model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN},
    {"model.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN},
    {"model.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", HIDDEN, HEADS * HEAD_DIM},
    {"model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", HIDDEN, 0},
    {"model.layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", MLP, HIDDEN},
    {"model.layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", MLP, HIDDEN},
    {"model.layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", HIDDEN, MLP},
};
static const weight outside[] = {
    {"model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN},
    {"model.norm.weight", "output_norm.weight", HIDDEN, 0},
    {"lm_head.weight", "output.weight", VOCAB, HIDDEN},
};
enum {
    IN_LAYER = sizeof in_layer / sizeof *in_layer,
    WEIGHTS = LAYERS * IN_LAYER + sizeof outside / sizeof *outside,
};

static const weight *weight_at(int i, bool gguf, char name[80]) {
    const weight *w = i < LAYERS * IN_LAYER ? &in_layer[i % IN_LAYER] : &outside[i - LAYERS * IN_LAYER];
    const char *pattern = gguf ? w->gguf : w->hf, *mark = strstr(pattern, "%d");
    if (mark)
        snprintf(name, 80, "%.*s%d%s", (int)(mark - pattern), pattern, i / IN_LAYER, mark + 2);
    else
        snprintf(name, 80, "%s", pattern);
    return w;
}

static void put_floats(bytes *b, int n) {
    for (int i = 0; i < n; i++)
        put(b, &(float){(float)noise() / (1 << 23) * 0.5f - 0.5f}, 4);
}

/* ---- GGUF: matrices as Q8_0, a SentencePiece vocabulary ---- */
static void put_entry(bytes *b, const char *key, uint32_t type) {
    put_string(b, key);
    put_u32(b, type);
}

static void write_gguf(void) {
    static const char *const keys[] = {"embedding_length",        "block_count",
                                       "feed_forward_length",     "attention.head_count",
                                       "attention.head_count_kv", "context_length"};
    const uint32_t values[] = {HIDDEN, LAYERS, MLP, HEADS, KV_HEADS, 128};
    bytes b = {0};
    char name[80];
    uint64_t offset = 0;
    put_text(&b, "GGUF");
    put_u32(&b, 3);
    put_u64(&b, WEIGHTS);
    put_u64(&b, 13);
    put_entry(&b, "general.architecture", 8), put_string(&b, "llama");
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "llama.%s", keys[i]);
        put_entry(&b, name, 4), put_u32(&b, values[i]);
    }
    put_entry(&b, "tokenizer.ggml.model", 8), put_string(&b, "llama");
    put_entry(&b, "tokenizer.ggml.bos_token_id", 4), put_u32(&b, 1);
    put_entry(&b, "tokenizer.ggml.eos_token_id", 4), put_u32(&b, 2);
    put_entry(&b, "tokenizer.ggml.tokens", 9), put_u32(&b, 8), put_u64(&b, VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        if (i < 3)
            snprintf(name, sizeof name, "%s", (const char *const[]){"<unk>", "<s>", "</s>"}[i]);
        else if (i < 259)
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)(i - 3));
        else if (i < 285)
            snprintf(name, sizeof name, "%c", 'a' + i - 259);
        else
            snprintf(name, sizeof name, "\xE2\x96\x81%.1s", &"abcdefghijklmn"[i - 285]);
        put_string(&b, name);
    }
    put_entry(&b, "tokenizer.ggml.scores", 9), put_u32(&b, 6), put_u64(&b, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        put(&b, &(float){(float)-i}, 4);
    put_entry(&b, "tokenizer.ggml.token_type", 9), put_u32(&b, 5), put_u64(&b, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        put_u32(&b, i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
    for (int i = 0; i < WEIGHTS; i++) {
        const weight *w = weight_at(i, true, name);
        put_string(&b, name);
        put_u32(&b, w->columns ? 2 : 1);
        if (w->columns)
            put_u64(&b, (uint64_t)w->columns);
        put_u64(&b, (uint64_t)w->rows);
        put_u32(&b, w->columns ? 8 : 0);
        put_u64(&b, offset);
        offset += (uint64_t)(w->columns ? w->rows * w->columns / 32 * 34 : w->rows * 4);
        offset = (offset + 31) / 32 * 32;
    }
    while (b.size % 32)
        put_text(&b, "x");
    for (int i = 0; i < WEIGHTS; i++) {
        const weight *w = weight_at(i, true, name);
        if (!w->columns)
            put_floats(&b, w->rows);
        for (int block = 0; block < w->rows * w->columns / 32; block++) {
            put(&b, "\x00\x18", 2); /* float16 0.002 */
            for (int k = 0; k < 32; k++)
                put(&b, &(uint8_t){(uint8_t)noise()}, 1);
        }
        while (b.size % 32)
            put_text(&b, "x");
    }
    write_file("tiny.gguf", &b);
}

/* ---- a folder: float32, shards with an index, a byte-level vocabulary ---- */
static void write_shard(const char *name, int from, int to) {
    bytes b = {0}, header = {0};
    char text[300], tensor[80];
    int offset = 0;
    for (int i = from; i < to; i++) {
        const weight *w = weight_at(i, false, tensor);
        int n = 4 * w->rows * (w->columns ? w->columns : 1);
        char columns[16] = "";
        if (w->columns)
            snprintf(columns, sizeof columns, ",%d", w->columns);
        snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%d%s],\"data_offsets\":[%d,%d]}",
                 i > from ? ',' : '{', tensor, w->rows, columns, offset, offset + n);
        put_text(&header, text);
        offset += n;
    }
    put_text(&header, "}");
    put_u64(&b, header.size);
    put(&b, header.data, header.size);
    put_floats(&b, offset / 4);
    free(header.data);
    write_file(name, &b);
}

static void write_folder(void) {
    char text[600];
    bytes config = {0}, index = {0}, tokenizer = {0};
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"vocab_size\":%d,\"hidden_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"intermediate_size\":%d,"
             "\"max_position_embeddings\":128,\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":10000.0,"
             "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
             "\"original_max_position_embeddings\":64}}",
             VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, MLP);
    put_text(&config, text);
    write_file("config.json", &config);
    write_shard("model-00001-of-00002.safetensors", 0, IN_LAYER);
    write_shard("model-00002-of-00002.safetensors", IN_LAYER, WEIGHTS);
    put_text(&index, "{\"weight_map\":{");
    for (int i = 0; i < WEIGHTS; i++) {
        char tensor[80];
        weight_at(i, false, tensor);
        snprintf(text, sizeof text, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "", tensor,
                 i < IN_LAYER ? 1 : 2);
        put_text(&index, text);
    }
    put_text(&index, "}}");
    write_file("model.safetensors.index.json", &index);
    put_text(&tokenizer,
             "{\"added_tokens\":[{\"id\":299,\"content\":\"<|end|>\",\"special\":true}],\"pre_tokenizer\":{\"type\":"
             "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},"
             "\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < 94; i++) {
        char c = (char)('!' + i);
        snprintf(text, sizeof text, "\"%s%c\":%d,", c == '"' || c == '\\' ? "\\" : "", c, i);
        put_text(&tokenizer, text);
    }
    put_text(&tokenizer, "\"\xC4\xA0\":94,\"on\":95,\"\xC4\xA0"
                         "a\":96},\"merges\":[\"o n\",[\"\xC4\xA0\",\"a\"]]}}");
    write_file("tokenizer.json", &tokenizer);
}

static void remove_models(void) {
    static const char *const names[] = {"tiny.gguf",
                                        "config.json",
                                        "tokenizer.json",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_in(names[i]));
    CHECK(rmdir(folder) == 0);
}

/* A folder of its own with both models. */
static void write_models(void) {
    CHECK(mkdtemp(folder) != NULL);
    write_gguf();
    write_folder();
}
#endif
