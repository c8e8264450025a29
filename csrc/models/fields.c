/* fields.c - from an architecture's tables to the jobs of a loader: which tensor of which container each weight is, and
 * whether it has the shape that the config gives. Names in a table may be several, separated by |; the first that
 * is in the files counts. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "core/device.h"
#include "models/load.h"
#include "ops/ops.h"

/* ---- walking ---- */
bool fields_next(const gm_model *m, field_cursor *c) {
    if (!c->begun) {
        *c = (field_cursor){.begun = true, .layer = m->arch->globals ? -1 : 0};
    }
    for (; c->layer < m->config.n_layers; c->layer++, c->next = 0) {
        const gm_weight_field *table = c->layer < 0 ? m->arch->globals : m->arch->fields;
        c->config = &m->config.layers[c->layer < 0 ? 0 : c->layer];
        while (table[c->next].name) {
            c->field = &table[c->next++];
            if (c->field->when & ~c->config->has)
                continue;
            char *base = c->layer < 0 ? m->globals : m->layers + (size_t)c->layer * m->arch->layer_size;
            c->where = base + c->field->offset;
            return true;
        }
    }
    return false;
}

bool fields_multiplies(const gm_weight_field *f) {
    return (f->kind == FIELD_LINEAR || f->kind == FIELD_EXPERTS) && f->rows != DIM_EXPERTS;
}

/* ---- finding tensors ---- */
const gm_tensor *fields_find(const gm_loader *l, char name[NAME_BYTES], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(name, NAME_BYTES, format, args);
    va_end(args);
    return checkpoint_find(l->checkpoint, name);
}

void fields_prefix(const gm_loader *l, int64_t layer, char out[NAME_BYTES]) {
    bool is_gguf = checkpoint_gguf(l->checkpoint) != NULL;
    if (layer < 0)
        snprintf(out, NAME_BYTES, "%s%s", is_gguf ? "" : l->prefix, is_gguf || !*l->prefix ? "" : ".");
    else if (is_gguf)
        snprintf(out, NAME_BYTES, "blk.%lld.", (long long)layer);
    else
        snprintf(out, NAME_BYTES, "%s%slayers.%lld.", l->prefix, *l->prefix ? "." : "", (long long)layer);
}

const gm_tensor *fields_find_named(const gm_loader *l, const field_cursor *c, const char *ending,
                                   char name[NAME_BYTES]) {
    char prefix[NAME_BYTES], full[NAME_BYTES], first[NAME_BYTES] = "";
    const char *names = checkpoint_gguf(l->checkpoint) ? c->field->gguf : c->field->name;
    fields_prefix(l, c->layer, prefix);
    for (const char *at = names; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        int length = (int)strcspn(at, "|");
        snprintf(name, NAME_BYTES, "%.90s%.*s", prefix, length < 100 ? length : 100, at);
        if (!first[0])
            memcpy(first, name, NAME_BYTES);
        const gm_tensor *t = fields_find(l, full, "%s%s", name, ending);
        if (t)
            return t;
    }
    memcpy(name, first, NAME_BYTES);
    return NULL;
}

/* ---- jobs ---- */
gm_status fields_refuse_shape(const gm_loader *l, const gm_tensor *t, int ndim, const int64_t *want) {
    char expected[128], got[128];
    shape_text(ndim, want, expected);
    shape_text(t->ndim, t->shape, got);
    return gm_fail(GM_EBADFILE, "%s: tensor %s has shape %s, expected %s", l->path, t->name, got, expected);
}

gm_status fields_missing(const gm_loader *l, const char *name) {
    if (l->describes)
        return GM_OK;
    return gm_fail(GM_EBADFILE, "%s: tensor %s is missing", l->path, name);
}

size_t fields_job_bytes(const job *j) {
    const size_t all = j->tensor->bytes + (j->scales ? j->scales->bytes : 0) + (j->biases ? j->biases->bytes : 0);
    return all / (size_t)(j->parts > 1 && !j->apart ? j->parts : 1);
}

bool loader_is_after_layers(const gm_model *m, const job *j) {
    return j->to == &m->norm || j->to == &m->head.weight || j->to == &m->head.bias;
}

gm_status fields_add(gm_loader *l, job j) {
    const gm_tensor *const read[] = {j.tensor, j.scales, j.biases};
    if (!j.scales && j.tensor->format < 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s is of type %s, which is not supported", l->path, j.tensor->name,
                       j.tensor->type);
    if (j.kind == JOB_VECTOR && gm_quants[j.tensor->format].values != 1)
        return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s is of type %s, expected F32, F16 or BF16", l->path,
                       j.tensor->name, j.tensor->type);
    GM_TRY(grow_array(&l->jobs, l->n_jobs, &l->capacity, 1, sizeof *l->jobs));
    for (int i = 0; i < 3; i++)
        if (read[i])
            l->used[read[i] - checkpoint_at(l->checkpoint, 0)] = true;
    j.layer = l->layer;
    j.device = loader_is_after_layers(l->model, &j) ? l->model->device : model_device_of(l->model, l->layer);
    j.multiplies = l->multiplies && j.kind == JOB_PACK;
    l->jobs[l->n_jobs++] = j;
    l->bytes_total += fields_job_bytes(&j);
    return GM_OK;
}

bool fields_has_shape(const gm_tensor *t, int ndim, const int64_t *want) {
    bool same = t->ndim == ndim;
    for (int d = 0; d < ndim && same; d++)
        same = t->shape[d] == want[d];
    return same;
}

/* The filters of a convolution of each channel: [C, 1, K], [C, K, 1] or [C, K]; a gate's one row: [1, H] or [H]. */
static bool is_matrix(const gm_tensor *t, int64_t rows, int64_t columns, bool filters) {
    const int64_t *n = t->shape;
    if (t->ndim == 1)
        return rows == 1 && n[0] == columns;
    if (t->ndim == 3 && filters)
        return n[0] == rows && ((n[1] == 1 && n[2] == columns) || (n[1] == columns && n[2] == 1));
    return t->ndim == 2 && n[0] == rows && n[1] == columns;
}

/* The rows of the tensor that the field is made of; their sum is the field's, the tensor has *rows. */
static void pick_rows(const gm_loader *l, const field_cursor *c, const char *name, int64_t *rows, job *j) {
    const gm_config *config = &l->model->config;
    const uint32_t flags = c->field->flags;
    const int64_t n = *rows;
    if ((flags & FIELD_PERMUTED) && checkpoint_gguf(l->checkpoint))
        j->permuted_heads = n / c->config->head_dim;
    if (flags & FIELD_PICKED)
        j->n_picks = l->model->arch->pick_rows(config, c->field, name, n, rows, j->picks);
}

static gm_status add_vector(gm_loader *l, const field_cursor *c) {
    const gm_config *config = &l->model->config;
    char name[NAME_BYTES];
    int64_t rows = config_dim(config, c->config, c->field->rows), source = rows;
    int64_t columns = c->field->kind == FIELD_MATRIX ? config_dim(config, c->config, c->field->columns) : 1;
    const gm_tensor *t = fields_find_named(l, c, "", name);
    if (!t && (c->field->flags & FIELD_OPTIONAL))
        return GM_OK;
    if (!t)
        return fields_missing(l, name);
    job j = {.tensor = t, .to = c->where, .kind = JOB_VECTOR, .rows = rows, .columns = columns};
    pick_rows(l, c, name, &source, &j);
    const bool matrix = c->field->kind == FIELD_MATRIX;
    if (matrix ? !is_matrix(t, source, columns, true) : !fields_has_shape(t, 1, &source))
        return fields_refuse_shape(l, t, matrix ? 2 : 1, (int64_t[]){source, columns});
    return fields_add(l, j);
}

/* ---- MLX's quantised layout ---- */
static gm_status refuse_type(const gm_loader *l, const gm_tensor *t, const char *expected) {
    return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s is of type %s, expected %s", l->path, t->name, t->type, expected);
}

/* Of one matrix, or of a stack. */
static gm_status check_part(const gm_loader *l, const gm_tensor *t, int64_t experts, int64_t rows, int64_t columns) {
    const int64_t want[3] = {experts ? experts : rows, experts ? rows : columns, columns};
    return fields_has_shape(t, experts ? 3 : 2, want) ? GM_OK : fields_refuse_shape(l, t, experts ? 3 : 2, want);
}

gm_status fields_add_groups(gm_loader *l, job j, const stack_size *size) {
    const int64_t group = j.format == GM_QUANT_nvfp4 ? 16 : gm_quants[j.format].values;
    if (size->columns % gm_quants[j.format].values)
        return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s has rows of %lld values, expected a multiple of %d", l->path,
                       j.tensor->name, (long long)size->columns, gm_quants[j.format].values);
    GM_TRY(check_part(l, j.scales, size->experts, size->source, size->columns / group));
    if (j.biases)
        GM_TRY(check_part(l, j.biases, size->experts, size->source, size->columns / group));
    if (j.biases && j.biases->format != j.scales->format)
        return refuse_type(l, j.biases, j.scales->type);
    if (!j.biases && strcmp(j.scales->type, "U8") != 0)
        return refuse_type(l, j.scales, "U8");
    j.kind = JOB_PACK;
    j.rows = size->rows;
    j.columns = size->columns;
    j.parts = size->experts;
    for (j.part = 0; j.part == 0 || j.part < size->experts; j.part++) {
        j.first_row = j.part * size->source;
        GM_TRY(fields_add(l, j));
    }
    return GM_OK;
}

/* Bits and group follow from the shapes: what the config says of them is not needed. */
gm_status fields_add_mlx(gm_loader *l, const char *base, gm_linear *linear, job j, const stack_size *size) {
    const int64_t columns = size->columns;
    char name[NAME_BYTES];
    const gm_tensor *scales = fields_find(l, name, "%s.scales", base),
                    *biases = fields_find(l, name, "%s.biases", base);
    const gm_tensor *w = fields_find(l, name, "%s.weight", base);
    if (!w)
        return fields_missing(l, name);
    if (w->ndim < 1 || scales->ndim < 1 || w->shape[w->ndim - 1] > INT32_MAX)
        return gm_fail(GM_EBADFILE, "%s: tensor %s and its scales are not matrices", l->path, w->name);
    if (strcmp(w->type, "U32") != 0)
        return refuse_type(l, w, "U32");
    if (biases && (scales->format < 0 || scales->format > GM_QUANT_bf16))
        return refuse_type(l, scales, "F32, F16 or BF16");
    const int64_t words = w->shape[w->ndim - 1], groups = scales->shape[scales->ndim - 1];
    const int64_t bits = words * 32 / columns, group = groups > 0 ? columns / groups : 0;
    const bool whole = words * 32 % columns == 0 && group > 0 && columns % groups == 0;
    const int format = !whole                     ? -1
                       : biases                   ? quant_affine(bits, group, scales->format)
                       : bits == 8 && group == 32 ? GM_QUANT_mxfp8
                       : bits == 4 && group == 32 ? GM_QUANT_mxfp4
                       : bits == 4 && group == 16 ? GM_QUANT_nvfp4
                                                  : -1;
    if (format < 0)
        return gm_fail(GM_EBADFILE,
                       "%s: tensor %s holds %lld values in %lld words with %lld scales: no such format of MLX", l->path,
                       w->name, (long long)columns, (long long)words, (long long)groups);
    GM_TRY(check_part(l, w, size->experts, size->source, words));
    j.tensor = w;
    j.scales = scales;
    j.biases = biases;
    j.format = format;
    j.to = &linear->weight;
    return fields_add_groups(l, j, size);
}

/* ---- matrices ---- */
static gm_status add_bias(gm_loader *l, const char *base, gm_linear *linear, const job *like, int64_t rows,
                          int64_t source) {
    char name[NAME_BYTES];
    const gm_tensor *t = fields_find(l, name, "%s.bias", base);
    job j = *like;
    if (!t)
        return GM_OK;
    if (!fields_has_shape(t, 1, &source))
        return fields_refuse_shape(l, t, 1, &source);
    j.tensor = t;
    j.to = &linear->bias;
    j.kind = JOB_VECTOR;
    j.rows = rows;
    j.columns = 1;
    return fields_add(l, j);
}

static gm_status add_matrix(gm_loader *l, const char *base, gm_linear *linear, job j, int64_t rows, int64_t source,
                            int64_t columns) {
    char name[NAME_BYTES];
    if (fields_find(l, name, "%s.scales", base)) {
        GM_TRY(fields_add_mlx(l, base, linear, j, &(stack_size){0, rows, source, columns}));
        return add_bias(l, base, linear, &j, rows, source);
    }
    const gm_tensor *t = fields_find(l, name, "%s.weight", base);
    if (!t)
        return fields_missing(l, name);
    if (!is_matrix(t, source, columns, false))
        return fields_refuse_shape(l, t, 2, (int64_t[]){source, columns});
    j.tensor = t;
    j.to = &linear->weight;
    j.kind = JOB_PACK;
    j.rows = rows;
    j.columns = columns;
    GM_TRY(fields_add(l, j));
    return add_bias(l, base, linear, &j, rows, source);
}

gm_status fields_need_bias(const gm_loader *l, const gm_linear *linear) {
    if (l->describes || l->jobs[l->n_jobs - 1].to == &linear->bias)
        return GM_OK;
    return gm_fail(GM_EBADFILE, "%s: there is no bias to tensor %s, expected one as every %s has", l->path,
                   l->jobs[l->n_jobs - 1].tensor->name, l->model->arch->name);
}

static gm_status add_linear(gm_loader *l, const field_cursor *c) {
    const gm_config *config = &l->model->config;
    const bool of_attention = c->field->when & HAS_ATTENTION, biased = c->field->flags & FIELD_BIASED;
    char base[NAME_BYTES];
    int64_t rows = config_dim(config, c->config, c->field->rows), source = rows;
    const gm_tensor *t = fields_find_named(l, c, ".weight", base);
    job j = {0};
    if (!t && ((c->field->flags & FIELD_OPTIONAL) ||
               ((c->field->flags & FIELD_GGUF_OPTIONAL) && checkpoint_gguf(l->checkpoint))))
        return GM_OK;
    pick_rows(l, c, base, &source, &j);
    GM_TRY(add_matrix(l, base, c->where, j, rows, source, config_dim(config, c->config, c->field->columns)));
    return biased && !(of_attention && config->unbiased) ? fields_need_bias(l, c->where) : GM_OK;
}

/* ---- the whole ---- */
/* MLX's conversions of recurrent models hold 1 + w, and their convolutions' taps last but one. */
static bool holds_one_plus(const gm_loader *l) {
    char name[NAME_BYTES];
    for (int64_t i = 0; i < l->model->config.n_layers; i++) {
        const gm_tensor *t = fields_find(l, name, "%s.layers.%lld.linear_attn.conv1d.weight", l->prefix, (long long)i);
        if (t)
            return t->ndim == 3 && t->shape[2] == 1 && t->shape[1] != 1;
    }
    return false;
}

gm_status fields_list(gm_loader *l) {
    gm_model *m = l->model;
    gm_config *c = &m->config;
    const bool is_gguf = checkpoint_gguf(l->checkpoint) != NULL;
    char embed[NAME_BYTES], head[NAME_BYTES], name[NAME_BYTES];
    l->prefix = config_prefix(l->checkpoint);
    l->one_plus_weight = c->one_plus_weight && !is_gguf && !holds_one_plus(l);
    snprintf(embed, sizeof embed, is_gguf ? "token_embd" : "%s%sembed_tokens", l->prefix, *l->prefix ? "." : "");
    snprintf(head, sizeof head, is_gguf ? "output" : "lm_head");
    if (!is_gguf && !fields_find(l, name, "lm_head.weight") && fields_find(l, name, "language_model.lm_head.weight"))
        snprintf(head, sizeof head, "language_model.lm_head");
    const gm_tensor *t = fields_find(l, name, "%s.weight", embed);
    if (is_gguf && t && t->ndim == 2) /* the matrix is the truth: token lists may be shorter */
        c->vocab = t->shape[0];
    if (c->vocab < 1 || c->vocab > INT32_MAX)
        return gm_fail(GM_EBADFILE, "%s: a vocabulary of %lld tokens, expected 1 to %d", l->path, (long long)c->vocab,
                       INT32_MAX);
    if (c->tied < 0)
        c->tied = !fields_find(l, name, "%s.weight", head);
    l->layer = -1;
    l->multiplies = c->tied;
    GM_TRY(add_matrix(l, embed, &m->embedding, (job){0}, c->vocab, c->vocab, c->hidden));
    for (field_cursor at = {0}; fields_next(m, &at);) {
        l->layer = at.layer;
        l->multiplies = fields_multiplies(at.field);
        switch (at.field->kind) {
        case FIELD_LINEAR: GM_TRY(add_linear(l, &at)); break;
        case FIELD_EXPERTS: GM_TRY(fields_add_experts(l, &at)); break;
        case FIELD_VECTOR:
        case FIELD_MATRIX: GM_TRY(add_vector(l, &at)); break;
        }
    }
    l->layer = -1;
    l->multiplies = true;
    t = is_gguf ? fields_find(l, name, "output_norm.weight")
                : fields_find(l, name, "%s%snorm.weight", l->prefix, *l->prefix ? "." : "");
    if (!t)
        GM_TRY(fields_missing(l, name));
    if (t && !fields_has_shape(t, 1, &c->hidden))
        return fields_refuse_shape(l, t, 1, &c->hidden);
    if (t)
        GM_TRY(fields_add(l, (job){.tensor = t, .to = &m->norm, .kind = JOB_VECTOR, .rows = c->hidden, .columns = 1}));
    if (!c->tied)
        GM_TRY(add_matrix(l, head, &m->head, (job){0}, c->vocab, c->vocab, c->hidden));
    m->weight_bytes = (int64_t)l->bytes_total;
    if (!c->tied || !model_is_shared(m))
        return GM_OK;
    return add_matrix(l, embed, &m->head, (job){0}, c->vocab, c->vocab, c->hidden); /* once more, for the device */
}

/* ---- once loaded ---- */
/* Norms that are stored without their 1, and decays as logs, become what the forward pass multiplies by. */
static gm_status adapt(gm_loader *l) {
    gm_model *m = l->model;
    gm_scope *s = gm_scope_open();
    if (!s)
        return GM_ENOMEM;
    gm_array *one = scalar_array(s, 1, GM_FLOAT32);
    gm_status status = one ? GM_OK : error_code();
    if (status == GM_OK && l->one_plus_weight) {
        gm_array *norm = gm_retain(gm_add(s, m->norm, one));
        status = norm ? gm_eval(&norm, 1) : error_code();
        gm_release(m->norm);
        m->norm = norm;
    }
    for (field_cursor at = {0}; status == GM_OK && fields_next(m, &at);) {
        gm_array **where = at.where, *made = NULL;
        if (at.field->kind != FIELD_VECTOR || !*where)
            continue;
        if ((at.field->flags & FIELD_ONE_PLUS_WEIGHT) && l->one_plus_weight)
            made = gm_retain(gm_add(s, *where, one));
        else if ((at.field->flags & FIELD_NEGATIVE_EXP) && !checkpoint_gguf(l->checkpoint))
            made = gm_retain(gm_negative(s, gm_exp(s, *where)));
        else
            continue;
        status = made ? gm_eval(&made, 1) : error_code();
        gm_release(*where);
        *where = made;
    }
    gm_scope_close(s);
    return status;
}

gm_status fields_adapt(gm_loader *l) {
    const int before = device_enter(0); /* as all of a model */
    const gm_status status = adapt(l);
    device_enter(before);
    return status;
}

static gm_status name_weight(gm_model *m, size_t *capacity, const char *name, const char *ending, gm_array **array,
                             gm_linear *linear, int64_t count) {
    GM_TRY(grow_array(&m->weights, (size_t)m->n_weights, capacity, 1, sizeof *m->weights));
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%.170s%s", name, ending);
    char *copy = memory_copy_text(full, strlen(full));
    if (!copy)
        return error_code();
    m->weights[m->n_weights++] = (gm_named_weight){copy, array, linear, count};
    return GM_OK;
}

static gm_status name_linear(gm_model *m, size_t *capacity, const char *name, gm_linear *linear, int64_t count) {
    if (linear->weight)
        GM_TRY(name_weight(m, capacity, name, ".weight", NULL, linear, count));
    return linear->bias ? name_weight(m, capacity, name, ".bias", &linear->bias, NULL, linear->bias->size) : GM_OK;
}

gm_status fields_name(gm_loader *l) {
    gm_model *m = l->model;
    const gm_config *c = &m->config;
    size_t capacity = 0;
    char name[NAME_BYTES];
    GM_TRY(name_linear(m, &capacity, "model.embed_tokens", &m->embedding, c->vocab * c->hidden));
    for (field_cursor at = {0}; fields_next(m, &at);) {
        int length = (int)strcspn(at.field->name, "|");
        if (at.layer < 0)
            snprintf(name, sizeof name, "model.%.*s", length, at.field->name);
        else
            snprintf(name, sizeof name, "model.layers.%lld.%.*s", (long long)at.layer, length, at.field->name);
        int64_t count = config_dim(c, at.config, at.field->rows) * config_dim(c, at.config, at.field->columns);
        if (at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS)
            GM_TRY(name_linear(m, &capacity, name, at.where,
                               count * (at.field->kind == FIELD_EXPERTS ? c->n_experts : 1)));
        else if (*(gm_array **)at.where)
            GM_TRY(name_weight(m, &capacity, name, "", at.where, NULL, (*(gm_array **)at.where)->size));
    }
    GM_TRY(name_weight(m, &capacity, "model.norm.weight", "", &m->norm, NULL, c->hidden));
    return c->tied ? GM_OK : name_linear(m, &capacity, "lm_head", &m->head, c->vocab * c->hidden);
}
