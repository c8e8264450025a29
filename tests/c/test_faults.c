/* test_faults.c - every allocation made to fail in turn: loading, tokenizer, session, stream (prefill with the
 * prompt's log probabilities, and four tokens), logits, all with an adapter, and giving all of it back. Each failure is
 * GM_ENOMEM and nothing else, leaves nothing behind (the sanitizer looks at the end; live array memory is compared each
 * time), and the next run is as if nothing had happened. Models: those of tiny_model.h, and stories260k where the
 * folder of test data is. */
#include <cjson/cJSON.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/memory.h"
#include "check.h"
#include "tiny_model.h"

enum { TOKENS = 4 };

/* ---- one whole run ---- */
typedef struct {
    gm_loader *loader;
    gm_model *model;
    gm_tokenizer *tokenizer;
    gm_session *session;
    gm_stream *stream;
    gm_scoring *scoring;
    gm_session *fork, *restored;
    gm_prompt_logprobs prompt;
    uint8_t *saved;
    int32_t *ids;
    char *info, *described, *architectures;
    size_t n_ids;
} run;
typedef struct {
    int32_t ids[TOKENS];
    char text[256];
    float logit, prompt;
    int32_t likeliest;
    int64_t shared_bytes;
} result;

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

#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        gm_status status_ = (call);                                                                                    \
        if (status_ != GM_OK)                                                                                          \
            return status_;                                                                                            \
    } while (0)

/* Terms of two layers, of 64 inputs and outputs in all of the models. */
static gm_status load_adapter(gm_model *m) {
    static const float numbers[2 * HIDDEN] = {0.5f, -0.25f, 0.125f, [HIDDEN] = 1, [HIDDEN + 3] = -2};
    gm_scope *s = gm_scope_open();
    if (!s)
        return GM_ENOMEM;
    gm_array *a = gm_array_from(s, GM_FLOAT32, 2, (const int64_t[]){2, HIDDEN}, numbers);
    gm_array *b = gm_array_from(s, GM_FLOAT32, 2, (const int64_t[]){HIDDEN, 2}, numbers);
    const gm_adapter_term terms[] = {{"model.layers.0.self_attn.q_proj", a, b, 0.5f},
                                     {"model.layers.1.self_attn.o_proj", a, b, 2}};
    const gm_status status = a && b ? gm_model_load_adapter(m, "tuned", terms, 2) : GM_ENOMEM;
    gm_scope_close(s);
    return status;
}

static gm_status do_run(run *r, const char *path, result *out) {
    static const char prompt[] = "Once upon a time, there was a cat and another on";
    const gm_load_options options = {.path = path, .weight_dtype = -1, .kv_dtype = -1, .activations = -1, .threads = 2};
    gm_generate_options g;
    gm_token token;
    STEP(gm_describe(&options, &r->described));
    STEP(gm_architectures(&r->architectures));
    STEP(gm_loader_open(&options, &r->loader));
    STEP(gm_loader_step(r->loader, 0, NULL));
    STEP(gm_loader_finish(r->loader, &r->model));
    STEP(gm_model_info(r->model, &r->info));
    STEP(load_adapter(r->model));
    STEP(open_tokenizer(path, &r->tokenizer));
    STEP(gm_tokenizer_encode(r->tokenizer, &(gm_text){prompt, sizeof prompt - 1, false, false}, NULL,
                             &(gm_encode_options){.add_special = true, .parse_special = true}, &r->ids, &r->n_ids,
                             NULL));
    STEP(gm_session_new(r->model, &r->session));
    gm_generate_defaults(&g);
    g.max_tokens = TOKENS;
    g.adapters = (const gm_adapter_share[]){{"tuned", 0.5f}};
    g.n_adapters = 1;
    g.sampling.temperature = 0.7f;
    g.sampling.top_p = 0.95f;
    g.sampling.repetition_penalty = 1.1f;
    g.sampling.presence_penalty = 0.1f;
    g.sampling.dry_multiplier = 0.5f;
    g.sampling.dry_allowed_length = 1;
    g.sampling.dry_breakers = (gm_sequences){(const int32_t[]){1, 2, 3}, (const size_t[]){1, 2}, 2};
    g.sampling.bad_words = (gm_sequences){(const int32_t[]){4, 5, 6}, (const size_t[]){2, 1}, 2};
    g.sampling.suppressed = (const int32_t[]){7};
    g.sampling.n_suppressed = 1;
    g.sampling.bias_ids = (const int32_t[]){8};
    g.sampling.biases = (const float[]){0.5f};
    g.sampling.n_biases = 1;
    g.stop_ids = (const int32_t[]){9};
    g.n_stop_ids = 1;
    g.min_tokens = TOKENS;
    g.top_logprobs = 3;
    g.prompt_logprobs = 2;
    g.hand_out_logits = true;
    g.stop_texts = (const char *const[]){"never in there"};
    g.n_stop_texts = 1;
    STEP(gm_stream_open(r->session, r->tokenizer, r->ids, r->n_ids, &g, &r->stream));
    for (int i = 0; i < TOKENS; i++) {
        gm_pending_logits pending;
        gm_status status = gm_stream_next(r->stream, 0, &token);
        if (status != GM_LOGITS)
            return status;
        STEP(gm_stream_logits(r->stream, &pending));
        STEP(gm_stream_sample(r->stream, pending.logits, NULL, &token));
        out->ids[i] = token.id;
        size_t used = strlen(out->text), room = sizeof out->text - used - 1;
        memcpy(out->text + used, token.text, token.length < room ? token.length : room);
    }
    const gm_scored sequences[] = {{r->ids, r->n_ids}, {r->ids, 3}}, labels[] = {{r->ids, 1}, {r->ids, 4}};
    const gm_score_request scored = {.kind = GM_SCORE_LAST,
                                     .sequences = sequences,
                                     .labels = labels,
                                     .n_sequences = 2,
                                     .n_labels = 2,
                                     .adapters = g.adapters,
                                     .n_adapters = 1};
    STEP(gm_score_begin(r->model, &scored, &r->scoring));
    STEP(gm_score_step(r->scoring, 0));
    out->logit = gm_score_data(r->scoring)[7];
    r->prompt = gm_stream_take_prompt_logprobs(r->stream);
    out->prompt = r->prompt.logprobs[r->prompt.n - 1];
    out->likeliest = r->prompt.top[r->prompt.n * r->prompt.n_top - 1].id;
    gm_stream_free(r->stream);
    r->stream = NULL;
    STEP(gm_session_fork(r->session, &r->fork));
    STEP(gm_sessions_bytes((gm_session *const[]){r->session, r->fork}, 2, &out->shared_bytes));
    size_t size;
    STEP(gm_session_save(r->fork, NULL, &size));
    r->saved = malloc(size);
    STEP(gm_session_save(r->fork, r->saved, &size));
    STEP(gm_session_restore(r->model, r->saved, size, &r->restored));
    return GM_OK;
}

static void clear(run *r) {
    gm_score_free(r->scoring);
    gm_stream_free(r->stream);
    gm_prompt_logprobs_free(&r->prompt);
    gm_session_free(r->session);
    gm_session_free(r->fork);
    gm_session_free(r->restored);
    free(r->saved);
    gm_buffer_free(r->ids);
    gm_buffer_free(r->info);
    gm_buffer_free(r->described);
    gm_buffer_free(r->architectures);
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
static void fail_each(const char *path, long cold_stride, long stride) {
    result want, got;
    gm_error e;
    long n = 1, wrong = 0;
    size_t before = gm_active_memory();
    /* From cold: what the engine keeps from run to run is allocated meanwhile. Then again, each allocation there is. */
    for (int round = 0; round < 2; round++) {
        gm_status status = GM_ENOMEM;
        for (n = 1; status != GM_OK && wrong < 5; n += round ? stride : cold_stride) {
            status = run_once(path, n, &got);
            gm_take_error(&e);
            bool right = status == GM_OK || (status == GM_ENOMEM && e.code == GM_ENOMEM);
            if (!right || gm_active_memory() != before) {
                printf("%s: allocation %ld: status %d, error %d \"%s\", %zu bytes left\n", path, n, (int)status,
                       (int)e.code, e.text, gm_active_memory() - before);
                wrong++;
            }
        }
        CHECK(wrong == 0);
    }
    CHECK(n > 100);
    CHECK(run_once(path, 0, &want) == GM_OK && run_once(path, 0, &got) == GM_OK);
    CHECK(memcmp(&want, &got, sizeof want) == 0 && want.shared_bytes > 0 && gm_active_memory() == before);
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
    gm_array *both = gm_concatenate(s, (gm_array *[]){z, turned}, 2, 0);
    gm_array *root = gm_retain(gm_sum(s, both, 1, (int[]){0}, false));
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

/* ---- a pass on a device ---- */
static gm_model *on_device(const char *path, int host_layers) {
    const gm_load_options options = {.path = path,
                                     .weight_dtype = -1,
                                     .kv_dtype = -1,
                                     .activations = -1,
                                     .threads = 2,
                                     .device = 1,
                                     .host_layers = host_layers};
    gm_loader *loader = NULL;
    gm_model *m = NULL;
    CHECK(gm_loader_open(&options, &loader) == GM_OK && gm_loader_step(loader, 0, NULL) == GM_OK);
    CHECK(gm_loader_finish(loader, &m) == GM_OK);
    gm_loader_close(loader);
    return m;
}

/* A pass that cannot be made keeps nothing on the device, before anybody frees it. */
static void fail_each_on_a_device(const char *path, int host_layers) {
    static const int32_t ids[] = {5, 6, 7, 8, 9};
    gm_model *m = on_device(path, host_layers);
    gm_activation_info info;
    int64_t logits = 0;
    while (!gm_model_activation(m, logits, 5, &info) || strcmp(info.name, "logits") != 0)
        logits++;
    const gm_inspect_request request = {.ids = ids, .n_ids = 5, .activations = &logits, .n_activations = 1};
    gm_error e;
    long n = 0, kept = 0, failures = 0;   /* failures of the run itself, which has a plan, keep it until it is freed */
    for (bool reached = true; reached;) { /* not every failure ends a pass: some allocations are optional */
        gm_inspection *in = NULL;
        CHECK(gm_inspect_begin(m, &request, &in) == GM_OK);
        const size_t before = gm_device_memory(1).active;
        memory_fail_at(++n);
        const gm_status status = gm_inspect_step(in, 0);
        reached = memory_allocations() >= n;
        memory_fail_at(0);
        gm_take_error(&e);
        CHECK(status == GM_OK || (reached && status == GM_ENOMEM && e.code == GM_ENOMEM));
        failures += status != GM_OK;
        kept += status != GM_OK && gm_device_memory(1).active != before;
        gm_inspect_free(in);
    }
    CHECK(failures > 15 && kept <= 2);
    printf("on a device: %ld allocations, %ld failures\n", n, failures);
    gm_model_release(m);
}

static const char *stories(void) {
    static char path[500];
    const char *shared = getenv("GOMLX_SHARED");
    snprintf(path, sizeof path, "%s/data/models/stories260k", shared && *shared ? shared : "../shared");
    return access(path, R_OK) == 0 ? path : NULL;
}

/* Which allocations there are hardly depends on the instruction set: `quick`, for all but one of them, fails every
 * seventh. The engine is cold once, so that is when each must fail in the first model; the second has each when it is
 * warm. GOMLX_FAULTS=all: each one everywhere. */
int main(int argc, char **argv) {
    const char *slow = getenv("GOMLX_FAULTS");
    const long often = argc > 1 && strcmp(argv[1], "quick") == 0 ? 7 : 1;
    const long seldom = slow && strcmp(slow, "all") == 0 ? 1 : 7 * often;
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = memory_new, .free_fn = memory_free});
    gm_set_cache_limit(0); /* each allocation is one: nothing comes from the engine's own lists */
    write_models();
    fail_each(path_in("tiny.gguf"), often, seldom); /* most of what is kept is allocated here */
    fail_each(folder, seldom, often);
    fail_each_in_a_graph();
    for (int host_layers = 0; getenv("GOMLX_DEVICE_LIBRARY") && host_layers < 2; host_layers++)
        fail_each_on_a_device(path_in("tiny.gguf"), host_layers);
    if (stories())
        fail_each(stories(), seldom == 1 ? 1 : 31 * often, seldom);
    else
        printf("stories260k is not there: set GOMLX_SHARED\n");
    remove_models();
    return check_summary();
}
