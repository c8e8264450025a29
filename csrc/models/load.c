/* load.c - a checkpoint becomes a model: every weight is found by its table, checked, and packed by all threads.
 * A loader works in slices, one tensor after another; closing it at any time gives everything back. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/memory.h"
#include "base/team.h"
#include "core/graph.h"
#include "models/config.h"
#include "ops/ops.h"

#define CONFIG_BYTES ((size_t)16 << 20)

typedef struct {
    const gm_tensor *tensor;
    gm_array **to;               /* where the array goes */
    int64_t rows, columns;       /* columns 0: a vector of `rows` */
    int64_t permuted_heads;      /* > 0: rows of each of so many heads are interleaved in the file */
    bool vector;
} job;

struct gm_loader {
    gm_load_options options;
    char *path;
    gm_checkpoint *checkpoint;
    gm_model *model;
    job *jobs;
    size_t n_jobs, capacity, at;
    bool *used;                  /* which tensors of the checkpoint the model is made of */
    gm_queue *queue;
    bool running;                /* the queue has the current job and the run lock is held */
    gm_array *result;
    int32_t *row_map;
    size_t bytes_total, bytes_done;
};

/* ---- the list of jobs ---- */
static gm_status add_job(gm_loader *l, const char *name, gm_array **to, int64_t rows, int64_t columns,
                         int64_t permuted_heads, bool optional) {
    const gm_tensor *t = checkpoint_find(l->checkpoint, name);
    char want[128], got[128];
    if (!t && optional)
        return GM_OK;
    if (!t)
        return gm_fail(GM_EBADFILE, "%s: tensor %s is missing", l->path, name);
    bool vector = columns == 0;
    int64_t shape[2] = {rows, columns};
    if (t->ndim != (vector ? 1 : 2) || t->shape[0] != rows || (!vector && t->shape[1] != columns)) {
        shape_text(vector ? 1 : 2, shape, want);
        shape_text(t->ndim, t->shape, got);
        return gm_fail(GM_EBADFILE, "%s: tensor %s has shape %s, expected %s", l->path, name, got, want);
    }
    if (t->format < 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s is of type %s, which is not supported", l->path, name, t->type);
    if (l->n_jobs == l->capacity) {
        size_t n = l->capacity ? l->capacity * 2 : 64;
        job *jobs = memory_resize(l->jobs, n * sizeof *jobs);
        if (!jobs)
            return error_code();
        l->jobs = jobs;
        l->capacity = n;
    }
    l->used[t - checkpoint_at(l->checkpoint, 0)] = true;
    l->jobs[l->n_jobs++] = (job){t, to, rows, columns, permuted_heads, vector};
    l->bytes_total += t->bytes;
    return GM_OK;
}

static gm_status add_field(gm_loader *l, const gm_weight_field *field, int64_t layer) {
    gm_model *m = l->model;
    const gm_config *c = &m->config;
    char name[160], *base = m->layers + (size_t)layer * m->arch->layer_size + field->offset;
    bool is_gguf = checkpoint_gguf(l->checkpoint) != NULL;
    int64_t rows, columns, heads = 0;
    m->arch->shape(c, field, &rows, &columns);
    const char *pattern = is_gguf ? "blk.%lld.%s.%s" : "model.layers.%lld.%s.%s";
    const char *label = is_gguf ? field->gguf : field->name;
    snprintf(name, sizeof name, pattern, (long long)layer, label, "weight");
    if (field->kind == FIELD_NORM)
        return add_job(l, name, (gm_array **)(void *)base, rows, 0, 0, false);
    gm_linear *linear = (gm_linear *)(void *)base;
    if (field->permuted && is_gguf)
        heads = rows / c->head_dim;
    GM_TRY(add_job(l, name, &linear->weight, rows, columns, heads, false));
    snprintf(name, sizeof name, pattern, (long long)layer, label, "bias");
    return add_job(l, name, &linear->bias, rows, 0, heads, true);
}

static gm_status list_jobs(gm_loader *l) {
    gm_model *m = l->model;
    gm_config *c = &m->config;
    bool is_gguf = checkpoint_gguf(l->checkpoint) != NULL;
    const char *embed = is_gguf ? "token_embd.weight" : "model.embed_tokens.weight";
    const char *head = is_gguf ? "output.weight" : "lm_head.weight";
    const gm_tensor *t = checkpoint_find(l->checkpoint, embed);
    if (is_gguf && t && t->ndim == 2)      /* the matrix is the truth: token lists may be shorter */
        c->vocab = t->shape[0];
    if (c->tied < 0)
        c->tied = !checkpoint_find(l->checkpoint, head);
    GM_TRY(add_job(l, embed, &m->embedding.weight, c->vocab, c->hidden, 0, false));
    for (int64_t i = 0; i < c->n_layers; i++)
        for (const gm_weight_field *f = m->arch->fields; f->name; f++)
            GM_TRY(add_field(l, f, i));
    GM_TRY(add_job(l, is_gguf ? "output_norm.weight" : "model.norm.weight", &m->norm, c->hidden, 0, 0, false));
    if (!c->tied)
        GM_TRY(add_job(l, head, &m->head.weight, c->vocab, c->hidden, 0, false));
    return GM_OK;
}

/* Llama 3's scaling is a tensor of divisors in GGUF. */
static gm_status make_frequencies(gm_loader *l) {
    gm_model *m = l->model;
    float freq[512];
    int64_t half = m->config.rope.dims / 2;
    rope_frequencies(&m->config.rope, freq, &m->rope_factor);
    const gm_tensor *t = checkpoint_gguf(l->checkpoint) ? checkpoint_find(l->checkpoint, "rope_freqs.weight") : NULL;
    if (t) {
        if (t->format != GM_QUANT_f32 || t->ndim != 1 || t->shape[0] != half)
            return gm_fail(GM_EBADFILE, "%s: tensor rope_freqs.weight is %s of %lld items, expected F32 of %lld",
                           l->path, t->type, (long long)t->shape[0], (long long)half);
        for (int64_t i = 0; i < half; i++) {
            float divisor;
            memcpy(&divisor, t->data + (size_t)i * sizeof divisor, sizeof divisor);
            if (!(divisor > 0 && isfinite(divisor)))
                return gm_fail(GM_EBADFILE, "%s: rope_freqs.weight[%lld] is %g, expected more than 0", l->path,
                               (long long)i, (double)divisor);
            freq[i] = (float)(pow(m->config.rope.theta, -2.0 * (double)i / m->config.rope.dims) / (double)divisor);
        }
        l->used[t - checkpoint_at(l->checkpoint, 0)] = true;
    }
    m->inv_freq = array_new(NULL, GM_FLOAT32, 1, &half);
    if (!m->inv_freq)
        return error_code();
    memcpy(array_ptr(m->inv_freq), freq, (size_t)half * sizeof *freq);
    return GM_OK;
}

static gm_status read_config(gm_loader *l) {
    gm_model *m = l->model;
    const gguf *g = checkpoint_gguf(l->checkpoint);
    if (g)
        return error_in_file(gguf_file(g)->path, config_from_gguf(g, &m->arch, &m->config));
    struct stat st;
    size_t folder = strlen(l->path), length;
    char *text, *name;
    if (stat(l->path, &st) == 0 && !S_ISDIR(st.st_mode)) {   /* a .safetensors file: its folder has the config */
        const char *slash = strrchr(l->path, '/');
        folder = slash ? (size_t)(slash - l->path) : 0;
    }
    name = memory_new(folder + sizeof "/config.json" + 2);
    if (!name)
        return GM_ENOMEM;
    sprintf(name, "%.*s/config.json", folder ? (int)folder : 1, folder ? l->path : ".");
    gm_status status = file_read(name, CONFIG_BYTES, &text, &length);
    if (status == GM_OK) {
        status = config_from_json(text, length, name, &m->arch, &m->config);
        memory_free(text);
    }
    memory_free(name);
    return status;
}

static gm_status check_options(const gm_load_options *o) {
    if (o->weight_dtype != -1 && o->weight_dtype != GM_FLOAT32 && o->weight_dtype != GM_FLOAT16 &&
        o->weight_dtype != GM_BFLOAT16)
        return gm_fail(GM_EVALUE, "load: dtype is %s, expected float32, float16 or bfloat16",
                       gm_dtype_name((gm_dtype)o->weight_dtype));
    if (o->kv_dtype != -1 && o->kv_dtype != GM_FLOAT32 && o->kv_dtype != GM_FLOAT16 && o->kv_dtype != GM_BFLOAT16)
        return gm_fail(GM_EVALUE, "load: kv_dtype is %s, expected float32, float16 or bfloat16",
                       gm_dtype_name((gm_dtype)o->kv_dtype));
    if (o->activations < -1 || o->activations > 1)
        return gm_fail(GM_EVALUE, "load: activations is %d, expected 0 (float32), 1 (int8) or -1 to choose",
                       o->activations);
    if (o->threads < 0 || o->threads > TEAM_MAX_THREADS)
        return gm_fail(GM_EVALUE, "load: threads is %d, expected 1 to %d, or 0 to choose", o->threads,
                       TEAM_MAX_THREADS);
    if (o->context_length < 0)
        return gm_fail(GM_EVALUE, "load: context_length is %lld, expected 1 or more, or 0 for the model's own",
                       (long long)o->context_length);
    return GM_OK;
}

gm_status gm_loader_open(const gm_load_options *options, gm_loader **out) {
    *out = NULL;
    GM_TRY(gm_init());
    GM_TRY(check_options(options));
    gm_loader *l = memory_zeroed(sizeof *l);
    if (!l)
        return GM_ENOMEM;
    l->options = *options;
    l->path = memory_copy_text(options->path, strlen(options->path));
    l->model = memory_zeroed(sizeof *l->model);
    l->queue = queue_new();
    if (l->model)
        atomic_init(&l->model->refs, 1);
    gm_status status = l->path && l->model && l->queue ? checkpoint_open(l->path, &l->checkpoint) : GM_ENOMEM;
    if (status == GM_OK && !(l->used = memory_zeroed((size_t)checkpoint_count(l->checkpoint) + 1)))
        status = GM_ENOMEM;
    if (status == GM_OK)
        status = read_config(l);
    gm_model *m = l->model;
    if (status == GM_OK) {
        if (options->context_length > m->config.context)
            status = gm_fail(GM_EVALUE, "load: context_length %lld is more than the model's %lld",
                             (long long)options->context_length, (long long)m->config.context);
        else if (options->context_length)
            m->config.context = options->context_length;
    }
    if (status == GM_OK && !(m->layers = memory_zeroed((size_t)m->config.n_layers * m->arch->layer_size)))
        status = GM_ENOMEM;
    if (status == GM_OK)
        status = list_jobs(l);
    if (status == GM_OK)
        status = make_frequencies(l);
    if (status != GM_OK) {
        gm_loader_close(l);
        return status;
    }
    m->threads = options->threads ? options->threads : gm_default_threads();
    *out = l;
    return GM_OK;
}

/* ---- the work ---- */
static int dense_format(int dtype) {
    return dtype == GM_FLOAT16 ? GM_QUANT_f16 : dtype == GM_BFLOAT16 ? GM_QUANT_bf16 : GM_QUANT_f32;
}
static gm_dtype dense_dtype(int format) {
    return format == GM_QUANT_f16 ? GM_FLOAT16 : format == GM_QUANT_bf16 ? GM_BFLOAT16 : GM_FLOAT32;
}

/* HF row j of a head is file row 2j, HF row j + D/2 is file row 2j + 1. */
static gm_status make_row_map(gm_loader *l, const job *j) {
    int64_t dim = j->rows / j->permuted_heads;
    l->row_map = memory_array((size_t)j->rows, sizeof *l->row_map);
    if (!l->row_map)
        return error_code();
    for (int64_t r = 0; r < j->rows; r++) {
        int64_t head = r / dim, i = r % dim;
        l->row_map[r] = (int32_t)(head * dim + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1));
    }
    return GM_OK;
}

static gm_status record_vector(gm_loader *l, const job *j) {
    int64_t n = j->rows;
    if (gm_quants[j->tensor->format].values != 1)
        return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s is a vector of type %s, expected F32, F16 or BF16", l->path,
                       j->tensor->name, j->tensor->type);
    l->result = array_new(NULL, GM_FLOAT32, 1, &n);
    if (!l->result)
        return error_code();
    float *to = array_ptr(l->result), *from = to;
    if (l->row_map && !(from = queue_scratch(l->queue, (size_t)n * sizeof *from)))
        return error_code();
    GM_TRY(LAUNCH(l->queue, dequantize, 1, 1, 0, .out = from, .in = j->tensor->data, .format = j->tensor->format,
                  .k = n));
    if (!l->row_map)
        return GM_OK;
    queue_fence(l->queue);
    return LAUNCH(l->queue, take, n, n, 0, .out = to, .in = from, .type = GM_T_F32, .index = l->row_map,
                  .index_type = GM_INT32, .size = n, .step = 1, .count = n, .dense_step = 1, .index_step = 1, .run = 1);
}

static gm_status record_matrix(gm_loader *l, const job *j) {
    const gm_kernels *k = engine_kernels();
    const gm_tensor *t = j->tensor;
    int format = t->format;
    const void *rows = t->data;
    if (format <= GM_QUANT_bf16 && l->options.weight_dtype != -1 && dense_format(l->options.weight_dtype) != format) {
        int64_t count = j->rows * j->columns, one = 1;
        format = dense_format(l->options.weight_dtype);
        void *converted = queue_scratch(l->queue, (size_t)count * (size_t)gm_quants[format].bytes);
        if (!converted)
            return error_code();
        GM_TRY(launch_copy(l->queue, converted, dense_dtype(format), &one, rows, dense_dtype(t->format), &one, 1,
                           &count));
        queue_fence(l->queue);
        rows = converted;
    }
    gm_spec spec = {.dtype = GM_PACKED, .format = format, .ndim = 2, .shape = {j->rows, j->columns}};
    gm_buffer *buf = buffer_new((size_t)kernels_packed_bytes(k, format, j->rows, j->columns));
    l->result = buf ? array_data(NULL, &spec, buf, 0) : NULL;
    buffer_release(buf);
    if (!l->result)
        return error_code();
    return LAUNCH(l->queue, pack, kernels_panels(k, format, j->rows), 4, 0, .out = array_ptr(l->result), .in = rows,
                  .row_map = l->row_map, .format = format, .rows = j->rows, .k = j->columns);
}

static gm_status start_job(gm_loader *l) {
    const job *j = &l->jobs[l->at];
    if (l->at + 1 < l->n_jobs)
        checkpoint_will_need(l->checkpoint, j[1].tensor);   /* read ahead while this one is packed */
    if (j->permuted_heads)
        GM_TRY(make_row_map(l, j));
    gm_status status = j->vector ? record_vector(l, j) : record_matrix(l, j);
    queue_end_node(l->queue);
    return status;
}

static void clear_job(gm_loader *l) {
    gm_release(l->result);
    l->result = NULL;
    memory_free(l->row_map);
    l->row_map = NULL;
}

gm_status gm_loader_step(gm_loader *l, int slice_ms, double *progress) {
    int64_t deadline = slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    while (l->at < l->n_jobs) {
        job *j = &l->jobs[l->at];
        gm_status status;
        if (!l->running) {
            GM_TRY(run_lock(slice_ms > 0 ? slice_ms : -1));
            status = start_job(l);
            if (status != GM_OK) {
                queue_reset(l->queue);
                run_unlock();
                clear_job(l);
                return status;
            }
            queue_start(l->queue, l->model->threads);
            l->running = true;
        }
        status = queue_step(l->queue, deadline);
        if (status == GM_AGAIN)
            return GM_AGAIN;
        queue_finish(l->queue);
        queue_reset(l->queue);
        run_unlock();
        l->running = false;
        if (status != GM_OK)
            return status;
        *j->to = l->result;
        l->result = NULL;
        clear_job(l);
        checkpoint_done_with(l->checkpoint, j->tensor);
        l->bytes_done += j->tensor->bytes;
        l->at++;
        if (progress)
            *progress = l->bytes_total ? (double)l->bytes_done / (double)l->bytes_total : 1;
        if (deadline && clock_ns() >= deadline && l->at < l->n_jobs)
            return GM_AGAIN;
    }
    return GM_OK;
}

/* ---- the finished model ---- */
/* What a cache of the model holds: keys and values of each layer. */
static gm_status lay_out(gm_model *m, int kv_type) {
    const gm_config *c = &m->config;
    cache_slot *slots = memory_zeroed((size_t)c->n_layers * sizeof *slots);
    if (!slots)
        return GM_ENOMEM;
    for (int64_t i = 0; i < c->n_layers; i++)
        slots[i] = (cache_slot){.kind = CACHE_KV, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
                                .window = c->window};
    m->layout = (cache_layout){.slots = slots, .n_slots = (int)c->n_layers, .kv_type = kv_type, .context = c->context};
    return GM_OK;
}

/* Which linear layers multiply int8 activations, what the KV cache holds: the options, or the container's default. */
static gm_status settle(gm_loader *l) {
    gm_model *m = l->model;
    bool wanted = l->options.activations == -1 ? checkpoint_gguf(l->checkpoint) != NULL : l->options.activations == 1,
        any = false;
    if (m->config.tied)
        m->head.weight = gm_retain(m->embedding.weight);
    for (int64_t i = 0; i < m->config.n_layers; i++)
        for (const gm_weight_field *f = m->arch->fields; f->name; f++)
            if (f->kind == FIELD_LINEAR) {
                gm_linear *linear = (gm_linear *)(void *)(m->layers + (size_t)i * m->arch->layer_size + f->offset);
                linear->int8 = wanted && linear->weight->format > GM_QUANT_bf16;
                any |= linear->int8;
            }
    m->head.int8 = wanted && m->head.weight->format > GM_QUANT_bf16;
    any |= m->head.int8;
    if (l->options.activations == 1 && !any)
        return gm_fail(GM_EVALUE, "load: activations=\"int8\" needs weights in a block format; those of %s are dense",
                       l->path);
    m->int8 = any;
    m->weight_bytes = (int64_t)l->bytes_total;
    return lay_out(m, l->options.kv_dtype != -1 ? l->options.kv_dtype : any ? GM_FLOAT16 : GM_FLOAT32);
}

static cJSON *metadata_value(const gguf_entry *e) {
    static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64",
                                        "i64", "f64"};
    int64_t integer = 0;
    double number = 0;
    if (e->type == GGUF_STRING) {
        const uint8_t *cursor = e->data;
        gguf_string text = gguf_next_string(&cursor);
        char *copy = memory_copy_text(text.text, text.length);
        cJSON *value = copy ? cJSON_CreateString(copy) : NULL;
        memory_free(copy);
        return value;
    }
    if (e->type == GGUF_ARRAY) {
        cJSON *value = cJSON_CreateObject();
        if (value && cJSON_AddStringToObject(value, "type", names[e->item_type]) &&
            cJSON_AddNumberToObject(value, "count", (double)e->count))
            return value;
        cJSON_Delete(value);
        return NULL;
    }
    if (e->type == GGUF_BOOL)
        return cJSON_CreateBool(e->data[0] != 0);
    if (e->type == GGUF_F32 || e->type == GGUF_F64)
        return gguf_item_float(e, 0, &number) == GM_OK && isfinite(number) ? cJSON_CreateNumber(number)
                                                                           : cJSON_CreateNull();
    if (gguf_item_int(e, 0, &integer) == GM_OK)
        return cJSON_CreateNumber((double)integer);
    gm_error beyond_int64;
    gm_take_error(&beyond_int64);
    return cJSON_CreateNull();
}

static bool add_metadata(cJSON *o, const gguf *g) {
    cJSON *metadata = cJSON_AddObjectToObject(o, "metadata");
    bool ok = metadata != NULL;
    for (int64_t i = 0; i < gguf_n_entries(g) && ok; i++) {
        const gguf_entry *e = gguf_entry_at(g, i);
        char *key = memory_copy_text(e->key.text, e->key.length);
        cJSON *value = key ? metadata_value(e) : NULL;
        ok = value && cJSON_AddItemToObject(metadata, key, value);
        if (!ok)
            cJSON_Delete(value);
        memory_free(key);
    }
    return ok;
}

static bool add_tensor_lists(cJSON *o, const gm_loader *l, const int64_t *counts) {
    cJSON *types = cJSON_AddObjectToObject(o, "weight_types"), *unused = cJSON_AddArrayToObject(o, "unused_tensors");
    bool ok = types && unused;
    for (int i = 0; i < GM_QUANT_COUNT && ok; i++)
        ok = !counts[i] || cJSON_AddNumberToObject(types, gm_quants[i].name, (double)counts[i]);
    for (int64_t i = 0; i < checkpoint_count(l->checkpoint) && ok; i++) {
        cJSON *name = l->used[i] ? NULL : cJSON_CreateString(checkpoint_at(l->checkpoint, i)->name);
        ok = l->used[i] || (name && cJSON_AddItemToArray(unused, name));
    }
    return ok;
}

static gm_status make_info(gm_loader *l) {
    gm_model *m = l->model;
    const gm_config *c = &m->config;
    const gguf *g = checkpoint_gguf(l->checkpoint);
    static const char *const ropes[] = {"default", "linear", "llama3", "yarn", "dynamic"};
    int64_t parameters = 0, counts[GM_QUANT_COUNT] = {0};
    for (size_t i = 0; i < l->n_jobs; i++) {
        int64_t n = l->jobs[i].rows * (l->jobs[i].vector ? 1 : l->jobs[i].columns);
        parameters += n;
        counts[l->jobs[i].tensor->format] += n;
    }
    cJSON *o = cJSON_CreateObject();
    if (!o)
        return gm_fail(GM_ENOMEM, "load: out of memory");
    const struct { const char *key, *value; } texts[] = {
        {"path", l->path}, {"architecture", m->arch->name}, {"container", g ? "gguf" : "safetensors"},
        {"rope_type", g && checkpoint_find(l->checkpoint, "rope_freqs.weight") ? "llama3" : ropes[c->rope.kind]},
        {"activations", m->int8 ? "int8" : "float32"}, {"kv_dtype", gm_dtype_name((gm_dtype)m->layout.kv_type)}, {"isa", gm_isa()},
    };
    const struct { const char *key; double value; } numbers[] = {
        {"parameters", (double)parameters}, {"weight_bytes", (double)m->weight_bytes}, {"vocab_size", (double)c->vocab},
        {"hidden_size", (double)c->hidden}, {"n_layers", (double)c->n_layers}, {"n_heads", (double)c->n_heads},
        {"n_kv_heads", (double)c->n_kv_heads}, {"head_dim", (double)c->head_dim}, {"mlp_size", (double)c->mlp},
        {"context_length", (double)c->context}, {"sliding_window", (double)c->window}, {"rms_norm_eps", c->eps},
        {"rope_theta", c->rope.theta}, {"threads", m->threads},
        {"kv_bytes_per_token", (double)cache_position_bytes(&m->layout)},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        ok = ok && cJSON_AddStringToObject(o, texts[i].key, texts[i].value);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ok = ok && cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value);
    ok = ok && cJSON_AddBoolToObject(o, "tied", c->tied) && add_tensor_lists(o, l, counts) &&
        (!g || add_metadata(o, g));
    char *text = ok ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    if (!text)
        return gm_fail(GM_ENOMEM, "load: out of memory");
    m->info = memory_copy_text(text, strlen(text));
    cJSON_free(text);
    return m->info ? GM_OK : GM_ENOMEM;
}

gm_status gm_loader_finish(gm_loader *l, gm_model **out) {
    *out = NULL;
    if (l->at < l->n_jobs)
        return gm_fail(GM_ESTATE, "load: %zu of %zu weights are not loaded yet", l->n_jobs - l->at, l->n_jobs);
    if (!l->model)
        return gm_fail(GM_ESTATE, "load: the model was taken already");
    GM_TRY(settle(l));
    GM_TRY(make_info(l));
    *out = l->model;
    l->model = NULL;
    return GM_OK;
}

void gm_loader_close(gm_loader *l) {
    if (!l)
        return;
    if (l->running) {
        queue_cancel(l->queue);
        queue_step(l->queue, 0);
        queue_finish(l->queue);
        run_unlock();
    }
    clear_job(l);
    queue_free(l->queue);
    gm_model_release(l->model);
    checkpoint_close(l->checkpoint);
    memory_free(l->jobs);
    memory_free(l->used);
    memory_free(l->path);
    memory_free(l);
}

/* ---- models ---- */
gm_model *gm_model_retain(gm_model *m) {
    atomic_fetch_add(&m->refs, 1);
    return m;
}

void gm_model_release(gm_model *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    for (int64_t i = 0; m->layers && i < m->config.n_layers; i++)
        for (const gm_weight_field *f = m->arch->fields; f->name; f++) {
            char *at = m->layers + (size_t)i * m->arch->layer_size + f->offset;
            if (f->kind == FIELD_LINEAR)
                linear_clear((gm_linear *)(void *)at);
            else
                gm_release(*(gm_array **)(void *)at);
        }
    linear_clear(&m->embedding);
    linear_clear(&m->head);
    gm_release(m->norm);
    gm_release(m->inv_freq);
    memory_free(m->layers);
    memory_free((void *)(uintptr_t)m->layout.slots);
    memory_free(m->info);
    memory_free(m);
    gm_clear_cache();     /* blocks of a model's sizes are of use to nobody else */
}

int64_t gm_model_vocab_size(const gm_model *m) { return m->config.vocab; }
int64_t gm_model_context_length(const gm_model *m) { return m->config.context; }

gm_status gm_model_info(gm_model *m, char **json) {
    *json = memory_copy_text(m->info, strlen(m->info));
    return *json ? GM_OK : GM_ENOMEM;
}
