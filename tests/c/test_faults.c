/* test_faults.c - every allocation made to fail in turn: loading, tokenizer, session, stream (prefill and four tokens),
 * logits, and giving all of it back. Each failure is GM_ENOMEM and nothing else, leaves nothing behind (the sanitizer looks
 * at the end; live array memory is compared each time), and the next run is as if nothing had happened.
 * Models: a GGUF file and a folder that are written here, and stories260k where the folder of test data is. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/memory.h"
#include "check.h"

enum { VOCAB = 300, HIDDEN = 64, LAYERS = 2, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, MLP = 96, TOKENS = 4 };

static char folder[] = "/tmp/gomlx-faults-XXXXXX";

typedef struct { uint8_t *data; size_t size, capacity; } bytes;

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
typedef struct { const char *hf, *gguf; int rows, columns; } weight;    /* columns 0: a vector; %d: the layer */

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
enum { IN_LAYER = sizeof in_layer / sizeof *in_layer, OUTSIDE = sizeof outside / sizeof *outside, WEIGHTS = LAYERS * IN_LAYER + OUTSIDE };

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
    static const char *const keys[] = {"embedding_length", "block_count", "feed_forward_length", "attention.head_count",
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
            put(&b, "\x00\x18", 2);          /* float16 0.002 */
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
        if (w->columns)
            snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%d,%d]}", i > from ? ',' : '{',
                     tensor, w->rows, w->columns, offset, offset + n);
        else
            snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}", i > from ? ',' : '{',
                     tensor, w->rows, offset, offset + n);
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
    snprintf(text, sizeof text, "{\"model_type\":\"llama\",\"vocab_size\":%d,\"hidden_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"intermediate_size\":%d,\"max_position_embeddings\":128,"
             "\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":10000.0,\"factor\":8.0,\"low_freq_factor\":1.0,"
             "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}}", VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, MLP);
    put_text(&config, text);
    write_file("config.json", &config);
    write_shard("model-00001-of-00002.safetensors", 0, IN_LAYER);
    write_shard("model-00002-of-00002.safetensors", IN_LAYER, WEIGHTS);
    put_text(&index, "{\"weight_map\":{");
    for (int i = 0; i < WEIGHTS; i++) {
        char tensor[80];
        weight_at(i, false, tensor);
        snprintf(text, sizeof text, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "", tensor, i < IN_LAYER ? 1 : 2);
        put_text(&index, text);
    }
    put_text(&index, "}}");
    write_file("model.safetensors.index.json", &index);
    put_text(&tokenizer, "{\"added_tokens\":[{\"id\":299,\"content\":\"<|end|>\",\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
             "\"add_prefix_space\":false,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < 94; i++) {
        char c = (char)('!' + i);
        snprintf(text, sizeof text, "\"%s%c\":%d,", c == '"' || c == '\\' ? "\\" : "", c, i);
        put_text(&tokenizer, text);
    }
    put_text(&tokenizer, "\"\xC4\xA0\":94,\"on\":95,\"\xC4\xA0" "a\":96},\"merges\":[\"o n\",[\"\xC4\xA0\",\"a\"]]}}");
    write_file("tokenizer.json", &tokenizer);
}

/* ---- one whole run ---- */
typedef struct {
    gm_loader *loader;
    gm_model *model;
    gm_tokenizer *tokenizer;
    gm_session *session;
    gm_stream *stream;
    gm_scoring *scoring;
    int32_t *ids;
    char *info;
    size_t n_ids;
} run;
typedef struct { int32_t ids[TOKENS]; char text[256]; float logit; } result;

static gm_status open_tokenizer(const char *path, gm_tokenizer **out) {
    struct stat st;
    char name[400], *text;
    size_t length;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return gm_tokenizer_from_gguf(path, out);
    snprintf(name, sizeof name, "%s/tokenizer.json", path);
    gm_status status = file_read(name, 1 << 20, &text, &length);
    if (status != GM_OK)
        return status;
    status = gm_tokenizer_from_json(text, length, name, out);
    memory_free(text);
    return status;
}

#define STEP(call)                    \
    do {                              \
        gm_status status_ = (call);   \
        if (status_ != GM_OK)         \
            return status_;           \
    } while (0)

static gm_status do_run(run *r, const char *path, result *out) {
    static const char prompt[] = "Once upon a time, there was a cat and another on";
    const gm_load_options options = {.path = path, .weight_dtype = -1, .kv_dtype = -1, .activations = -1, .threads = 2};
    gm_generate_options g;
    gm_token token;
    STEP(gm_loader_open(&options, &r->loader));
    STEP(gm_loader_step(r->loader, 0, NULL));
    STEP(gm_loader_finish(r->loader, &r->model));
    STEP(gm_model_info(r->model, &r->info));
    STEP(open_tokenizer(path, &r->tokenizer));
    STEP(gm_tokenizer_encode(r->tokenizer, prompt, sizeof prompt - 1, true, true, &r->ids, &r->n_ids));
    STEP(gm_session_new(r->model, &r->session));
    gm_generate_defaults(&g);
    g.max_tokens = TOKENS;
    g.temperature = 0.7f;
    g.repetition_penalty = 1.1f;
    g.stop_texts = (const char *const[]){"never in there"};
    g.n_stop_texts = 1;
    STEP(gm_stream_open(r->session, r->tokenizer, r->ids, r->n_ids, &g, &r->stream));
    for (int i = 0; i < TOKENS; i++) {
        STEP(gm_stream_next(r->stream, 0, &token));
        out->ids[i] = token.id;
        size_t used = strlen(out->text), room = sizeof out->text - used - 1, n = token.length < room ? token.length : room;
        memcpy(out->text + used, token.text, n);
    }
    STEP(gm_logits_begin(r->model, (const int32_t *const[]){r->ids, r->ids}, (size_t[]){r->n_ids, 3}, 2, &r->scoring));
    STEP(gm_logits_step(r->scoring, 0));
    out->logit = gm_logits_data(r->scoring)[7];
    return GM_OK;
}

static void clear(run *r) {
    gm_logits_free(r->scoring);
    gm_stream_free(r->stream);
    gm_session_free(r->session);
    gm_buffer_free(r->ids);
    gm_buffer_free(r->info);
    gm_tokenizer_release(r->tokenizer);
    gm_model_release(r->model);
    gm_loader_close(r->loader);
}

/* A run whose n-th allocation fails; 0: none. */
static gm_status run_once(const char *path, long n, result *out) {
    run r = {0};
    memset(out, 0, sizeof *out);
    memory_fail_at(n);
    gm_status status = do_run(&r, path, out);
    memory_fail_at(0);
    clear(&r);
    return status;
}

/* Every allocation (every `stride`-th) of loading, generating and freeing in turn. */
static void fail_each(const char *path, long stride) {
    result want, got;
    gm_error e;
    long n = 1, wrong = 0;
    size_t before = gm_active_memory();
    /* From cold: what the engine keeps from run to run is allocated meanwhile. Then again, each allocation there is. */
    for (int round = 0; round < 2; round++) {
        gm_status status = GM_ENOMEM;
        for (n = 1; status != GM_OK && wrong < 5; n += stride) {
            status = run_once(path, n, &got);
            gm_take_error(&e);
            bool right = status == GM_OK || (status == GM_ENOMEM && e.code == GM_ENOMEM);
            if (!right || gm_active_memory() != before) {
                printf("%s: allocation %ld: status %d, error %d \"%s\", %zu bytes left\n", path, n, (int)status, (int)e.code, e.text,
                       gm_active_memory() - before);
                wrong++;
            }
        }
        CHECK(wrong == 0);
    }
    CHECK(n > 100);
    CHECK(run_once(path, 0, &want) == GM_OK && run_once(path, 0, &got) == GM_OK);
    CHECK(memcmp(&want, &got, sizeof want) == 0 && gm_active_memory() == before);
    printf("%s: %ld allocations\n", path, n);
}

/* ---- lazy arrays ---- */
enum { N = 48 };

/* Temporaries that are donated, operands that are copied to scratch first, views; NULL after a failure. */
static gm_array *build(gm_array *a, gm_array *b) {
    gm_scope *s = gm_scope_open();
    if (!s)
        return NULL;
    gm_array *x = gm_exp(s, gm_multiply(s, a, b));
    gm_array *turned = gm_transpose(s, x, 2, (int[]){1, 0});
    gm_array *y = gm_rms_norm(s, gm_matmul(s, gm_add(s, turned, b), turned), GM_NONE, 1e-5f);
    gm_array *z = gm_swiglu(s, gm_softmax(s, y, 1, (int[]){-1}), gm_transpose(s, y, 2, (int[]){1, 0}));
    gm_array *root = gm_retain(gm_sum(s, gm_concatenate(s, (gm_array *[]){z, turned}, 2, 0), 1, (int[]){0}, false));
    gm_scope_close(s);
    return root;
}

static gm_array *noise_array(void) {
    gm_scope *s = gm_scope_open();
    float values[N * N];
    for (int i = 0; i < N * N; i++)
        values[i] = (float)noise() / (1 << 24);
    gm_array *a = gm_retain(gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){N, N}, values));
    gm_scope_close(s);
    return a;
}

/* After a failure the same graph can be evaluated again, and inputs are what they were. */
static void fail_each_in_a_graph(void) {
    gm_array *a = noise_array(), *b = noise_array(), *want = build(a, b);
    gm_error e;
    size_t failures = 0;
    CHECK(want && gm_eval(&want, 1) == GM_OK);
    size_t before = gm_active_memory();
    for (long n = 1; n < 1000; n++) {
        memory_fail_at(n);
        gm_array *root = build(a, b);
        gm_status status = root ? gm_eval(&root, 1) : GM_ENOMEM;
        bool failed = status != GM_OK;
        gm_take_error(&e);
        memory_fail_at(0);
        CHECK(!failed || (status == GM_ENOMEM && e.code == GM_ENOMEM));
        failures += failed;
        if (!root)
            root = build(a, b);
        CHECK(gm_eval(&root, 1) == GM_OK && memcmp(gm_array_data(root), gm_array_data(want), N * sizeof(float)) == 0);
        gm_release(root);
        CHECK(gm_active_memory() == before);
        if (!failed)
            break;
    }
    CHECK(failures > 20 && failures < 900);
    gm_release(a);
    gm_release(b);
    gm_release(want);
}

static const char *stories(void) {
    static char path[500];
    const char *shared = getenv("GOMLX_SHARED");
    snprintf(path, sizeof path, "%s/data/models/stories260k", shared && *shared ? shared : "../shared");
    return access(path, R_OK) == 0 ? path : NULL;
}

int main(void) {
    const char *slow = getenv("GOMLX_FAULTS");
    CHECK(mkdtemp(folder) != NULL);
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = memory_new, .free_fn = memory_free});
    gm_set_cache_limit(0);       /* each allocation is one: nothing comes from the engine's own lists */
    write_gguf();
    write_folder();
    fail_each(path_in("tiny.gguf"), 1);
    fail_each(folder, 1);
    fail_each_in_a_graph();
    if (stories())
        fail_each(stories(), slow && strcmp(slow, "all") == 0 ? 1 : 7);
    else
        printf("stories260k is not there: set GOMLX_SHARED\n");
    for (size_t i = 0; i < 6; i++)
        unlink(path_in((const char *[]){"tiny.gguf", "config.json", "tokenizer.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}[i]));
    rmdir(folder);
    return check_summary();
}
