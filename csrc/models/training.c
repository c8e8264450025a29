/* training.c - rows of sequences through a model as ops that have gradients, and the loss of its head.
 *  (1) Weights are frozen: gradients go back to the terms of adapters, through the matrices as they are packed.
 *  (2) A sequence's rows and their gradients have the same bits whatever else is in the pass.
 *  (3) Logits exist for a slice of the rows at a time, together with what their loss gives back. */
#include <string.h>
#include "base/memory.h"
#include "models/block.h"
#include "models/load.h"
#include "ops/ops.h"

/* The layer of the copy that is called this, without ".weight"; NULL: there is none. */
static gm_linear *find_linear(gm_model *copy, const char *name) {
    const gm_model *m = copy->base;
    const size_t length = strlen(name);
    for (int64_t i = 0; i < m->n_weights; i++) {
        const gm_named_weight *w = &m->weights[i];
        if (!w->linear || strncmp(w->name, name, length) != 0 || strcmp(w->name + length, ".weight") != 0)
            continue;
        const char *at = (const char *)w->linear;
        const size_t size = (size_t)m->config.n_layers * m->arch->layer_size;
        if (at >= m->layers && at < m->layers + size)
            return (gm_linear *)(void *)(copy->layers + (at - m->layers));
        if (m->globals && at >= m->globals && at < m->globals + m->arch->globals_size)
            return (gm_linear *)(void *)(copy->globals + (at - m->globals));
        return w->linear == &m->head ? &copy->head : NULL;
    }
    return NULL;
}

/* Whether rows of the layer are looked up by tokens, where no terms are added. */
static bool is_embedding(const gm_model *copy, const gm_linear *l) {
    if (l == &copy->embedding || l == &copy->head)
        return true;
    for (const gm_weight_field *f = copy->arch->globals; f && f->name; f++)
        if (f->flags & FIELD_EMBEDDING && (const char *)l == copy->globals + f->offset)
            return true;
    return false;
}

static gm_status check_term(const gm_model *copy, const gm_adapter_term *t, const gm_linear *l) {
    const gm_array *a = t->a, *b = t->b;
    if (!l)
        return gm_fail(GM_EVALUE, "adapter: the model has no linear layer named %s", t->layer);
    const gm_array *w = l->weight;
    if (w->ndim != 2)
        return gm_fail(GM_EUNSUPPORTED, "adapter: %s is a stack of experts, which has no low-rank terms", t->layer);
    if (is_embedding(copy, l))
        return gm_fail(GM_EUNSUPPORTED,
                       "adapter: %s is an embedding or the head, expected a linear layer of the "
                       "decoder",
                       t->layer);
    if (a->ndim == 2 && b->ndim == 2 && dtype_is_float((gm_dtype)a->dtype) && dtype_is_float((gm_dtype)b->dtype) &&
        a->shape[0] == b->shape[1] && a->shape[1] == w->shape[1] && b->shape[0] == w->shape[0])
        return GM_OK;
    char ta[128], tb[128];
    array_text(a, ta);
    array_text(b, tb);
    return gm_fail(
        GM_ESHAPE, "adapter: a is %s and b %s for %s of [%lld, %lld], expected [rank, %lld] and [%lld, rank]", ta, tb,
        t->layer, (long long)w->shape[0], (long long)w->shape[1], (long long)w->shape[1], (long long)w->shape[0]);
}

/* The terms to their layers, those of a layer side by side in `memory`, which is large enough for all. */
static gm_status place_terms(gm_model *copy, const gm_training_batch *b, gm_low_rank *memory) {
    for (size_t i = 0; i < b->n_terms; i++) {
        gm_linear *l = find_linear(copy, b->terms[i].layer);
        GM_TRY(check_term(copy, &b->terms[i], l));
        l->n_terms++;
    }
    for (size_t i = 0, used = 0; i < b->n_terms; i++) {
        gm_linear *l = find_linear(copy, b->terms[i].layer);
        if (!l->terms) {
            l->terms = memory + used;
            used += (size_t)l->n_terms;
            l->n_terms = 0;
        }
        memory[l->terms - memory + l->n_terms++] = (gm_low_rank){b->terms[i].a, b->terms[i].b, b->terms[i].scale};
    }
    return GM_OK;
}

static gm_array *integers(gm_scope *s, const int32_t *values, int64_t n) {
    gm_array *a = array_new(s, GM_INT32, 1, &n);
    if (a && n)
        memcpy(array_ptr(a), values, (size_t)n * sizeof *values);
    return a;
}

static gm_status check_batch(const gm_model *m, const gm_training_batch *b, int64_t *rows) {
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
    for (int64_t i = 0; i < m->config.n_layers; i++)
        if (!(m->config.layers[i].has & HAS_ATTENTION) || m->config.layers[i].has & HAS_EXPERTS)
            return gm_fail(GM_EUNSUPPORTED,
                           "training: layer %lld of this model is %s, through which no gradient goes yet", (long long)i,
                           m->config.layers[i].has & HAS_EXPERTS ? "a mixture of experts" : "recurrent");
    return GM_OK;
}

/* Positions from 0 in each sequence, and where each begins. */
static void number_rows(const gm_training_batch *b, int32_t *positions, int32_t *starts) {
    int32_t at = 0;
    for (int64_t i = 0; i < b->n_sequences; i++) {
        starts[i] = at;
        for (int32_t j = 0; j < b->lengths[i]; j++)
            positions[at++] = j;
    }
    starts[b->n_sequences] = at;
}

static gm_array *forward(gm_scope *s, const gm_model *copy, const gm_training_batch *b, int64_t rows) {
    const int64_t layers = copy->config.n_layers;
    int32_t *positions = memory_array((size_t)rows + (size_t)b->n_sequences + 1, sizeof *positions);
    gm_array **kept = memory_zeroed((size_t)layers * 2 * sizeof *kept), *x = NULL;
    if (positions && kept) {
        number_rows(b, positions, positions + rows);
        gm_training_rows training = {.starts = integers(s, positions + rows, b->n_sequences + 1),
                                     .keys = kept,
                                     .values = kept + layers,
                                     .checkpoints = b->checkpoints};
        const gm_batch batch = {
            .training = &training, .tokens = integers(s, b->tokens, rows), .positions = integers(s, positions, rows)};
        if (training.starts && batch.tokens && batch.positions)
            x = copy->arch->forward(s, copy, &batch, true);
        if (x)
            x = gm_rms_norm(s, x, copy->norm, (float)copy->config.eps);
        if (x && b->checkpoints)
            x = gm_recompute(s, x, true);
    }
    memory_free(positions);
    memory_free(kept);
    return x;
}

gm_array *gm_model_rows(gm_scope *s, gm_model *m, const gm_training_batch *b) {
    int64_t rows;
    if (check_batch(m, b, &rows) != GM_OK)
        return NULL;
    gm_model *copy = model_copy(m);
    gm_low_rank *terms = copy ? memory_zeroed((b->n_terms + 1) * sizeof *terms) : NULL;
    gm_array *x = NULL;
    if (terms) {
        if (!b->int8)
            model_use_float32(copy);
        if (place_terms(copy, b, terms) == GM_OK)
            x = forward(s, copy, b, rows);
    }
    memory_free(terms);
    if (copy)
        model_copy_free(copy);
    return x;
}

/* ---- the loss ---- */
#define LOGIT_BYTES ((int64_t)32 << 20) /* of a slice, as far as its rows are enough; their gradient is as large */
#define LEAST_ROWS 64
#define MOST_ROWS 256

/* Cross entropy of rows [first, end) of x, float32 [rows]; with gradient, what it gives back for x to *dx. */
static gm_array *slice_loss(gm_scope *s, gm_model *m, gm_array *x, gm_array *targets, int64_t first, int64_t end,
                            gm_array **dx) {
    const int64_t n = end - first, vocab = m->config.vocab;
    gm_array *rows = gm_slice(s, x, (int64_t[]){first, 0}, (int64_t[]){end, x->shape[1]}, (int64_t[]){1, 1});
    gm_array *target = gm_reshape(s, gm_slice(s, targets, &first, &end, (int64_t[]){1}), 2, (int64_t[]){n, 1});
    gm_array *logits = gm_packed_matmul(s, rows, m->head.weight, m->head.bias ? m->head.bias : GM_NONE, GM_NONE);
    if (m->config.final_softcap > 0)
        logits = gm_softcap(s, logits, (float)m->config.final_softcap);
    gm_array *sum = gm_logsumexp(s, logits, 1, (int[]){-1}, true);
    gm_array *loss = gm_reshape(s, gm_subtract(s, sum, gm_take_along_axis(s, logits, target, -1)), 1, &n);
    if (!dx)
        return loss;
    gm_array *ids = gm_reshape(s, gm_arange(s, 0, (double)vocab, 1, GM_INT32), 2, (int64_t[]){1, vocab});
    gm_array *hit = gm_astype(s, gm_equal(s, ids, target), GM_FLOAT32);
    gm_array *d = gm_subtract(s, gm_exp(s, gm_subtract(s, logits, sum)), hit);
    if (m->config.final_softcap > 0) {
        gm_array *share = gm_multiply(s, logits, scalar_array(s, 1 / m->config.final_softcap, GM_FLOAT32));
        d = gm_multiply(s, d, gm_subtract(s, scalar_array(s, 1, GM_FLOAT32), gm_square(s, share)));
    }
    *dx = gm_packed_matmul_columns(s, d, m->head.weight);
    /* After it, so that the logits of a slice are gone before the next one's are made. */
    gm_array *both[2] = {loss, *dx}, *after = NULL;
    return loss && *dx && gm_depends(s, both, 2, 1, &after) ? after : NULL;
}

gm_array *gm_model_loss(gm_scope *s, gm_model *m, gm_array *x, const int32_t *targets, int64_t n, bool gradient) {
    if (!x)
        return NULL;
    if (n < 1)
        return gm_fail(GM_EVALUE, "loss: no targets, expected one at least"), NULL;
    if (x->ndim != 2 || x->dtype != GM_FLOAT32 || x->shape[0] != n || x->shape[1] != m->config.hidden) {
        char text[128];
        array_text(x, text);
        return gm_fail(GM_ESHAPE, "loss: rows are %s for %lld targets, expected float32(%lld,%lld)", text, (long long)n,
                       (long long)n, (long long)m->config.hidden),
               NULL;
    }
    for (int64_t i = 0; i < n; i++)
        if (targets[i] < 0 || targets[i] >= m->config.vocab)
            return gm_fail(GM_EVALUE, "loss: target %d is outside the vocabulary of %lld", targets[i],
                           (long long)m->config.vocab),
                   NULL;
    int64_t share = LOGIT_BYTES / 4 / m->config.vocab;
    share = share < LEAST_ROWS ? LEAST_ROWS : share > MOST_ROWS ? MOST_ROWS : share;
    const int64_t slices = (n + share - 1) / share;
    gm_array *ids = integers(s, targets, n), **losses = memory_array((size_t)slices * 2 + 1, sizeof *losses),
             *all = NULL;
    for (int64_t i = 0; ids && losses && i < slices; i++) {
        const int64_t end = (i + 1) * share < n ? (i + 1) * share : n;
        losses[i] = slice_loss(s, m, x, ids, i * share, end, gradient ? &losses[slices + i] : NULL);
    }
    if (ids && losses && slices)
        all = gm_concatenate(s, losses, (int)slices, 0);
    if (all && gradient)
        all = gm_with_gradient(s, all, x, gm_concatenate(s, losses + slices, (int)slices, 0));
    memory_free(losses);
    return all;
}
