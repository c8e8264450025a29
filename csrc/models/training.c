/* training.c - rows of sequences through a model as ops that have gradients, and the loss of its head.
 *  (1) Weights are frozen but for those that are given as trained: gradients go back to the terms of adapters, through
 *      the matrices as they are packed.
 *  (2) A sequence's rows and their gradients have the same bits whatever else is in the pass.
 *  (3) Logits exist for a slice of the rows at a time, together with what their loss gives back, or, where products
 *      are rounded, for a few of the vocabulary. */
#include <string.h>
#include "base/memory.h"
#include "core/device.h"
#include "models/adapter.h"
#include "models/block.h"
#include "models/head_order.h"
#include "models/load.h"
#include "ops/ops.h"

static gm_status check_sums(const gm_adapter_term *t) {
    const gm_array *of[2] = {t->a, t->b}, *sums[2] = {t->sum_a, t->sum_b};
    for (int i = 0; i < 2; i++) {
        char text[128];
        if (!sums[i])
            continue;
        array_text(sums[i], text);
        if (of[i]->dtype != GM_FLOAT32 || sums[i]->dtype != GM_FLOAT32 || sums[i]->ndim != 2 ||
            sums[i]->shape[0] != of[i]->shape[0] || sums[i]->shape[1] != of[i]->shape[1])
            return gm_fail(GM_ESHAPE,
                           "adapter: the sum of gradients of %s of %s is %s, expected float32(%lld,%lld), and "
                           "the matrix in float32",
                           i ? "b" : "a", t->layer, text, (long long)of[i]->shape[0], (long long)of[i]->shape[1]);
    }
    return GM_OK;
}

/* The length that a term brings rows to, as its layer reads it. */
static gm_status place_magnitude(gm_scope *s, const gm_adapter_term *t, const gm_linear *l, gm_low_rank *to) {
    const int64_t column[2] = {t->b->shape[0], 1};
    if (l->terms[0].magnitude || (t->magnitude && l->n_terms > 1))
        return gm_fail(GM_EUNSUPPORTED, "adapter: %s has a term with magnitudes and another one", t->layer);
    if (!t->magnitude)
        return GM_OK;
    to->squares = t->squares;
    to->magnitude = gm_reshape(s, gm_astype(s, t->magnitude, GM_FLOAT32), 2, column);
    to->sum_magnitude = t->sum_magnitude ? gm_reshape(s, t->sum_magnitude, 2, column) : NULL;
    return to->magnitude && (to->sum_magnitude || !t->sum_magnitude) ? GM_OK : error_code();
}

/* The terms to their layers, those of a layer side by side in `memory`, which is large enough for all. */
static gm_status place_terms(gm_scope *s, gm_model *copy, const gm_training_batch *b, gm_array *starts,
                             gm_array *groups, gm_low_rank *memory) {
    int64_t weight;
    for (size_t i = 0; i < b->n_terms; i++) {
        GM_TRY(adapter_find(copy, &b->terms[i], &weight));
        GM_TRY(check_sums(&b->terms[i]));
        adapter_layer(copy, weight)->n_terms++;
    }
    for (size_t i = 0, used = 0; i < b->n_terms; i++) {
        GM_TRY(adapter_find(copy, &b->terms[i], &weight));
        gm_linear *l = adapter_layer(copy, weight);
        if (!l->terms) {
            l->terms = memory + used;
            used += (size_t)l->n_terms;
            l->n_terms = 0;
        }
        gm_adapter_term as_model, *const t = &as_model;
        if (b->terms[i].magnitude)
            GM_TRY(adapter_check_magnitude(&b->terms[i]));
        GM_TRY(adapter_as_model(s, copy, &b->terms[i], t));
        gm_low_rank *to = &memory[l->terms - memory + l->n_terms++];
        *to = (gm_low_rank){.a = t->a,
                            .b = t->b,
                            .scale = t->scale,
                            .starts = starts,
                            .groups = groups,
                            .sum_a = t->sum_a,
                            .sum_b = t->sum_b,
                            .keys = b->keys,
                            .dropout = b->dropout,
                            .salt = (int)weight};
        GM_TRY(place_magnitude(s, t, l, to));
    }
    return GM_OK;
}

/* ---- weights that are trained themselves ---- */
/* The linear layer that an array is the bias of, or NULL. */
static gm_linear *owner_of(const gm_model *m, gm_array *const *bias) {
    for (field_cursor at = {0}; fields_next(m, &at);)
        if (at.field->kind == FIELD_LINEAR && &((gm_linear *)at.where)->bias == bias)
            return at.where;
    return NULL;
}

/* RMSNorm reads these, and nothing else does. */
static bool is_norm(const gm_named_weight *w) {
    return (*w->array)->ndim == 1 && strstr(w->name, "norm") && !strstr(w->name, ".linear_attn.");
}

static gm_status find_trained(const gm_model *m, const char *name, const gm_named_weight **out) {
    int found = 0;
    for (int64_t i = 0; i < m->n_weights; i++)
        if (strcmp(m->weights[i].name, name) == 0) {
            *out = &m->weights[i];
            found++;
        }
    if (found == 0)
        return gm_fail(GM_EVALUE, "training: the model has no weight named %s", name);
    const gm_linear *l = (*out)->linear;
    const char *why = found > 1                              ? "is one tensor of several layers"
                      : l && l->weight->ndim != 2            ? "is a stack of experts"
                      : l == &m->embedding && m->config.tied ? "is the embedding and the head at once"
                      : l && l == &m->head                   ? "is the head, whose loss is not the engine's then"
                      : l || is_norm(*out) || owner_of(m, (*out)->array) ? NULL
                                                                         : "is neither of a linear layer nor of a norm";
    return why ? gm_fail(GM_EUNSUPPORTED, "training: %s %s, which is not trained whole", name, why) : GM_OK;
}

static bool same_shape(const gm_array *a, const gm_array *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static gm_status check_trained(const gm_trained_weight *t, const gm_array *weight) {
    char given[128], sum[128], want[128];
    if (dtype_is_float((gm_dtype)t->values->dtype) && same_shape(t->values, weight) &&
        (!t->sum || (t->sum->dtype == GM_FLOAT32 && same_shape(t->sum, weight))))
        return GM_OK;
    array_text(t->values, given);
    shape_text(weight->ndim, weight->shape, want);
    if (t->sum)
        array_text(t->sum, sum);
    return gm_fail(GM_ESHAPE, "training: %s is %s, the sum of its gradients %s, expected floats %s", t->name, given,
                   t->sum ? sum : "none", want);
}

/* A bias, or a vector of a norm, to where the copy has it. */
static gm_status place_vector(gm_scope *s, gm_model *copy, const gm_trained_weight *t, gm_array *const *weight,
                              gm_array *groups, int64_t rows, gm_whole *of) {
    gm_array *values = gm_astype(s, t->values, GM_FLOAT32);
    if (!of) {
        gm_array **to = model_copy_member(copy, weight);
        *to = gm_sequence_vector(s, values, rows, groups, t->sum ? t->sum : GM_NONE);
        return *to ? GM_OK : error_code();
    }
    const int64_t column[2] = {t->values->size, 1};
    of->bias = gm_reshape(s, values, 2, column);
    of->sum_bias = t->sum ? gm_reshape(s, t->sum, 2, column) : NULL;
    return of->bias && (of->sum_bias || !t->sum) ? GM_OK : error_code();
}

/* The weights to where the copy has them; of linear layers into `memory`, which is large enough for all. */
static gm_status place_whole(gm_scope *s, gm_model *copy, const gm_training_batch *b, gm_array *groups, int64_t rows,
                             gm_whole *memory) {
    const gm_model *m = copy;
    size_t used = 0;
    while (m->base)
        m = m->base;
    for (size_t i = 0; i < b->n_whole; i++) {
        const gm_trained_weight *t = &b->whole[i];
        const gm_named_weight *w = NULL;
        GM_TRY(find_trained(m, t->name, &w));
        GM_TRY(check_trained(t, w->linear ? w->linear->weight : *w->array));
        const gm_linear *l = w->linear ? w->linear : owner_of(m, w->array);
        gm_linear *to = l ? model_copy_member(copy, l) : NULL;
        if (to && !to->whole)
            to->whole = &memory[used++];
        gm_whole *of = to ? &memory[to->whole - memory] : NULL;
        if (of)
            of->groups = groups;
        if (!w->linear) {
            GM_TRY(place_vector(s, copy, t, w->array, groups, rows, of));
            continue;
        }
        of->weight = gm_astype(s, t->values, GM_FLOAT32);
        of->sum_weight = t->sum;
        for (int axis = 0; axis < 2; axis++) {
            of->weight = heads_as_model(s, m, t->name, of->weight, axis);
            of->sum_weight = heads_as_model(s, m, t->name, of->sum_weight, axis);
        }
        if (!of->weight || (t->sum && !of->sum_weight))
            return error_code();
    }
    for (size_t i = 0; i < used; i++)
        if (!memory[i].weight)
            return gm_fail(GM_EVALUE, "training: a bias is trained whole without its matrix");
    return GM_OK;
}

static gm_array *integers(gm_scope *s, const int32_t *values, int64_t n) {
    gm_array *a = array_new(s, GM_INT32, 1, &n);
    if (a && n)
        memcpy(array_ptr(a), values, (size_t)n * sizeof *values);
    return a;
}

/* Whether products are asked for in one way alone. */
static gm_status check_products(bool int8, bool bf16) {
    return int8 && bf16 ? gm_fail(GM_EVALUE, "training: int8 and bf16 at once, expected one of them at most") : GM_OK;
}

static gm_status check_batch(const gm_model *m, const gm_training_batch *b, int64_t *rows) {
    GM_TRY(check_products(b->int8, b->bf16));
    *rows = 0;
    if (b->n_sequences < 1)
        return gm_fail(GM_EVALUE, "training: no sequences, expected one at least");
    for (int64_t i = 0; i < b->n_sequences; i++) {
        if (b->lengths[i] < 1)
            return gm_fail(GM_EVALUE, "training: sequence %lld has %d tokens, expected one at least", (long long)i,
                           b->lengths[i]);
        *rows += b->lengths[i];
    }
    if (*rows > INT32_MAX / 2)
        return gm_fail(GM_EVALUE, "training: %lld tokens in a pass, expected at most %d", (long long)*rows,
                       INT32_MAX / 2);
    for (int64_t i = 0; i < *rows; i++)
        if (b->tokens[i] < 0 || b->tokens[i] >= m->config.vocab)
            return gm_fail(GM_EVALUE, "training: token id %d is outside the vocabulary of %lld", b->tokens[i],
                           (long long)m->config.vocab);
    return GM_OK;
}

/* Positions from 0 in each sequence, int32 [rows]. */
static gm_array *number_rows(gm_scope *s, const gm_training_batch *b, int64_t rows) {
    gm_array *positions = array_new(s, GM_INT32, 1, &rows);
    if (!positions)
        return NULL;
    int32_t *position = array_ptr(positions), at = 0;
    for (int64_t i = 0; i < b->n_sequences; i++)
        for (int32_t j = 0; j < b->lengths[i]; j++)
            position[at++] = j;
    return positions;
}

/* Where each of n parts of these lengths begins, and then their sum: int32 [n + 1]. */
static gm_array *starts_of(gm_scope *s, const int32_t *lengths, int64_t n) {
    gm_array *starts = array_new(s, GM_INT32, 1, (int64_t[]){n + 1});
    if (!starts)
        return NULL;
    int32_t *start = array_ptr(starts), at = 0;
    for (int64_t i = 0; i < n; at += lengths[i++])
        start[i] = at;
    start[n] = at;
    return starts;
}

/* Groups are whole sequences in order. */
static gm_status check_groups(const gm_training_batch *b) {
    int64_t group = 0, end = b->groups && b->n_groups ? b->groups[0] : 0, at = 0;
    for (int64_t i = 0; b->groups && i < b->n_sequences; i++) {
        at += b->lengths[i];
        if (at == end && ++group < b->n_groups && b->groups[group] > 0)
            end += b->groups[group];
    }
    if (b->groups && (group != b->n_groups || at != end))
        return gm_fail(GM_EVALUE, "training: groups are not the tokens of whole sequences one after another");
    return GM_OK;
}

static gm_array *forward(gm_scope *s, const gm_model *copy, const gm_training_batch *b, gm_array *positions,
                         gm_array *starts) {
    const int64_t layers = copy->config.n_layers;
    gm_array **kept = memory_zeroed((size_t)layers * 2 * sizeof *kept), *x = NULL;
    gm_training_rows training = {
        .starts = starts, .keys = kept, .values = kept + layers, .checkpoints = b->checkpoints, .rounded = b->bf16};
    const gm_batch batch = {
        .training = &training, .tokens = integers(s, b->tokens, positions->shape[0]), .positions = positions};
    if (kept && batch.tokens)
        x = copy->arch->forward(s, copy, &batch, true);
    if (x)
        x = gm_rms_norm(s, x, copy->norm, (float)copy->config.eps);
    if (x)
        x = gm_recompute(s, x, RECOMPUTE_NOTHING);
    memory_free(kept);
    return x;
}

static gm_array *training_rows(gm_scope *s, gm_model *m, const gm_training_batch *b) {
    gm_array *x = NULL;
    int64_t rows;
    if (check_batch(m, b, &rows) != GM_OK || check_groups(b) != GM_OK)
        return NULL;
    gm_array *positions = number_rows(s, b, rows), *starts = starts_of(s, b->lengths, b->n_sequences);
    gm_array *groups = b->groups ? starts_of(s, b->groups, b->n_groups) : starts;
    gm_model *copy = positions && starts && groups ? model_copy(m) : NULL;
    gm_low_rank *terms = copy ? memory_zeroed((b->n_terms + 1) * sizeof *terms) : NULL;
    gm_whole *whole = terms ? memory_zeroed((b->n_whole + 1) * sizeof *whole) : NULL;
    if (whole) {
        if (b->bf16)
            model_use_rounded(copy);
        else if (!b->int8)
            model_use_float32(copy);
        if (place_terms(s, copy, b, starts, groups, terms) == GM_OK &&
            place_whole(s, copy, b, groups, rows, whole) == GM_OK)
            x = forward(s, copy, b, positions, starts);
    }
    memory_free(whole);
    memory_free(terms);
    if (copy)
        model_copy_free(copy);
    return x;
}

static gm_status check_place(const gm_model *m) {
    if (!m->device)
        return GM_OK;
    return gm_fail(GM_EUNSUPPORTED, "training: the model is on gpu %d, which trains none; load it with device=\"cpu\"",
                   m->device - 1);
}

gm_array *gm_model_rows(gm_scope *s, gm_model *m, const gm_training_batch *b) {
    if (check_place(m) != GM_OK)
        return NULL;
    const int before = device_enter(0);
    gm_array *x = training_rows(s, m, b);
    device_enter(before);
    return x;
}

/* ---- the loss ---- */
#define LOGIT_BYTES                                                                                                    \
    ((int64_t)64 << 20) /* of a slice, as far as its rows are enough; their gradient takes their place */
#define LEAST_ROWS 64
#define MOST_ROWS 256

static gm_array *head_logits(gm_scope *s, const gm_model *m, gm_array *rows, const gm_row_targets *t) {
    gm_linear head = m->head;
    gm_activation x = {.x = rows};
    head.int8 &= t->int8;
    head.bf16 &= t->int8;
    gm_array *logits = linear_apply(s, &head, &x, GM_NONE);
    return m->config.final_softcap > 0 ? gm_softcap(s, logits, (float)m->config.final_softcap) : logits;
}

/* Cross entropy of rows [first, end) of x, float32 [rows], against `targets`, those of t; with gradient, what it gives
 * back for x to *dx. */
static gm_array *slice_loss(gm_scope *s, gm_model *m, gm_array *x, const gm_row_targets *t, gm_array *targets,
                            const int64_t range[2], gm_array **dx) {
    gm_array *rows = gm_slice(s, x, (int64_t[]){range[0], 0}, (int64_t[]){range[1], x->shape[1]}, (int64_t[]){1, 1});
    gm_array *target = gm_slice(s, targets, &range[0], &range[1], (int64_t[]){1}), *d = NULL;
    gm_array *logits = rows ? head_logits(s, m, rows, t) : NULL;
    const float softcap = m->config.final_softcap > 0 ? (float)m->config.final_softcap : 0;
    gm_array *loss = logits && target ? gm_row_loss(s, logits, target, softcap, dx ? &d : NULL) : NULL;
    if (!dx || !loss)
        return loss;
    *dx = gm_packed_matmul_columns(s, d, m->head.weight);
    /* Neither without the other, so that the logits of a slice are gone before the next one's are made. */
    gm_array *both[2] = {loss, *dx}, *done[2];
    if (!*dx || !gm_depends(s, both, 2, 2, done))
        return NULL;
    *dx = done[1];
    return done[0];
}

static gm_status check_targets(const gm_model *m, const gm_array *x, const gm_row_targets *targets) {
    const int64_t n = targets->n;
    GM_TRY(check_products(targets->int8, targets->bf16));
    if (n < 1)
        return gm_fail(GM_EVALUE, "loss: no targets, expected one at least");
    if (x->ndim != 2 || x->dtype != GM_FLOAT32 || x->shape[0] != n || x->shape[1] != m->config.hidden) {
        char text[128];
        array_text(x, text);
        return gm_fail(GM_ESHAPE, "loss: rows are %s for %lld targets, expected float32(%lld,%lld)", text, (long long)n,
                       (long long)n, (long long)m->config.hidden);
    }
    for (int64_t i = 0; i < n; i++)
        if (targets->ids[i] < 0 || targets->ids[i] >= m->config.vocab)
            return gm_fail(GM_EVALUE, "loss: target %d is outside the vocabulary of %lld", targets->ids[i],
                           (long long)m->config.vocab);
    return GM_OK;
}

static gm_array *rounded_loss(gm_scope *s, const gm_model *m, gm_array *x, gm_array *ids, bool gradient) {
    const float softcap = m->config.final_softcap > 0 ? (float)m->config.final_softcap : 0;
    const gm_rounded_loss_inputs given = {x, m->head.weight, m->head.bias ? m->head.bias : GM_NONE, ids};
    return gm_rounded_loss(s, &given, softcap, gradient);
}

static gm_array *training_loss(gm_scope *s, gm_model *m, gm_array *x, const gm_row_targets *targets) {
    const int64_t n = targets->n;
    if (!x || check_targets(m, x, targets) != GM_OK)
        return NULL;
    gm_array *ids = integers(s, targets->ids, n);
    if (!ids || targets->bf16)
        return ids ? rounded_loss(s, m, x, ids, targets->gradient) : NULL;
    int64_t share = LOGIT_BYTES / 4 / m->config.vocab;
    share = share < LEAST_ROWS ? LEAST_ROWS : share > MOST_ROWS ? MOST_ROWS : share;
    const int64_t slices = (n + share - 1) / share;
    gm_array **losses = memory_array((size_t)slices * 2 + 1, sizeof *losses);
    gm_array *all = NULL;
    for (int64_t i = 0; losses && i < slices; i++) {
        const int64_t range[2] = {i * share, (i + 1) * share < n ? (i + 1) * share : n};
        losses[i] = slice_loss(s, m, x, targets, ids, range, targets->gradient ? &losses[slices + i] : NULL);
    }
    if (losses)
        all = gm_concatenate(s, losses, (int)slices, 0);
    if (all && targets->gradient)
        all = gm_with_gradient(s, all, x, gm_concatenate(s, losses + slices, (int)slices, 0));
    memory_free(losses);
    return all;
}

gm_array *gm_model_loss(gm_scope *s, gm_model *m, gm_array *x, const gm_row_targets *targets) {
    if (check_place(m) != GM_OK)
        return NULL;
    const int before = device_enter(0);
    x = training_loss(s, m, x, targets);
    device_enter(before);
    return x;
}
