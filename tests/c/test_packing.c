/* test_packing.c - the matrices of a loaded model wait in its file: they are packed before the second pass, in slices,
 * and what is given up on the way is done again later. */
#include "tiny_model.h"
#include "core/graph.h"
#include "models/model.h"

static gm_model *load(const char *path) {
    const gm_load_options options = {.path = path, .weight_dtype = -1, .kv_dtype = -1, .activations = -1, .threads = 2};
    gm_loader *loader;
    gm_model *model = NULL;
    CHECK(gm_loader_open(&options, &loader) == GM_OK);
    CHECK(gm_loader_step(loader, 0, NULL) == GM_OK && gm_loader_finish(loader, &model) == GM_OK);
    gm_loader_close(loader);
    return model;
}

/* The first four tokens, and what the model says of them. */
static void read_four(gm_model *model, float *logprobs) {
    gm_generate_options options;
    gm_session *session;
    gm_stream *stream;
    gm_token token;
    int32_t prompt[5] = {3, 1, 4, 1, 5};
    gm_generate_defaults(&options);
    options.max_tokens = 4;
    CHECK(gm_session_new(model, &session) == GM_OK);
    CHECK(gm_stream_open(session, NULL, prompt, 5, &options, &stream) == GM_OK);
    for (int i = 0; i < 4; i++) {
        CHECK(gm_stream_next(stream, 0, &token) == GM_OK);
        logprobs[i] = token.logprob;
    }
    gm_stream_free(stream);
    gm_session_free(session);
}

static void packing_is_given_up_and_begun_again(const char *path) {
    float want[4], got[4];
    gm_model *model = load(path);
    CHECK(model_in_rows(model) && !model_wants_packing(model));
    const size_t promised = gm_promised_memory(), before = gm_active_memory();
    CHECK(promised > 0);
    CHECK(run_lock(-1) == GM_OK);
    CHECK(model_begin_pass(model) == GM_OK);
    CHECK(model_wants_packing(model));
    for (int i = 0; i < 5; i++) {
        gm_status status = model_pack(model, 1, false); /* a deadline long past: one piece, or one matrix, at a time */
        CHECK(status == GM_AGAIN || status == GM_OK);
        if (status == GM_AGAIN)
            model_cancel_packing(model);
        CHECK((status == GM_AGAIN) == model_in_rows(model));
        if (status == GM_OK)
            break;
    }
    run_unlock();
    /* a buffer of many matrices is active before the last of them is packed */
    CHECK(gm_promised_memory() <= promised && gm_active_memory() - before + gm_promised_memory() >= promised);
    read_four(model, got);
    CHECK(!model_in_rows(model) && gm_promised_memory() == 0);
    gm_model_release(model);
    model = load(path);
    read_four(model, want);
    CHECK(!model_in_rows(model) && memcmp(want, got, sizeof want) == 0);
    read_four(model, got);
    CHECK(memcmp(want, got, sizeof want) == 0);
    gm_model_release(model);
}

static void a_model_goes_before_it_is_packed(const char *path) {
    gm_scope *s = gm_scope_open();
    gm_model *model = load(path);
    gm_array *weight = gm_retain(gm_model_weight(s, model, "model.layers.1.self_attn.q_proj.weight"));
    gm_scope_close(s);
    CHECK(gm_promised_memory() > 0);
    gm_model_release(model);
    CHECK(gm_promised_memory() == 0);              /* though an array keeps the file */
    CHECK(weight && gm_eval(&weight, 1) == GM_OK); /* its rows are those of the file still */
    gm_release(weight);
}

int main(void) {
    write_models();
    const char *const names[2] = {"tiny.gguf", "."};
    for (int i = 0; i < 2; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s", path_in(names[i]));
        packing_is_given_up_and_begun_again(path);
        a_model_goes_before_it_is_packed(path);
    }
    gm_clear_cache();
    CHECK(gm_active_memory() == 0);
    remove_models();
    return check_summary();
}
