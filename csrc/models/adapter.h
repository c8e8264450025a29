/* adapter.h - adapters of a loaded model: low-rank terms of its linear layers, which rows of a pass use or do not use.
 *  (1) An adapter does not change and is reference-counted: what runs with it keeps it alive after it is unloaded.
 *  (2) It is known by its content, not by its name: what was computed with it goes on with an equal one. */
#ifndef GOMLX_MODELS_ADAPTER_H
#define GOMLX_MODELS_ADAPTER_H
#include "models/model.h"

typedef struct gm_adapter gm_adapter;

/* Adapters of one model with weights, which add up, in an order of their content. Reference-counted; NULL is none. */
typedef struct adapter_mix adapter_mix;
/* Of loaded adapters. n 0: *out is NULL. GM_EVALUE names those that there are. */
gm_status adapter_mix_new(gm_model *m, const gm_adapter_share *shares, size_t n, adapter_mix **out);
/* Of loaded adapters with this content, whatever they are called; GM_ESTATE where one is not loaded. */
gm_status adapter_mix_like(gm_model *m, const gm_adapter_use *uses, size_t n, adapter_mix **out);
adapter_mix *adapter_mix_retain(adapter_mix *mix); /* NULL is fine, as for all of these */
void adapter_mix_release(adapter_mix *mix);
bool adapter_mix_same(const adapter_mix *a, const adapter_mix *b); /* the same adapters, not equal ones */
/* What it is made of, for what outlives it: n of them. */
size_t adapter_mix_uses(const adapter_mix *mix, gm_adapter_use *out); /* out NULL: only how many */
bool adapter_uses_equal(const gm_adapter_use *a, size_t n_a, const gm_adapter_use *b, size_t n_b);
/* "adapter 'a'", "adapters 'a' times 0.7 and 'b' times 0.3", "no adapter": for messages. */
void adapter_uses_text(const gm_adapter_use *uses, size_t n, char out[256]);

/* The rows [first, first + rows) of a pass use a mix. */
typedef struct {
    adapter_mix *mix;
    int64_t first, rows;
} adapter_run;
/* The model with the terms that runs of a pass use, for its forward pass. */
typedef struct {
    gm_model *model;
    low_rank_term *terms;
} adapted_model;
gm_status adapted_open(gm_model *m, const adapter_run *runs, size_t n, adapted_model *out);
void adapted_close(adapted_model *a);

/* What a model keeps of its adapters: with it from loading on. */
gm_status adapters_new(struct model_adapters **out);
void adapters_free(struct model_adapters *adapters); /* NULL is fine */

/* ---- also of training ---- */
/* The number of the linear layer that is called so, without ".weight", among the model's weights; a failure where a
 * term does not fit it. */
gm_status adapter_find(const gm_model *m, const gm_adapter_term *term, int64_t *weight);
/* The term, which was found to fit, in the order in which its layer has heads. */
gm_status adapter_as_model(gm_scope *s, const gm_model *m, const gm_adapter_term *term, gm_adapter_term *out);
/* Whether a term's magnitude, squares and their sum are of its layer's rows. */
gm_status adapter_check_magnitude(const gm_adapter_term *term);
/* That layer of a copy of the model. */
gm_linear *adapter_layer(gm_model *copy, int64_t weight);
#endif
