/* config.h - what a model is, read from config.json or from GGUF metadata into one gm_config, and checked.
 * An architecture's configure names each value once for both containers; a container in which a value has no name has
 * NULL for it. A missing value, and null, leaves *out as it was. */
#ifndef GOMLX_MODELS_CONFIG_H
#define GOMLX_MODELS_CONFIG_H
#include "models/model.h"

bool config_is_gguf(const config_source *s);
const char *config_name(const config_source *s); /* the file, for messages */
bool config_has(const config_source *s, const char *key, const char *gguf);
bool config_has_null(const config_source *s, const char *key); /* the key is there, and null */
gm_status config_int(const config_source *s, const char *key, const char *gguf, int64_t *out);
/* For conversions alone, where the engine has no use for it: the integer `key` of config.json is `gguf` there. Of
 * several pairs with one GGUF name the last one counts. usual: the default; gguf may be NULL. */
gm_status config_pair(const config_source *s, const char *key, const char *gguf, double usual);
gm_status config_number(const config_source *s, const char *key, const char *gguf, double *out);
gm_status config_flag(const config_source *s, const char *key, const char *gguf, bool *out);
/* An error when it is missing. */
gm_status config_need(const config_source *s, const char *key, const char *gguf, int64_t *out);
/* hidden_size, num_hidden_layers and so on: what every architecture has, over the defaults in c. Makes c->layers, each
 * with attention (LAYER_FULL, or LAYER_SLIDING when c->window), its own keys and values, and an MLP. */
gm_status config_common(const config_source *s, gm_config *c);
/* The kinds of the layers as layer_types (or GGUF's sliding_window_pattern) lists them; without it every period-th
 * layer is full and the others are `other`; period 0: as they are. */
gm_status config_layer_types(const config_source *s, gm_config *c, int64_t period, gm_layer_kind other);
/* rope_parameters, rope_scaling and rope_theta, or GGUF's rope.*, over what *r holds; type: "full_attention" or
 * "sliding_attention" where they are nested, else NULL. */
gm_status config_rope(const config_source *s, const gm_config *c, const char *type, rope_config *r);
/* The entry of rope_parameters for this type alone: nothing where it is not nested. */
gm_status config_rope_nested(const config_source *s, const gm_config *c, const char *type, rope_config *r);
/* A number; null, which disables it, is 0. */
gm_status config_optional(const config_source *s, const char *key, const char *gguf, double *out);
/* head_dim and num_key_value_heads of single layers in per_layer_config; false in *found: there is none. */
gm_status config_overrides(const config_source *s, gm_config *c, bool *found);
/* num_experts, num_experts_per_tok, moe_intermediate_size; gives HAS_EXPERTS, and takes HAS_MLP from, every layer but
 * those of mlp_only_layers and decoder_sparse_step. */
gm_status config_experts(const config_source *s, gm_config *c);
/* hidden_act is `expected`. */
gm_status config_activation(const config_source *s, const char *expected);
/* An error when tokens see later ones: use_bidirectional_attention is true or "all". */
gm_status config_causal(const config_source *s);
rope_config rope_defaults(double theta);

/* What configure reads, in its order, with the class defaults: from a source that answers nothing. */
typedef enum { VALUE_INTEGER, VALUE_NUMBER, VALUE_OPTIONAL, VALUE_FLAG, VALUE_PAIR } config_value_kind;
typedef struct {
    config_value_kind kind; /* VALUE_OPTIONAL: null is 0 */
    const char *key, *gguf; /* gguf NULL: it has no name there */
    double usual;           /* 0: the class has no default, but for flags and VALUE_OPTIONAL */
} config_value;
typedef struct {
    config_value *values;
    size_t n, capacity;
    int64_t period; /* where layer types are not given, every period-th layer is full, the others slide; 0: none */
    const char *activation; /* hidden_act, or NULL */
    bool one_plus_weight;   /* gm_config's */
} config_listener;
/* The caller frees out->values with memory_free, also after an error. */
gm_status config_listen(const gm_architecture *a, config_listener *out);
bool config_listens(const config_source *s); /* nothing is answered: what depends on an answer is asked too */

/* What the names of the language model's tensors begin with in safetensors: "model", "language_model.model". */
const char *config_prefix(const gm_checkpoint *c);
/* text: the whole config.json; name is used in messages. Old and new spelling (rope_theta and rope_scaling;
 * rope_parameters), text_config of multimodal models. checkpoint, or NULL: tells what a config without model_type is,
 * and how large heads are that have no head_dim.
 * What *out owns is freed by config_clear, also after an error. */
gm_status config_from_json(const char *text, size_t length, const char *name, const gm_checkpoint *checkpoint,
                           const gm_architecture **arch, gm_config *out);
gm_status config_from_gguf(const gguf *g, const gm_architecture **arch, gm_config *out);
void config_clear(gm_config *c);
#endif
