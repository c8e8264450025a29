/* describe.c - what loading a model takes, from the headers of its files: no weight is read and nothing is packed. */
#include <cjson/cJSON.h>
#include <string.h>
#include "base/memory.h"
#include "models/load.h"

/* What the jobs add up to. */
typedef struct {
    bool int8, bf16; /* some linear layer multiplies such activations */
    bool quantised;  /* some linear layer's weights are */
    int64_t packed;
    int64_t before, after; /* ... of what comes before the layers, and after them; a tied embedding is both */
    int64_t *layers;       /* packed bytes of each layer */
    int64_t *tensors;      /* packed bytes by the checkpoint's tensors: those of a stack are the first one's */
} totals;

static size_t index_of(const gm_loader *l, const gm_tensor *t) { return (size_t)(t - checkpoint_at(l->checkpoint, 0)); }

static bool is_tied(const gm_model *m, const job *j) { return m->config.tied && j->to == &m->embedding.weight; }

static gm_status add_up(const gm_loader *l, totals *sum) {
    bool int8, bf16;
    loader_choose_activations(&l->options, l->options.device, &int8, &bf16);
    sum->layers = memory_zeroed((size_t)l->model->config.n_layers * sizeof *sum->layers);
    sum->tensors = memory_zeroed(((size_t)checkpoint_count(l->checkpoint) + 1) * sizeof *sum->tensors);
    if (!sum->layers || !sum->tensors)
        return GM_ENOMEM;
    for (size_t i = 0; i < l->n_jobs; i++) {
        const job *j = &l->jobs[i];
        const int format = j->kind == JOB_PACK ? loader_format(l, j) : GM_QUANT_f32;
        sum->int8 |= j->multiplies && int8 && quant_takes_int8(format);
        sum->quantised |= j->multiplies && format > GM_QUANT_bf16;
        sum->bf16 |= j->multiplies && bf16 && format == GM_QUANT_bf16;
        if (j->part) /* the first one's is that of the whole stack */
            continue;
        const int64_t bytes = (int64_t)loader_result_bytes(l, j);
        sum->packed += bytes;
        sum->tensors[index_of(l, j->tensor)] += bytes;
        if (j->layer >= 0)
            sum->layers[j->layer] += bytes;
        if (j->layer < 0 && (loader_is_after_layers(l->model, j) || is_tied(l->model, j)))
            sum->after += bytes;
        if (j->layer < 0 && !loader_is_after_layers(l->model, j))
            sum->before += bytes;
    }
    return GM_OK;
}

/* In the files, or, of plain numbers, in the type that they are loaded in. */
static int64_t weight_bytes(const gm_loader *l, const gm_tensor *t) {
    const int dtype = l->options.weight_dtype;
    const bool is_dense = t->format >= 0 && t->format <= GM_QUANT_bf16;
    if (dtype == -1 || !is_dense)
        return (int64_t)t->bytes;
    return (int64_t)t->bytes / gm_quants[t->format].bytes * (int64_t)gm_dtype_size((gm_dtype)dtype);
}

/* ---- working memory ---- */
/* Columns of float32 that a row's pass through a layer holds at its peak. That is in the MLP or in attention: the
 * residual stream, its normed form, the inside of the MLP, and queries, keys and values with attention's copies, which
 * are freed only when the layer has run. A mixture has its rows in the order of the experts, once for each expert that
 * a token goes to: the inputs, the halves, the outputs; and the sum of them. */
static double columns_of(const gm_model *m, const totals *sum) {
    const gm_config *c = &m->config;
    const double column = sum->int8 ? 9.0 / 32 : sum->bf16 ? 0.5 : 1; /* int8: nine bytes for eight values */
    const double hidden = (double)c->hidden, inner = (double)c->expert_mlp, mlp = (double)c->mlp * column;
    double queries = 0, keys = 0, mixture = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        const gm_layer_config *l = &c->layers[i];
        const double q = (double)config_dim(c, l, DIM_QUERIES), k = (double)config_dim(c, l, DIM_KEYS);
        queries = (l->has & HAS_ATTENTION) && q > queries ? q : queries;
        keys = (l->has & HAS_ATTENTION) && k > keys ? k : keys;
        if (l->has & HAS_EXPERTS)
            mixture = hidden + (double)c->n_experts_used * (2 * (hidden + inner) + (column < 0.5 ? inner * column : 0));
    }
    const double inside = m->arch->inside ? m->arch->inside(c, mlp, mixture) : mixture > 0 ? mixture : mlp;
    const double in_mlp = 2 * hidden + inside + 2 * queries + 3 * keys, in_attention = hidden + 4 * queries + 2 * keys;
    return in_mlp > in_attention ? in_mlp : in_attention;
}

/* One prefill chunk at its peak, and logits. */
static double working_bytes(const gm_model *m, const totals *sum, int64_t rows) {
    return 4.0 * ((double)rows * (double)(int64_t)columns_of(m, sum) + 2.0 * (double)m->config.vocab);
}
/* The same of a model that is on a device whole, where no row is int8; and what products of prompts take besides
 * (kernels/cuda/launch_prompts.c): two matrices as bfloat16, or a piece of both, some of what they give in float32, and
 * the library's own. */
#define MOST_UNPACKED ((double)(INT64_C(128) << 20))
#define MOST_UNITS ((double)(INT64_C(32) << 20))
#define LIBRARY_BYTES ((double)(INT64_C(32) << 20))
static double device_working_bytes(const gm_model *m, const totals *sum) {
    totals there = *sum;
    there.int8 = false;
    there.bf16 = sum->bf16 || sum->quantised;
    const double mlp = (double)m->config.mlp, unpacked = sum->quantised ? 4 * (double)m->config.hidden * mlp : 0;
    const double units = 8.0 * DEVICE_PASS_ROWS * mlp;
    return working_bytes(m, &there, DEVICE_PASS_ROWS) + LIBRARY_BYTES +
           (unpacked < MOST_UNPACKED ? unpacked : MOST_UNPACKED) + (units < MOST_UNITS ? units : MOST_UNITS);
}

/* ---- as JSON ---- */
static bool add_number(cJSON *o, const char *key, int64_t value) {
    return cJSON_AddNumberToObject(o, key, (double)value) != NULL;
}

/* What a layer is, and what it keeps of a sequence. */
static bool add_layer(cJSON *list, const gm_config *c, int64_t i, const totals *sum) {
    const gm_layer_config *l = &c->layers[i];
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddItemToArray(list, o) && cJSON_AddStringToObject(o, "kind", info_kind(l->kind));
    if (ok && (l->has & HAS_ATTENTION))
        ok = add_number(o, "n_heads", l->n_heads) && add_number(o, "n_kv_heads", l->n_kv_heads) &&
             add_number(o, "head_dim", l->head_dim) && add_number(o, "window", l->window) &&
             add_number(o, "source", l->source) && cJSON_AddBoolToObject(o, "shared", l->source != i);
    if (ok && (l->has & HAS_LINEAR))
        ok = add_number(o, "state_bytes",
                        4 * ((l->conv_kernel - 1) * l->conv_channels + l->state_heads * l->state_value * l->state_key));
    return ok && add_number(o, "packed_bytes", sum->layers[i]);
}

static bool add_tensor(cJSON *all, const gm_loader *l, size_t i, const totals *sum) {
    const gm_tensor *t = checkpoint_at(l->checkpoint, (int64_t)i);
    cJSON *o = cJSON_AddObjectToObject(all, t->name);
    return o && cJSON_AddStringToObject(o, "type", t->type) && add_number(o, "bytes", (int64_t)t->bytes) &&
           add_number(o, "packed_bytes", sum->tensors[i]);
}

static const char *activations(const totals *sum) {
    return sum->int8 ? sum->bf16 ? "int8, bfloat16" : "int8" : sum->bf16 ? "bfloat16" : "float32";
}

static bool add_all(cJSON *o, const gm_loader *l, const totals *sum) {
    const gm_model *m = l->model;
    const gm_config *c = &m->config;
    const int kv_type = loader_choose_kv(&l->options, sum->int8, sum->bf16, sum->quantised);
    int64_t weights = 0;
    for (int64_t i = 0; i < checkpoint_count(l->checkpoint); i++)
        weights += l->used[i] ? weight_bytes(l, checkpoint_at(l->checkpoint, i)) : 0;
    bool ok = cJSON_AddStringToObject(o, "architecture", m->arch->name) &&
              cJSON_AddStringToObject(o, "container", checkpoint_gguf(l->checkpoint) ? "gguf" : "safetensors") &&
              info_add_config(o, c) && cJSON_AddBoolToObject(o, "tied", c->tied) &&
              cJSON_AddStringToObject(o, "activations", activations(sum)) &&
              cJSON_AddStringToObject(o, "kv_dtype", cache_type_name(kv_type)) &&
              add_number(o, "weight_bytes", weights) && add_number(o, "packed_bytes", sum->packed) &&
              add_number(o, "before_layers_bytes", sum->before) && add_number(o, "after_layers_bytes", sum->after) &&
              cJSON_AddNumberToObject(o, "working_bytes", working_bytes(m, sum, PASS_ROWS)) &&
              cJSON_AddNumberToObject(o, "device_working_bytes", device_working_bytes(m, sum));
    cJSON *layers = ok ? cJSON_AddArrayToObject(o, "layers") : NULL;
    ok = ok && layers;
    for (int64_t i = 0; i < c->n_layers && ok; i++)
        ok = add_layer(layers, c, i, sum);
    cJSON *tensors = ok ? cJSON_AddObjectToObject(o, "tensors") : NULL;
    ok = ok && tensors;
    for (int64_t i = 0; i < checkpoint_count(l->checkpoint) && ok; i++)
        ok = !l->used[i] || add_tensor(tensors, l, (size_t)i, sum);
    return ok;
}

/* The object as text that gm_buffer_free frees; it takes o. */
static gm_status printed(cJSON *o, bool ok, char **json) {
    char *text = ok ? cJSON_PrintUnformatted(o) : NULL;
    *json = text ? memory_copy_text(text, strlen(text)) : NULL;
    cJSON_free(text);
    cJSON_Delete(o);
    return *json ? GM_OK : gm_fail(GM_ENOMEM, "describe: out of memory");
}

gm_status gm_describe(const gm_load_options *options, char **json) {
    gm_loader *l;
    totals sum = {0};
    *json = NULL;
    GM_TRY(loader_open(options, true, &l));
    gm_status status = add_up(l, &sum);
    if (status == GM_OK) {
        cJSON *o = cJSON_CreateObject();
        status = printed(o, o && add_all(o, l, &sum), json);
    }
    memory_free(sum.layers);
    memory_free(sum.tensors);
    gm_loader_close(l);
    return status;
}

gm_status gm_describe_cache(char **json) {
    static const int types[] = {GM_FLOAT32, GM_FLOAT16, GM_BFLOAT16, GM_KV_Q8_0};
    cJSON *o = cJSON_CreateObject(), *bytes = o ? cJSON_AddObjectToObject(o, "bytes") : NULL;
    bool ok = bytes && add_number(o, "block", GM_KV_BLOCK) && add_number(o, "window_margin", CACHE_WINDOW_MARGIN) &&
              add_number(o, "states", CACHE_CHECKPOINTS + 1) && add_number(o, "pass_rows", PASS_ROWS) &&
              add_number(o, "device_pass_rows", DEVICE_PASS_ROWS);
    for (size_t i = 0; i < sizeof types / sizeof *types && ok; i++)
        ok = cJSON_AddNumberToObject(bytes, cache_type_name(types[i]), (double)cache_entry_bytes(types[i], 32) / 32) !=
             NULL;
    return printed(o, ok, json);
}

gm_status gm_formats(char **json) {
    cJSON *all = cJSON_CreateArray();
    bool ok = all != NULL;
    for (size_t i = 0; i < GM_QUANT_COUNT && ok; i++) {
        const gm_quant_info *format = &gm_quants[i];
        cJSON *o = cJSON_CreateObject();
        ok = o && cJSON_AddItemToArray(all, o) && cJSON_AddStringToObject(o, "name", format->name) &&
             add_number(o, "values", format->values) && add_number(o, "bytes", format->bytes) &&
             (format->gguf_type < 0 || add_number(o, "gguf", format->gguf_type));
    }
    return printed(all, ok, json);
}
