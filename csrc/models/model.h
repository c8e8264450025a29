/* model.h - a model: its config, its weights as tables of fields, and its forward pass as ops.
 *  (1) A model does not change once it is loaded; any number of threads may read it.
 *  (2) What an architecture has is data: one gm_config, and a table of layer fields that loading, freeing and listing
 *      walk. */
#ifndef GOMLX_MODELS_MODEL_H
#define GOMLX_MODELS_MODEL_H
#include "io/checkpoint.h"
#include "nn/cache.h"
#include "nn/linear.h"
#include "nn/rope.h"

/* The rows of one forward pass: parts of sequences one after another. All arrays are evaluated. */
typedef struct {
    gm_array *tokens;            /* int32 [n] */
    gm_array *positions;         /* int32 [n] */
    gm_array *rows;              /* int32 [2n + 3]: sequence and position of each row, and more (ops.def, cached_attention) */
    gm_array *wanted;            /* rows whose logits are asked for [m], or NULL: all */
    gm_array *tables;            /* int64 [slots, 2, n_sequences]: addresses (nn/cache.h), other ones in each run */
    const int32_t *spans;        /* rows of each sequence */
    int n_sequences;
} gm_batch;

#define GM_MAX_BATCH 1024        /* sequences in one forward pass */

typedef struct {                 /* what every decoder has */
    int64_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, mlp, context, window;
    double eps;
    int tied;                    /* the head is the embedding; -1: so when the checkpoint has no head */
    rope_config rope;
} gm_config;

typedef enum { FIELD_LINEAR, FIELD_NORM } gm_weight_kind;
/* One weight of a layer: where it goes and its names in the containers; gm_architecture.shape has its shape. */
typedef struct {
    gm_weight_kind kind;
    size_t offset;
    const char *name, *gguf;     /* "self_attn.q_proj", "attn_q" */
    bool permuted;               /* in GGUF files of arch llama the rows of each head are interleaved */
} gm_weight_field;

typedef struct gm_architecture gm_architecture;
struct gm_model {
    _Atomic int32_t refs;
    const gm_architecture *arch;
    gm_config config;
    gm_linear embedding;         /* weight only */
    gm_linear head;              /* the embedding's weight when tied */
    gm_array *norm;
    gm_array *inv_freq;
    float rope_factor;
    char *layers;                /* n_layers structs of arch->layer_size */
    int threads;
    cache_layout layout;         /* its slots are memory of the model */
    bool int8;
    int64_t weight_bytes;
    char *info;                  /* JSON object */
};

struct gm_architecture {
    const char *name;            /* "llama" */
    const char *gguf;            /* general.architecture */
    const char *const *types;    /* model_type values of config.json, NULL-terminated */
    int64_t window;              /* sliding_window when config.json has no such key; 0: the key means nothing here */
    size_t layer_size;
    const gm_weight_field *fields;   /* ends with name NULL */
    /* The rows and columns a field must have. */
    void (*shape)(const gm_config *c, const gm_weight_field *field, int64_t *rows, int64_t *columns);
    /* float32 logits [wanted, vocab]; with hidden: the last layer's output instead, for passes that only fill
     * caches. */
    gm_array *(*forward)(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden);
};

#define MODEL(name) extern const gm_architecture name##_architecture;
#include "models.def"
#undef MODEL
/* By config.json's model_type or GGUF's general.architecture; NULL when it is not supported. */
const gm_architecture *architecture_find(const char *model_type, const char *gguf);
/* "llama, mistral" for messages */
void architecture_names(char *out, size_t size, bool gguf);
#endif
