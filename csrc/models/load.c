/* load.c - a checkpoint becomes a model: jobs, one after another, pack what fields.c listed with all threads.
 * A loader works in slices, one tensor after another; closing it at any time gives everything back. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/checksum.h"
#include "base/memory.h"
#include "base/team.h"
#include "core/device.h"
#include "core/mirror.h"
#include "models/adapter.h"
#include "models/load.h"
#include "models/traffic.h"
#include "ops/ops.h"

#define CONFIG_BYTES ((size_t)16 << 20)

/* Llama 3's scaling, and Gemma 4's partial rotation, are a tensor of divisors in GGUF; of full layers. */
static gm_status divide_frequencies(gm_loader *l, int64_t half, float *freq) {
    const rope_config *rope = &l->model->config.rope[ROPE_FULL];
    const gm_tensor *t = checkpoint_gguf(l->checkpoint) ? checkpoint_find(l->checkpoint, "rope_freqs.weight") : NULL;
    if (!t)
        return GM_OK;
    if (t->format != GM_QUANT_f32 || t->ndim != 1 || t->shape[0] != half)
        return gm_fail(GM_EBADFILE, "%s: tensor rope_freqs.weight is %s of %lld items, expected F32 of %lld", l->path,
                       t->type, (long long)t->shape[0], (long long)half);
    for (int64_t i = 0; i < half; i++) {
        float divisor;
        memcpy(&divisor, t->data + (size_t)i * sizeof divisor, sizeof divisor);
        if (!(divisor > 0 && isfinite(divisor)))
            return gm_fail(GM_EBADFILE, "%s: rope_freqs.weight[%lld] is %g, expected more than 0", l->path,
                           (long long)i, (double)divisor);
        /* 1e30 means pairs that are not rotated */
        freq[i] = divisor > 1e29f ? 0 : (float)(pow(rope->theta, -2.0 * (double)i / rope->dims) / (double)divisor);
    }
    l->used[t - checkpoint_at(l->checkpoint, 0)] = true;
    return GM_OK;
}

static gm_status make_frequencies(gm_loader *l) {
    gm_model *m = l->model;
    float freq[MAX_HEAD_DIM / 2];
    for (int i = 0; i < GM_ROPES; i++) {
        int64_t half = m->config.rope[i].dims / 2;
        if (half < 1) /* no layer has it */
            continue;
        rope_frequencies(&m->config.rope[i], freq, &m->rope_factor[i]);
        if (i == ROPE_FULL)
            GM_TRY(divide_frequencies(l, half, freq));
        m->inv_freq[i] = array_new(NULL, GM_FLOAT32, 1, &half);
        if (!m->inv_freq[i])
            return error_code();
        memcpy(array_ptr(m->inv_freq[i]), freq, (size_t)half * sizeof *freq);
    }
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
    if (stat(l->path, &st) == 0 && !S_ISDIR(st.st_mode)) { /* a .safetensors file: its folder has the config */
        const char *slash = strrchr(l->path, '/');
        folder = slash ? (size_t)(slash - l->path) : 0;
    }
    name = memory_new(folder + sizeof "/config.json" + 2);
    if (!name)
        return GM_ENOMEM;
    sprintf(name, "%.*s/config.json", folder ? (int)folder : 1, folder ? l->path : ".");
    gm_status status = file_read(name, CONFIG_BYTES, &text, &length);
    if (status == GM_OK) {
        status = config_from_json(text, length, name, l->checkpoint, &m->arch, &m->config);
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
    if (o->kv_dtype != -1 && o->kv_dtype != GM_FLOAT32 && o->kv_dtype != GM_FLOAT16 && o->kv_dtype != GM_BFLOAT16 &&
        o->kv_dtype != GM_KV_Q8_0)
        return gm_fail(GM_EVALUE, "load: kv_dtype is %s, expected float32, float16, bfloat16 or q8_0",
                       gm_dtype_name((gm_dtype)o->kv_dtype));
    if (o->context_policy < GM_CONTEXT_STOP || o->context_policy > GM_CONTEXT_ROTATE)
        return gm_fail(GM_EVALUE, "load: context_policy is %d, expected a gm_context_policy", (int)o->context_policy);
    if (o->activations < -1 || o->activations > 2)
        return gm_fail(GM_EVALUE,
                       "load: activations is %d, expected 0 (float32), 1 (int8), 2 (bfloat16) or -1 to "
                       "choose",
                       o->activations);
    if (o->threads < 0 || o->threads > TEAM_MAX_THREADS)
        return gm_fail(GM_EVALUE, "load: threads is %d, expected 1 to %d, or 0 to choose", o->threads,
                       TEAM_MAX_THREADS);
    if (o->device && !device_get(o->device))
        return error_code();
    if (o->context_length < 0)
        return gm_fail(GM_EVALUE, "load: context_length is %lld, expected 1 or more, or 0 for the model's own",
                       (long long)o->context_length);
    return GM_OK;
}

/* Which layers are where. */
static gm_status place_layers(gm_loader *l) {
    gm_model *m = l->model;
    const gm_config *c = &m->config;
    const int host = l->options.host_layers;
    if (host < 0 || host >= c->n_layers || (host && !l->options.device))
        return gm_fail(GM_EVALUE,
                       "load: %d layers on the processor before those on device %d, expected 0 to %lld, and 0 without "
                       "a device",
                       host, l->options.device, (long long)c->n_layers - 1);
    m->device = l->options.device;
    m->first_device = host ? 0 : m->device;
    for (int64_t i = 0; i < c->n_layers; i++)
        c->layers[i].device = i < host ? 0 : m->device;
    for (int64_t i = host; i < c->n_layers; i++)
        if ((c->layers[i].has & HAS_ATTENTION) && c->layers[i].source < host)
            return gm_fail(GM_EVALUE,
                           "load: layer %lld reads the keys of layer %d, which would be on the processor: expected at "
                           "most %d layers there",
                           (long long)i, c->layers[i].source, c->layers[i].source);
    return GM_OK;
}

static gm_status open_model(gm_loader *l) {
    gm_model *m = l->model;
    const int64_t context = l->options.context_length;
    GM_TRY(checkpoint_open(l->path, &l->checkpoint));
    if (!(l->used = memory_zeroed((size_t)checkpoint_count(l->checkpoint) + 1)))
        return GM_ENOMEM;
    GM_TRY(read_config(l));
    if (context > m->config.context)
        return gm_fail(GM_EVALUE, "load: context_length %lld is more than the model's %lld", (long long)context,
                       (long long)m->config.context);
    if (context)
        m->config.context = context;
    if (!(m->layers = memory_zeroed((size_t)m->config.n_layers * m->arch->layer_size)))
        return GM_ENOMEM;
    if (m->arch->globals && !(m->globals = memory_zeroed(m->arch->globals_size)))
        return GM_ENOMEM;
    GM_TRY(place_layers(l));
    GM_TRY(fields_list(l));
    return make_frequencies(l);
}

gm_status loader_open(const gm_load_options *options, bool describes, gm_loader **out) {
    *out = NULL;
    GM_TRY(gm_init());
    GM_TRY(check_options(options));
    gm_loader *l = memory_zeroed(sizeof *l);
    if (!l)
        return GM_ENOMEM;
    l->options = *options;
    l->describes = describes;
    l->path = memory_copy_text(options->path, strlen(options->path));
    l->model = memory_zeroed(sizeof *l->model);
    l->queue = queue_new(0);
    l->packs = queue_new(options->device);
    if (l->model)
        atomic_init(&l->model->refs, 1);
    gm_status status = !l->packs                         ? error_code()
                       : l->path && l->model && l->queue ? adapters_new(&l->model->adapters)
                                                         : GM_ENOMEM;
    if (status == GM_OK)
        status = open_model(l);
    if (status != GM_OK)
        gm_loader_close(l);
    else
        *out = l;
    return status;
}

gm_status gm_loader_open(const gm_load_options *options, gm_loader **out) {
    gm_loader *l;
    *out = NULL;
    GM_TRY(loader_open(options, false, &l));
    const gm_status status = fields_check_unused(l);
    if (status != GM_OK) {
        gm_loader_close(l);
        return status;
    }
    l->model->threads = options->threads ? options->threads : gm_default_threads();
    for (size_t i = 0; i < l->n_jobs; i++)
        l->jobs[i].waits = waiting_can(l, &l->jobs[i]);
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

/* Of interleaved heads row j is file row 2j, row j + D/2 file row 2j + 1. */
gm_status loader_map_rows(gm_loader *l, const job *j) {
    if (!j->n_picks && !j->permuted_heads)
        return GM_OK;
    l->row_map = memory_array((size_t)j->rows, sizeof *l->row_map);
    if (!l->row_map)
        return error_code();
    int64_t at = 0, dim = j->permuted_heads ? j->rows / j->permuted_heads : 0;
    for (int p = 0; p < j->n_picks; p++) {
        const row_pick *pick = &j->picks[p];
        for (int64_t r = 0; r < pick->rows; r++)
            l->row_map[at++] = (int32_t)(r / pick->block * pick->period + pick->offset + r % pick->block);
    }
    for (; dim && at < j->rows; at++) {
        int64_t i = at % dim;
        l->row_map[at] = (int32_t)(at - i + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1));
    }
    return GM_OK;
}

/* Records the copy of a vector, or of rows as they are, from what the job picks of `in`: strided copies. */
static gm_status record_copy(gm_loader *l, const job *j, void *out, gm_dtype type, const void *in, gm_dtype in_type) {
    const int64_t k = j->columns, item = (int64_t)gm_dtype_size(type), in_item = (int64_t)gm_dtype_size(in_type);
    if (j->permuted_heads) {
        int64_t dim = j->rows / j->permuted_heads, shape[4] = {j->permuted_heads, 2, dim / 2, k};
        int64_t to[4] = {dim * k, dim / 2 * k, k, 1}, from[4] = {dim * k, k, 2 * k, 1};
        return launch_copy(l->queue, (copy_to){out, type, to}, (copy_from){in, in_type, from}, 4, shape);
    }
    if (!j->n_picks)
        return launch_copy(l->queue, (copy_to){out, type, (int64_t[]){1}}, (copy_from){in, in_type, (int64_t[]){1}}, 1,
                           (int64_t[]){j->rows * k});
    for (int64_t p = 0, at = 0; p < j->n_picks; at += j->picks[p++].rows) {
        const row_pick *pick = &j->picks[p];
        int64_t shape[3] = {pick->rows / pick->block, pick->block, k};
        GM_TRY(launch_copy(
            l->queue, (copy_to){(char *)out + at * k * item, type, (int64_t[]){pick->block * k, k, 1}},
            (copy_from){(const char *)in + pick->offset * k * in_item, in_type, (int64_t[]){pick->period * k, k, 1}}, 3,
            shape));
    }
    return GM_OK;
}

int loader_format(const gm_loader *l, const job *j) {
    int format = j->scales ? j->format : j->tensor->format;
    return format <= GM_QUANT_bf16 && l->options.weight_dtype != -1 ? dense_format(l->options.weight_dtype) : format;
}

/* Bytes of one part of the job's result. */
static size_t part_bytes(const gm_loader *l, const job *j) {
    if (j->kind == JOB_PACK)
        return (size_t)array_packed_bytes(j->device, GM_PACKED, loader_format(l, j), j->rows, j->columns);
    return (size_t)(j->rows * j->columns) * sizeof(float) + 1;
}
size_t loader_result_bytes(const gm_loader *l, const job *j) {
    return (part_bytes(l, j) * (size_t)(j->parts > 1 ? j->parts : 1) + 63) / 64 * 64;
}

/* Matrices are stored one after another, as a pass reads them, in buffers of many: large pages hold them, and what
 * reads ahead of one finds the next. Vectors are apart. */
#define SHARED_BYTES ((size_t)64 << 20)
gm_buffer *loader_take_shared(gm_loader *l, const job *j, size_t *offset) {
    const size_t bytes = loader_result_bytes(l, j);
    if (!l->shared || l->shared->device != j->device || l->shared_used + bytes > l->shared->bytes) {
        size_t all = bytes;
        for (const job *next = j + 1; next < l->jobs + l->n_jobs && all < SHARED_BYTES; next++) {
            if (next->device != j->device)
                break;
            if (next->kind == JOB_PACK && next->part == 0 && next->waits == j->waits)
                all += loader_result_bytes(l, next);
        }
        buffer_release(l->shared);
        l->shared_used = 0;
        l->shared = buffer_new_on(j->device, all);
        if (!l->shared)
            return NULL;
    }
    *offset = l->shared_used;
    l->shared_used += bytes;
    return buffer_retain(l->shared);
}

/* The array that the job's part goes to: made by the first part. */
static gm_array *make_result(gm_loader *l, const job *j, gm_spec spec) {
    if (j->part)
        return *j->to;
    size_t offset = 0;
    gm_buffer *buf = j->kind == JOB_PACK ? loader_take_shared(l, j, &offset) : buffer_new(loader_result_bytes(l, j));
    *j->to = buf ? array_data(NULL, &spec, buf, (int64_t)offset) : NULL;
    buffer_release(buf);
    return *j->to;
}

/* Whole stacks are [E, rows, columns]; vectors have no columns. */
static gm_spec result_spec(const job *j, gm_dtype dtype, bool vector) {
    gm_spec spec = {.dtype = dtype};
    int64_t stack = j->parts < 0 ? -j->parts : j->parts;
    if (stack)
        spec.shape[spec.ndim++] = stack;
    spec.shape[spec.ndim++] = j->parts < 0 ? j->rows / stack : j->rows;
    if (!vector)
        spec.shape[spec.ndim++] = j->columns;
    return spec;
}

static gm_status record_dense(gm_loader *l, const job *j) {
    gm_array *result = make_result(l, j, result_spec(j, GM_FLOAT32, j->columns == 1));
    return result ? record_copy(l, j, array_ptr(result), GM_FLOAT32, j->tensor->data, dense_dtype(j->tensor->format))
                  : error_code();
}

/* Vectors are made on the processor, and go to a device at the end. */
static gm_queue *queue_of(const gm_loader *l, const job *j) {
    return j->kind == JOB_PACK && j->device == l->options.device ? l->packs : l->queue;
}

/* Bytes of the files where launches that pack them read them: a copy, for a device. It is begun now, and over before
 * the job is. */
static gm_status bring(gm_loader *l, const job *j, const void *bytes, int64_t size, const void **out) {
    *out = bytes;
    if (!j->device || !bytes)
        return GM_OK;
    void *there = queue_scratch(queue_of(l, j), (size_t)size);
    *out = there;
    return there ? device_copy(j->device, there, bytes, (size_t)size) : error_code();
}

/* The rows of the tensor that a job reads, from its first one on. */
static int64_t rows_read(const gm_loader *l, const job *j) {
    int64_t rows = j->transposed ? j->transposed : j->rows;
    for (int64_t r = 0; l->row_map && !j->transposed && r < j->rows; r++)
        rows = l->row_map[r] >= rows ? l->row_map[r] + 1 : rows;
    return rows;
}

/* Room for the part of a packed matrix, and the kernel that fills it from `in`. */
static gm_status record_pack(gm_loader *l, const job *j, int format, const void *in, const void *scales,
                             const void *biases) {
    gm_spec spec = result_spec(j, GM_PACKED, false);
    spec.format = format;
    gm_array *result = make_result(l, j, spec);
    if (!result)
        return error_code();
    return DISPATCH(
        queue_of(l, j), pack, j->rows, .out = (char *)array_ptr(result) + part_bytes(l, j) * (size_t)j->part, .in = in,
        .row_map = l->row_map, .format = format, .rows = j->rows, .k = j->columns, .scales = scales, .biases = biases);
}

/* MLX's arrays have the groups of a matrix apart. */
static gm_status record_groups(gm_loader *l, const job *j) {
    const gm_quant_info *f = &gm_quants[j->format];
    const int64_t bits = f->bits ? f->bits : j->format == GM_QUANT_mxfp8 ? 8 : 4;
    const int64_t scales = (f->bytes - f->values * bits / 8) / (j->biases ? 2 : 1); /* bytes of a block */
    const int64_t first = j->first_row * j->columns, block = first / f->values;
    const int64_t blocks = rows_read(l, j) * j->columns / f->values;
    const void *in, *scale, *bias;
    GM_TRY(bring(l, j, j->tensor->data + first * bits / 8, blocks * f->values * bits / 8, &in));
    GM_TRY(bring(l, j, j->scales->data + block * scales, blocks * scales, &scale));
    GM_TRY(bring(l, j, j->biases ? j->biases->data + block * scales : NULL, blocks * scales, &bias));
    return record_pack(l, j, j->format, in, scale, bias);
}

static gm_status record_matrix(gm_loader *l, const job *j) {
    if (j->scales)
        return record_groups(l, j);
    const gm_tensor *t = j->tensor;
    const gm_quant_info *in = &gm_quants[t->format];
    const int format = loader_format(l, j);
    const int64_t source = rows_read(l, j);
    gm_queue *q = queue_of(l, j);
    const void *rows;
    GM_TRY(bring(l, j, t->data + j->first_row * (j->transposed ? j->transposed : j->columns) / in->values * in->bytes,
                 source * j->columns / in->values * in->bytes, &rows));
    if (format != t->format || j->transposed) {
        int64_t shape[2] = {source, j->columns}, to[2] = {j->columns, 1}, from[2] = {j->columns, 1};
        if (j->transposed) {
            from[0] = 1;
            from[1] = j->transposed;
        }
        void *dense = queue_scratch(q, (size_t)(shape[0] * shape[1]) * (size_t)gm_quants[format].bytes);
        if (!dense)
            return error_code();
        GM_TRY(launch_copy(q, (copy_to){dense, dense_dtype(format), to},
                           (copy_from){rows, dense_dtype(t->format), from}, 2, shape));
        queue_fence(q);
        rows = dense;
    }
    return record_pack(l, j, format, rows, NULL, NULL);
}

static void mix(uint64_t *sum, const void *bytes, size_t n) {
    *sum = checksum_of((uint64_t[]){*sum, checksum_of(bytes, n)}, 2 * sizeof *sum);
}

/* Training changes all of a tensor: its beginning, middle and end tell. */
static void add_to_fingerprint(gm_model *m, const gm_tensor *t) {
    enum { SAMPLE = 4096 };
    const size_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
    mix(&m->fingerprint, t->name, strlen(t->name));
    mix(&m->fingerprint, t->type, strlen(t->type));
    mix(&m->fingerprint, t->shape, (size_t)t->ndim * sizeof *t->shape);
    for (size_t i = 0; i < 3; i++)
        mix(&m->fingerprint, t->data + (t->bytes - n) / 2 * i, n);
}

/* A head that is the embedding once more, for another device, is the same weight. */
static void add_read_to_fingerprint(gm_loader *l, const job *j) {
    const gm_tensor *const read[] = {j->tensor, j->scales, j->biases};
    if (l->model->config.tied && j->to == &l->model->head.weight)
        return;
    for (int i = 0; i < 3 && j->part == 0; i++)
        if (read[i])
            add_to_fingerprint(l->model, read[i]);
}

/* What the job reads: its tensor, and scales and biases that MLX's arrays have apart. */
static void for_each_read(gm_loader *l, const job *j, void (*f)(const gm_checkpoint *c, const gm_tensor *t)) {
    const gm_tensor *const read[] = {j->tensor, j->scales, j->biases};
    for (int i = 0; i < 3; i++)
        if (read[i])
            f(l->checkpoint, read[i]);
}

static gm_status start_job(gm_loader *l) {
    const job *j = &l->jobs[l->at];
    gm_status status = GM_OK;
    add_read_to_fingerprint(l, j);
    if (l->at + 1 < l->n_jobs)
        for_each_read(l, j + 1, checkpoint_will_need); /* read ahead while this one is packed */
    if (j->kind == JOB_PACK)
        status = loader_map_rows(l, j);
    if (status == GM_OK)
        status = j->kind == JOB_PACK ? record_matrix(l, j) : record_dense(l, j);
    queue_end_node(queue_of(l, j));
    return status;
}

static void clear_job(gm_loader *l) {
    memory_free(l->row_map);
    l->row_map = NULL;
}

/* Starts the next job unless it is under way, and works until the deadline. */
static gm_status run_job(gm_loader *l, int slice_ms, int64_t deadline) {
    gm_queue *q = queue_of(l, &l->jobs[l->at]);
    gm_status status;
    if (!l->running) {
        GM_TRY(run_lock(slice_ms > 0 ? slice_ms : -1));
        status = start_job(l);
        if (status != GM_OK) {
            queue_end(q, true);
            queue_reset(q);
            run_unlock();
            clear_job(l);
            return status;
        }
        queue_begin(q, l->model->threads);
        l->running = true;
    }
    status = queue_go_on(q, deadline);
    if (status == GM_AGAIN)
        return GM_AGAIN;
    queue_end(q, status != GM_OK);
    queue_reset(q);
    run_unlock();
    l->running = false;
    clear_job(l);
    return status;
}

gm_status gm_loader_step(gm_loader *l, int slice_ms, double *progress) {
    int64_t deadline = slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    while (l->at < l->n_jobs) {
        job *j = &l->jobs[l->at];
        if (j->waits) {
            add_read_to_fingerprint(l, j);
            GM_TRY(waiting_start(l, j));
        } else {
            GM_TRY(run_job(l, slice_ms, deadline));
        }
        if (!j->waits && (j->apart || j->parts <= 1 || j->part + 1 == j->parts))
            for_each_read(l, j, checkpoint_done_with);
        l->bytes_done += fields_job_bytes(j);
        l->at++;
        if (progress)
            *progress = l->bytes_total ? (double)l->bytes_done / (double)l->bytes_total : 1;
        if (deadline && clock_ns() >= deadline && l->at < l->n_jobs)
            return GM_AGAIN;
    }
    return GM_OK;
}

/* ---- the finished model ---- */
gm_status model_lay_out(gm_model *m, int kv_type) {
    const gm_config *c = &m->config;
    cache_slot *slots = memory_zeroed((size_t)c->n_slots * sizeof *slots);
    if (!slots)
        return GM_ENOMEM;
    for (int64_t i = 0; i < c->n_layers; i++) {
        const gm_layer_config *l = &c->layers[i];
        if (l->has & HAS_KV && kv_type == GM_KV_Q8_0 && l->head_dim % 32) {
            memory_free(slots);
            return gm_fail(GM_EVALUE,
                           "load: kv_dtype \"q8_0\" needs heads of whole blocks of 32 values, those of layer "
                           "%lld have %lld",
                           (long long)i, (long long)l->head_dim);
        }
        if (l->has & HAS_KV)
            slots[l->slot] = (cache_slot){.kind = CACHE_KV,
                                          .n_kv_heads = l->n_kv_heads,
                                          .head_dim = l->head_dim,
                                          .window = l->window,
                                          .device = l->device};
        else if (l->has & HAS_LINEAR)
            slots[l->slot] = (cache_slot){.kind = CACHE_STATE,
                                          .device = l->device,
                                          .conv_floats = (l->conv_kernel - 1) * l->conv_channels,
                                          .state_floats = l->state_heads * l->state_value * l->state_key};
    }
    m->layout = (cache_layout){.slots = slots,
                               .n_slots = c->n_slots,
                               .kv_type = kv_type,
                               .context = c->context,
                               .rotate = m->context_policy == GM_CONTEXT_ROTATE};
    for (int i = 0; m->layout.rotate && i < c->n_slots; i++)
        if (slots[i].kind == CACHE_KV && (slots[i].window == 0 || slots[i].window > c->context))
            slots[i].window = c->context;
    return GM_OK;
}

/* multiplies: it takes the activations of its device, or else exact ones. */
static void use_activations(gm_loader *l, gm_linear *linear, int number, bool multiplies) {
    gm_model *m = l->model;
    bool int8, bf16;
    if (!linear->weight)
        return;
    loader_choose_activations(&l->options, number, &int8, &bf16);
    int8 &= multiplies;
    bf16 &= multiplies;
    linear->int8 = int8 && quant_takes_int8(linear->weight->format);
    linear->bf16 = bf16 && linear->weight->format == GM_QUANT_bf16;
    m->int8 |= linear->int8;
    m->quantised |= linear->weight->format > GM_QUANT_bf16;
    m->bf16 |= linear->bf16;
}

void loader_choose_activations(const gm_load_options *o, int number, bool *int8, bool *bf16) {
    *int8 = (o->activations == -1 || o->activations == 1) && device_contracts(number)->quantize_act;
    *bf16 = o->activations == 2 || (o->activations == -1 && device_multiplies_bf16(number));
}

int loader_choose_kv(const gm_load_options *o, bool int8, bool bf16, bool quantised) {
    bool ignored, rounds;
    loader_choose_activations(o, o->device, &ignored, &rounds);
    const bool sixteen = int8 || bf16 || (quantised && o->device && rounds);
    return o->kv_dtype != -1 ? o->kv_dtype : sixteen ? GM_FLOAT16 : GM_FLOAT32;
}

/* What activations the linear layers multiply, what the KV cache holds: the options, or the default of the container
 * and of the processor. */
static gm_status settle(gm_loader *l) {
    gm_model *m = l->model;
    const int option = l->options.activations;
    bool int8, bf16;
    loader_choose_activations(&l->options, m->device, &int8, &bf16);
    if (m->config.tied && !m->head.weight) {
        m->head = m->embedding;
        gm_retain(m->head.weight);
    }
    for (field_cursor at = {0}; fields_next(m, &at);)
        if (at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS)
            use_activations(l, at.where, model_device_of(m, at.layer), fields_multiplies(at.field));
    use_activations(l, &m->head, m->device, true);
    m->rounds = m->device && bf16;
    if (option == 2 && !m->bf16)
        return gm_fail(GM_EVALUE, "load: activations=\"bfloat16\" needs weights in bfloat16; those of %s are others",
                       l->path);
    if (option == 1 && !device_contracts(m->device)->quantize_act)
        return gm_fail(GM_EVALUE,
                       "load: activations=\"int8\" are the processor's: a GPU has \"bfloat16\" and \"float32\"");
    if (option == 1 && !m->int8)
        return gm_fail(GM_EVALUE,
                       "load: activations=\"int8\" needs quantised weights, and not in mxfp8; those of %s "
                       "are others",
                       l->path);
    m->context_policy = l->options.context_policy;
    return model_lay_out(m, loader_choose_kv(&l->options, m->int8, m->bf16, m->quantised));
}

/* What is no matrix goes where these are. */
static gm_status place_vectors(gm_model *m) {
    for (field_cursor at = {0}; fields_next(m, &at);) {
        const bool linear = at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS;
        GM_TRY(array_place(model_device_of(m, at.layer), linear ? &((gm_linear *)at.where)->bias : at.where));
    }
    for (int i = 0; i < GM_ROPES; i++) /* of a shared model a constant for the layers on the device */
        GM_TRY(array_place(m->first_device, &m->inv_freq[i]));
    GM_TRY(array_place(m->device, &m->head.bias));
    return array_place(m->device, &m->norm);
}

gm_status gm_loader_finish(gm_loader *l, gm_model **out) {
    *out = NULL;
    if (l->at < l->n_jobs)
        return gm_fail(GM_ESTATE, "load: %zu of %zu weights are not loaded yet", l->n_jobs - l->at, l->n_jobs);
    if (!l->model)
        return gm_fail(GM_ESTATE, "load: the model was taken already");
    gm_model *m = l->model;
    mix(&m->fingerprint, m->arch->name, strlen(m->arch->name));
    mix(&m->fingerprint, &m->config.eps, sizeof m->config.eps);
    for (int i = 0; i < GM_ROPES; i++)
        if (m->inv_freq[i])
            mix(&m->fingerprint, array_ptr(m->inv_freq[i]), (size_t)m->inv_freq[i]->size * sizeof(float));
    GM_TRY(settle(l));
    GM_TRY(fields_adapt(l));
    GM_TRY(place_vectors(m));
    GM_TRY(fields_name(l));
    traffic_mark(l->model);
    GM_TRY(make_info(l));
    GM_TRY(waiting_keep(l));
    if (m->device)
        gm_device_clear_cache(m->device); /* rows of files, before they were packed */
    *out = l->model;
    l->model = NULL;
    return GM_OK;
}

void gm_loader_close(gm_loader *l) {
    if (!l)
        return;
    if (l->running) {
        queue_give_up(queue_of(l, &l->jobs[l->at]));
        run_unlock();
    }
    clear_job(l);
    waiting_forget(l);
    buffer_release(l->shared);
    buffer_release(l->keeper);
    queue_free(l->queue);
    queue_free(l->packs);
    gm_model_release(l->model);
    checkpoint_close(l->checkpoint);
    for (size_t i = 0; i < l->n_jobs; i++)
        memory_free((void *)(uintptr_t)l->jobs[i].in_rows.map);
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
    if (m->base) {
        model_exact_free(m);
        return;
    }
    if (m->layers && (m->globals || !m->arch->globals))
        for (field_cursor at = {0}; fields_next(m, &at);) {
            if (at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS)
                linear_clear(at.where);
            else
                gm_release(*(gm_array **)at.where);
        }
    linear_clear(&m->embedding);
    linear_clear(&m->head);
    gm_release(m->norm);
    for (int i = 0; i < GM_ROPES; i++)
        gm_release(m->inv_freq[i]);
    for (int64_t i = 0; i < m->n_weights; i++)
        memory_free(m->weights[i].name);
    memory_free(m->weights);
    memory_free(m->layers);
    memory_free(m->globals);
    waiting_free(m->waiting);
    adapters_free(m->adapters);
    memory_free((void *)(uintptr_t)m->layout.slots);
    config_clear(&m->config);
    memory_free(m->info);
    const int number = m->device;
    memory_free(m);
    gm_clear_cache(); /* blocks of a model's sizes are of use to nobody else */
    if (number)
        gm_device_clear_cache(number);
}

int64_t gm_model_vocab_size(const gm_model *m) { return m->config.vocab; }
int64_t gm_model_context_length(const gm_model *m) { return m->config.context; }
int64_t gm_model_hidden_size(const gm_model *m) { return m->config.hidden; }

gm_status gm_model_info(gm_model *m, char **json) {
    *json = memory_copy_text(m->info, strlen(m->info));
    return *json ? GM_OK : GM_ENOMEM;
}
