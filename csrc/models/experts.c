/* experts.c - the stacks of experts as jobs of a loader: one tensor for each expert, one for all, gate and up in one,
 * MXFP4, GGUF's. */
#include <stdio.h>
#include <string.h>
#include "models/load.h"

/* What a stack is called: "mlp.experts.gate_proj" is mlp.experts and gate_proj. */
typedef struct {
    char base[NAME_BYTES], parent[NAME_BYTES];
    const char *part;
    bool down, up;
} expert_names;

static expert_names name_experts(const gm_loader *l, const field_cursor *c) {
    expert_names n = {.part = strrchr(c->field->name, '.') + 1};
    char prefix[NAME_BYTES];
    fields_prefix(l, c->layer, prefix);
    snprintf(n.base, NAME_BYTES, "%.90s%.*s", prefix, (int)(n.part - 1 - c->field->name) % 90, c->field->name);
    snprintf(n.parent, NAME_BYTES, "%s", n.base);
    char *dot = strrchr(n.parent, '.');
    if (dot)
        *dot = 0;
    n.down = strcmp(n.part, "down_proj") == 0;
    n.up = strcmp(n.part, "up_proj") == 0;
    return n;
}

/* Number e of a stack that is one tensor of matrices with `source` rows each. */
static gm_status add_stacked(gm_loader *l, const gm_tensor *t, gm_linear *linear, job j, int64_t rows, int64_t source,
                             int64_t columns) {
    int64_t experts = l->model->config.n_experts;
    int64_t want[3] = {experts, j.transposed ? columns : source, j.transposed ? source : columns};
    if (!fields_has_shape(t, 3, want))
        return fields_refuse_shape(l, t, 3, want);
    j.tensor = t;
    j.to = &linear->weight;
    j.kind = JOB_PACK;
    j.rows = rows;
    j.columns = columns;
    j.parts = experts;
    for (j.part = 0; j.part < experts; j.part++) {
        j.first_row = j.part * (j.transposed ? columns : source);
        GM_TRY(fields_add(l, j));
    }
    return GM_OK;
}

static gm_status add_stacked_bias(gm_loader *l, const gm_tensor *t, gm_linear *linear, job j, int64_t rows,
                                  int64_t source) {
    int64_t experts = l->model->config.n_experts, want[2] = {experts, source};
    if (!t)
        return GM_OK;
    if (!fields_has_shape(t, 2, want))
        return fields_refuse_shape(l, t, 2, want);
    for (int i = 0; i < j.n_picks; i++)
        j.picks[i].rows *= experts;
    j.tensor = t;
    j.to = &linear->bias;
    j.kind = JOB_VECTOR;
    j.rows = experts * rows;
    j.columns = 1;
    j.parts = -experts;
    j.transposed = j.first_row = j.part = 0;
    return fields_add(l, j);
}

/* One tensor for each expert. */
static gm_status add_separate(gm_loader *l, const expert_names *n, gm_linear *linear, int64_t rows, int64_t columns) {
    char name[NAME_BYTES];
    int64_t want[2] = {rows, columns};
    job j = {.to = &linear->weight,
             .kind = JOB_PACK,
             .rows = rows,
             .columns = columns,
             .parts = l->model->config.n_experts,
             .apart = true};
    const gm_tensor *first = NULL;
    for (j.part = 0; j.part < j.parts; j.part++) {
        if (!(j.tensor = fields_find(l, name, "%s.%lld.%s.weight", n->base, (long long)j.part, n->part)))
            return fields_missing(l, name);
        if (!fields_has_shape(j.tensor, 2, want))
            return fields_refuse_shape(l, j.tensor, 2, want);
        first = first ? first : j.tensor;
        if (j.tensor->format != first->format &&
            (l->options.weight_dtype == -1 || j.tensor->format > GM_QUANT_bf16 || first->format > GM_QUANT_bf16))
            return gm_fail(GM_EUNSUPPORTED,
                           "%s: tensor %s is of type %s and %s of %s, expected one type for all experts, "
                           "or a dtype to load them in",
                           l->path, j.tensor->name, j.tensor->type, first->name, first->type);
        GM_TRY(fields_add(l, j));
    }
    return GM_OK;
}

/* Blocks of 32 4-bit values as 16 bytes, the order that MLX's mode mxfp4 has too. */
static gm_status add_mxfp4(gm_loader *l, const expert_names *n, const char *fused, job j, const stack_size *size) {
    char name[NAME_BYTES];
    const gm_tensor *w = fields_find(l, name, "%s.%s_blocks", n->base, fused);
    const gm_tensor *scales = fields_find(l, name, "%s.%s_scales", n->base, fused);
    int64_t want[4] = {size->experts, size->source, size->columns / 32, 16};
    if (!scales)
        return fields_missing(l, name);
    if (size->columns % 32 || !fields_has_shape(w, 4, want) || strcmp(w->type, "U8") != 0)
        return fields_refuse_shape(l, w, 4, want);
    j.tensor = w;
    j.scales = scales;
    j.format = GM_QUANT_mxfp4;
    return fields_add_groups(l, j, size);
}

static gm_status add_gguf(gm_loader *l, const field_cursor *c, int64_t rows, int64_t columns) {
    char name[NAME_BYTES], base[NAME_BYTES], prefix[NAME_BYTES];
    const gm_tensor *t = fields_find_named(l, c, ".weight", base);
    int64_t source = rows;
    job j = {0};
    if (!t && !strstr(c->field->gguf, "down")) { /* gate and up in one */
        fields_prefix(l, c->layer, prefix);
        snprintf(base, sizeof base, "%.90sffn_gate_up_exps", prefix);
        t = fields_find(l, name, "%s.weight", base);
        source = 2 * rows;
        j.picks[j.n_picks++] = (row_pick){rows, rows, 2 * rows, strstr(c->field->gguf, "up") ? rows : 0};
    }
    if (!t) {
        fields_find_named(l, c, ".weight", base);
        fields_find(l, name, "%s.weight", base);
        return fields_missing(l, name);
    }
    GM_TRY(add_stacked(l, t, c->where, j, rows, source, columns));
    return add_stacked_bias(l, fields_find(l, name, "%s.bias", base), c->where, j, rows, source);
}

/* A stack under MLX's names, dense or in MLX's layout. */
static gm_status add_stack(gm_loader *l, const char *base, const gm_tensor *t, gm_linear *linear, int64_t rows,
                           int64_t columns) {
    char name[NAME_BYTES];
    job j = {0};
    const stack_size size = {l->model->config.n_experts, rows, rows, columns};
    GM_TRY(fields_find(l, name, "%s.scales", base) ? fields_add_mlx(l, base, linear, j, &size)
                                                   : add_stacked(l, t, linear, j, rows, rows, columns));
    return add_stacked_bias(l, fields_find(l, name, "%s.bias", base), linear, j, rows, rows);
}

/* transformers' stacks: gate and up are one, by halves or, interleaved, row by row and with inputs as rows. */
static gm_status add_fused(gm_loader *l, const expert_names *n, gm_linear *linear, bool interleaved, int64_t rows,
                           int64_t columns) {
    const char *fused = n->down ? "down_proj" : "gate_up_proj";
    char name[NAME_BYTES];
    int64_t source = n->down ? rows : 2 * rows;
    job j = {0};
    if (!n->down)
        j.picks[j.n_picks++] = interleaved ? (row_pick){rows, 1, 2, n->up}
                                           : (row_pick){rows, rows, 2 * rows, n->up ? rows : 0};
    if (fields_find(l, name, "%s.%s_blocks", n->base, fused)) {
        j.to = &linear->weight;
        GM_TRY(add_mxfp4(l, n, fused, j, &(stack_size){l->model->config.n_experts, rows, source, columns}));
    } else {
        const gm_tensor *t = fields_find(l, name, "%s.%s", n->base, fused);
        if (!t)
            return fields_missing(l, name);
        j.transposed = interleaved ? source : 0;
        GM_TRY(add_stacked(l, t, linear, j, rows, source, columns));
    }
    return add_stacked_bias(l, fields_find(l, name, "%s.%s_bias", n->base, fused), linear, j, rows, source);
}

static gm_status add_experts(gm_loader *l, const field_cursor *c) {
    const gm_config *config = &l->model->config;
    int64_t rows = config_dim(config, c->config, c->field->rows),
            columns = config_dim(config, c->config, c->field->columns);
    char name[NAME_BYTES], base[NAME_BYTES];
    if (checkpoint_gguf(l->checkpoint))
        return add_gguf(l, c, rows, columns);
    const expert_names n = name_experts(l, c);
    if (fields_find(l, name, "%s.0.%s.weight", n.base, n.part))
        return add_separate(l, &n, c->where, rows, columns);
    const struct {
        const char *at, *between;
    } stacks[] = {{n.base, ""}, {n.parent, ".switch_mlp"}, {n.base, ".switch_glu"}};
    for (int i = 0; i < 3; i++) {
        snprintf(base, sizeof base, "%.90s%s", stacks[i].at, stacks[i].between);
        const gm_tensor *t = fields_find(l, name, "%s.%s.weight", base, n.part);
        if (!t)
            continue;
        strcat(strcat(base, "."), n.part);
        return add_stack(l, base, t, c->where, rows, columns);
    }
    return add_fused(l, &n, c->where, c->field->flags & FIELD_INTERLEAVED, rows, columns);
}

gm_status fields_add_experts(gm_loader *l, const field_cursor *c) {
    GM_TRY(add_experts(l, c));
    return c->field->flags & FIELD_BIASED ? fields_need_bias(l, c->where) : GM_OK;
}
