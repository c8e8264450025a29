/* test_threads.c - one model, many threads: streams of two sessions give the bits that each gives alone, a stream is
 * cancelled from outside, one lazy array is evaluated by eight threads, memory is cleared meanwhile.
 * Also meant for -fsanitize=thread. */
#include <pthread.h>
#include <stdatomic.h>
#include "tiny_model.h"

enum { TOKENS = 40, EVALUATORS = 8, ROUNDS = 20 };

typedef struct {
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    int count;
} output;
typedef struct {
    gm_model *model;
    int32_t first;
    output out;
} reader;

static gm_model *load(const char *path) {
    const gm_load_options options = {.path = path, .weight_dtype = -1, .kv_dtype = -1, .activations = -1, .threads = 2};
    gm_loader *loader;
    gm_model *model = NULL;
    gm_status status = gm_loader_open(&options, &loader);
    CHECK(status == GM_OK);
    while ((status = gm_loader_step(loader, 1, NULL)) == GM_AGAIN) {
    }
    CHECK(status == GM_OK && gm_loader_finish(loader, &model) == GM_OK);
    gm_loader_close(loader);
    return model;
}

/* In slices of a millisecond, as the binding has them. */
static gm_status next(gm_stream *stream, gm_token *token) {
    gm_status status;
    while ((status = gm_stream_next(stream, 1, token)) == GM_AGAIN) {
    }
    return status;
}

static gm_stream *open_stream(gm_session *session, int32_t first) {
    gm_generate_options options;
    int32_t prompt[30];
    gm_stream *stream = NULL;
    for (int i = 0; i < 30; i++)
        prompt[i] = (first + 7 * i) % VOCAB;
    gm_generate_defaults(&options);
    options.max_tokens = TOKENS;
    options.sampling.temperature = 1;
    options.sampling.seed = 5;
    return gm_stream_open(session, NULL, prompt, 30, &options, &stream) == GM_OK ? stream : NULL;
}

static void *read_stream(void *argument) {
    reader *r = argument;
    gm_session *session = NULL;
    gm_token token;
    r->out = (output){.count = 0};
    gm_stream *stream = gm_session_new(r->model, &session) == GM_OK ? open_stream(session, r->first) : NULL;
    while (stream && r->out.count < TOKENS && next(stream, &token) == GM_OK) {
        r->out.ids[r->out.count] = token.id;
        r->out.logprobs[r->out.count++] = token.logprob;
    }
    gm_stream_free(stream);
    gm_session_free(session);
    return NULL;
}

static void two_streams_are_as_one(gm_model *model) {
    reader readers[2] = {{.model = model, .first = 1}, {.model = model, .first = 100}};
    output want[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        read_stream(&readers[i]);
        want[i] = readers[i].out;
        CHECK(want[i].count == TOKENS);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, read_stream, &readers[i]) == 0);
        gm_clear_cache();
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            CHECK(memcmp(&want[i], &readers[i].out, sizeof want[i]) == 0);
        }
    }
}

static void *cancel(void *stream) {
    gm_stream_cancel(stream);
    return NULL;
}

static void a_stream_is_cancelled_from_outside(gm_model *model) {
    gm_session *session;
    gm_token token;
    pthread_t thread;
    CHECK(gm_session_new(model, &session) == GM_OK);
    for (int after = 0; after < 10; after++) {
        gm_stream *stream = open_stream(session, after);
        CHECK(stream != NULL);
        for (int i = 0; i < after; i++)
            CHECK(next(stream, &token) == GM_OK);
        CHECK(pthread_create(&thread, NULL, cancel, stream) == 0);
        gm_status status;
        while ((status = next(stream, &token)) == GM_OK && token.finish == GM_FINISH_NONE) {
        }
        CHECK(status == GM_OK && (token.finish == GM_FINISH_CANCELLED || token.finish == GM_FINISH_LENGTH));
        CHECK(next(stream, &token) == GM_END);
        pthread_join(thread, NULL);
        gm_stream_free(stream);
    }
    gm_session_free(session);
}

static void *evaluate(void *argument) {
    gm_array *array = argument;
    gm_run *run = NULL;
    gm_status status;
    do {
        status = run ? GM_OK : gm_eval_begin(&array, 1, 1, &run);
        if (run)
            status = gm_eval_step(run, 1);
    } while (status == GM_AGAIN);
    gm_eval_end(run);
    return status == GM_OK && gm_array_data(array) ? argument : NULL;
}

static void eight_threads_evaluate_one_array(void) {
    for (int round = 0; round < ROUNDS; round++) {
        gm_scope *s = gm_scope_open();
        gm_array *x = gm_arange(s, 0, 20000, 1, GM_FLOAT32), *y = gm_exp(s, gm_negative(s, x));
        gm_array *z = gm_retain(gm_sum(s, gm_add(s, gm_square(s, y), x), 1, (int[]){0}, false));
        gm_scope_close(s);
        pthread_t threads[EVALUATORS];
        void *done;
        for (int i = 0; i < EVALUATORS; i++)
            CHECK(pthread_create(&threads[i], NULL, evaluate, z) == 0);
        for (int i = 0; i < EVALUATORS; i++) {
            pthread_join(threads[i], &done);
            CHECK(done == z);
        }
        float sum = *(float *)gm_array_data(z);
        CHECK(sum > 199989000.0f && sum < 199991100.0f);
        gm_release(z);
    }
}

int main(void) {
    write_models();
    const char *paths[2] = {"tiny.gguf", "."};
    for (int i = 0; i < 2; i++) {
        gm_model *model = load(path_in(paths[i]));
        two_streams_are_as_one(model);
        a_stream_is_cancelled_from_outside(model);
        gm_model_release(model);
    }
    eight_threads_evaluate_one_array();
    CHECK(gm_active_memory() == 0);
    remove_models();
    return check_summary();
}
