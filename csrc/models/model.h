/* model.h - a model: its config, its weights as tables of fields, and its forward pass as ops.
 *  (1) A model does not change once it is loaded; any number of threads may read it. Only its matrices are packed
 * later, under the run lock (model_pack). (2) What an architecture has is data: one gm_config with a row for each
 * layer, and tables of fields with their names, sizes and the layers that have them, which loading, freeing and listing
 * walk. */
#ifndef GOMLX_MODELS_MODEL_H
#define GOMLX_MODELS_MODEL_H
#include <stddef.h>
#include "io/checkpoint.h"
#include "models/taps.h"
#include "nn/cache.h"
#include "nn/linear.h"
#include "nn/rope.h"
#include "ops/layers/batch_state.h"

/* What a pass for training has in place of caches. */
typedef struct {
    gm_array *starts;          /* int32 [sequences + 1]: the first row of each, then how many rows there are */
    gm_array **keys, **values; /* [n_layers]: of layers whose keys a later one reads, rotated */
    bool checkpoints;          /* backwards, each layer is computed again from its input */
    bool rounded;              /* attention's products are, as those of linear layers */
} gm_training_rows;

/* What a forward pass is recorded for. */
typedef struct gm_batch {
    const gm_batch_state *state; /* the caches of its rows, or NULL: for training */
    gm_training_rows *training;
    gm_array *tokens, *positions; /* int32 [n] */
    gm_array *logit_rows;         /* rows that need logits: int32 [m], evaluated; NULL: all */
    gm_taps *taps;                /* activations that are read and edited, or NULL */
    /* Of a model of which a device has the last layers alone: the same rows as these find them, else NULL. */
    const struct gm_batch *there;
} gm_batch;

#define GM_MAX_BATCH 1024 /* sequences in one forward pass */
/* Rows of one forward pass of a decoder, at most; of one on a device they share what is unpacked of the weights. */
#define PASS_ROWS 512
#define DEVICE_PASS_ROWS 4096

/* ---- config ---- */
typedef enum { LAYER_FULL, LAYER_SLIDING, LAYER_LINEAR } gm_layer_kind;
/* What a layer has; a field of a table is in the layers that have all that it requires. */
enum {
    HAS_ATTENTION = 1, /* softmax attention */
    HAS_KV = 2,        /* keys and values of its own */
    HAS_V = 4,         /* a value projection: else the keys are the values */
    HAS_LINEAR = 8,    /* a recurrent state instead of attention */
    HAS_MLP = 16,
    HAS_EXPERTS = 32,
    HAS_SHARED_EXPERT = 64,
    HAS_PER_LAYER_INPUT = 128,
};
typedef struct {
    gm_layer_kind kind;
    uint32_t has;
    int64_t n_heads, n_kv_heads, head_dim, mlp, window;
    int64_t state_heads, state_key, state_value; /* of a recurrent state: heads of matrices, and their sizes */
    int64_t conv_channels, conv_kernel;          /* of the short convolution before it */
    int source; /* the layer whose keys and values it reads: itself, or an earlier one */
    int slot;   /* of the cache */
    int device; /* where its weights and its slot are, and where it computes */
} gm_layer_config;

enum { MAX_HEAD_DIM = 1024 };
enum { ROPE_FULL, ROPE_SLIDING, GM_ROPES }; /* rotary embeddings by the kind of layer */

/* What all architectures have, or several of them. */
typedef struct {
    int64_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, mlp, context, window;
    double eps;
    int tied;             /* the head is the embedding; -1: so when the checkpoint has no head */
    bool one_plus_weight; /* norms multiply by 1 + w */
    rope_config rope[GM_ROPES];
    double embedding_scale, attention_scale, attention_softcap, final_softcap; /* softcaps 0: none */
    int64_t n_experts, n_experts_used, expert_mlp, shared_mlp;
    bool normalise_experts;  /* weights of the experts used add up to 1 */
    bool unbiased;           /* attention has no biases although its fields are FIELD_BIASED */
    int64_t n_mtp_layers;    /* multi-token-prediction layers after the decoder's; not loaded */
    gm_layer_config *layers; /* n_layers */
    int n_slots;
    void *own; /* what this architecture alone has: a struct of its file (arch->config_size) */
} gm_config;

/* ---- fields ---- */
typedef enum {
    FIELD_LINEAR,  /* gm_linear; a bias is taken where the checkpoint has one */
    FIELD_VECTOR,  /* gm_array *: float32 [rows] */
    FIELD_MATRIX,  /* gm_array *: float32 [rows, columns] */
    FIELD_EXPERTS, /* gm_linear: n_experts matrices, see nn/moe.h */
} gm_weight_kind;
enum {
    FIELD_PERMUTED = 1, /* in GGUF files of arch llama the rows of each head are interleaved */
    FIELD_OPTIONAL = 2,
    FIELD_ONE_PLUS_WEIGHT = 4,  /* a norm that multiplies by 1 + w; GGUF holds 1 + w */
    FIELD_NEGATIVE_EXP = 8,     /* safetensors hold the log of its negative; GGUF holds the value */
    FIELD_EMBEDDING = 128,      /* of a linear layer: its rows are looked up by tokens */
    FIELD_PICKED = 64,          /* its rows are stored in larger tensors: arch->pick_rows */
    FIELD_GGUF_OPTIONAL = 2048, /* GGUF does not say which layers have it */
    FIELD_BIASED = 4096,        /* the bias must be there; of attention, unless the config says that there is none */
    FIELD_INTERLEAVED = 1024,   /* of experts: gate and up row by row, the fused dense matrix with its inputs as rows */
    FIELD_FUSED = 8192,         /* of experts: transformers writes the stack as one, gate over up */
    FIELD_GGUF_FUSED = 16384,   /* ... and so does llama.cpp */
};
typedef enum {
    DIM_ONE,
    DIM_HIDDEN,
    DIM_VOCAB,
    DIM_QUERIES,
    DIM_GATED_QUERIES, /* of each head its query, then its gate */
    DIM_KEYS,
    DIM_HEAD,
    DIM_HEADS,
    DIM_MLP,
    DIM_EXPERTS,
    DIM_EXPERT_MLP,
    DIM_SHARED_MLP,
    DIM_CHANNELS,
    DIM_KERNEL,
    DIM_VALUES,
    DIM_VALUE_HEADS,
    DIM_VALUE_HEAD,
    DIM_OWN, /* OWN_DIM */
} gm_dim;
/* An int64_t of the architecture's own config. */
#define OWN_DIM(type, member) (DIM_OWN + (int)offsetof(type, member))

/* One weight: where it goes, its names in the containers (of linear layers and experts without .weight), its size. */
typedef struct {
    gm_weight_kind kind;
    size_t offset;
    const char *name, *gguf; /* "self_attn.q_proj", "attn_q" */
    int rows, columns;       /* a gm_dim, or an OWN_DIM */
    uint32_t when;           /* HAS_...: what a layer must have */
    uint32_t flags;          /* FIELD_... */
} gm_weight_field;

/* Where a loaded weight is and what it is called: "model.layers.3.mlp.up_proj.weight". */
typedef struct {
    char *name;
    gm_array **array;  /* the vector, matrix or bias; NULL: */
    gm_linear *linear; /* ... the weight of this */
    int64_t count;     /* numbers */
} gm_named_weight;

typedef struct gm_architecture gm_architecture;
typedef struct gm_waiting gm_waiting;
struct gm_model {
    _Atomic int32_t refs;
    const gm_architecture *arch;
    gm_config config;
    gm_linear embedding; /* weight only */
    gm_linear head;      /* the embedding's weight when tied */
    gm_array *norm;
    gm_array *inv_freq[GM_ROPES];
    float rope_factor[GM_ROPES];
    char *layers;  /* n_layers structs of arch->layer_size */
    char *globals; /* a struct of arch->globals_size, or NULL */
    gm_named_weight *weights;
    int64_t n_weights;
    int device;       /* of its last layers, the final norm and the head */
    int first_device; /* of the embedding and the first layers: the same, or the processor */
    int threads;
    cache_layout layout; /* its slots are memory of the model */
    gm_context_policy context_policy;
    bool int8, bf16; /* some layer multiplies such activations */
    bool quantised;  /* some layer's weights are */
    bool rounds; /* on a device: products of prompts' rows, of 16-bit and quantised weights, round both to 16 bits */
    int64_t weight_bytes;
    uint64_t fingerprint; /* of its weights' names, shapes and some of their bytes, and of its RoPE parameters */
    char *info;           /* JSON object */
    gm_waiting *waiting;  /* what packs its matrices, or NULL: waiting.c */
    struct model_adapters *adapters; /* those that are loaded; of copies the model's own: adapter.c */
    gm_model *base;                  /* NULL, or the model whose weights this one computes with exactly: exact.c */
};

/* Whether the first layers are on the processor and the last ones on a device. */
static inline bool model_is_shared(const gm_model *m) { return m->first_device != m->device; }
/* Where a layer is; -1: what comes before them all. */
static inline int model_device_of(const gm_model *m, int64_t layer) {
    return layer < 0 ? m->first_device : m->config.layers[layer].device;
}
static inline int64_t pass_rows_of(const gm_model *m) { return m->first_device ? DEVICE_PASS_ROWS : PASS_ROWS; }

/* Some rows of a tensor: row r of these is row r / block * period + offset + r % block of it. */
typedef struct { int64_t rows, block, period, offset; } row_pick;
#define MAX_PICKS 3

/* From `first` on, an axis of a weight, rows 0 or columns 1, has heads [ratio][groups] where checkpoints for
 * transformers have [groups][ratio]. */
typedef struct {
    int64_t first, groups, ratio;
    int axis;
} head_order;

typedef struct config_source config_source;
struct gm_architecture {
    const char *name;         /* "llama" */
    const char *class_name;   /* of transformers: "LlamaForCausalLM" */
    const char *const *gguf;  /* general.architecture, NULL-terminated */
    const char *const *types; /* model_type of config.json, NULL-terminated; the first is the text model's own */
    const char *written_as;   /* general.architecture of files that conversions write; NULL: gguf[0] */
    const char *chat; /* NULL, or a format of gomlx/_generation/chat_formats.py that no token of the vocabulary tells */
    size_t layer_size, globals_size, config_size;
    const gm_weight_field *fields, *globals; /* end with name NULL; globals may be NULL */
    /* Reads what this architecture has, over the class defaults that it sets first: config.h. */
    gm_status (*configure)(const config_source *s, gm_config *c);
    /* float32 logits [logit_rows, vocab]; with hidden: the last layer's output instead, for passes that only fill
     * caches. */
    gm_array *(*forward)(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden);
    /* Of a FIELD_PICKED field that was found under this name: which of the tensor's rows it is, and how many the tensor
     * has, *all. Returns the number of picks; 0: all rows as they are. NULL where no field is FIELD_PICKED. */
    int (*pick_rows)(const gm_config *c, const gm_weight_field *f, const char *name, int64_t rows, int64_t *all,
                     row_pick picks[MAX_PICKS]);
    /* Whether heads of a weight lie in another order than in the model's checkpoints for transformers, and in which.
     * weight: its name, ".weight" or not. NULL: of none. */
    bool (*order)(const gm_config *c, const char *weight, head_order *out);
    /* Columns of float32 that a row holds inside of a layer at its peak, for estimates: from what the halves of the MLP
     * and the mixture of experts (0: none) hold. NULL: the mixture's, else the MLP's. */
    double (*inside)(const gm_config *c, double mlp, double mixture);
};

#define MODEL(name) extern const gm_architecture name##_architecture;
#include "models.def"
#undef MODEL
/* By config.json's model_type or GGUF's general.architecture; NULL when it is not supported. */
const gm_architecture *architecture_find(const char *model_type, const char *gguf);
/* "llama, mistral" for messages */
void architecture_names(char *out, size_t size, bool gguf);
/* The same model with float32 activations and a float32 cache, over the same weights, which it borrows: it keeps m
 * alive. NULL: no memory. gm_model_release frees it. */
gm_model *model_exact(gm_model *m);
void model_exact_free(gm_model *exact); /* by gm_model_release alone */
/* Layers that can be changed over the same weights: a model for one forward pass, which it must outlive. NULL: no
 * memory. */
gm_model *model_copy(gm_model *m);
void model_copy_free(gm_model *copy);
void *model_copy_member(gm_model *copy, const void *member); /* the copy's own of a layer, or of the model itself */
void model_use_float32(gm_model *copy);                      /* no linear layer rounds what it reads */
void model_use_rounded(gm_model *copy); /* they multiply numbers rounded to bfloat16, but for experts: in float32 */

/* A model is loaded with most of its matrices still in rows, in the mapped files: its first pass packs them piece by
 * piece as it goes, to the same bits, and the second one packs them for good first. All with the run lock held. */
bool model_in_rows(const gm_model *m);
gm_status model_begin_pass(const gm_model *m); /* GM_ESTATE: in rows, and a file was changed since */
bool model_wants_packing(const gm_model *m);   /* in rows, and a pass has begun */
/* GM_OK, GM_AGAIN at the deadline (0: none), or an error; then, as after a cancel, what is packed stays so. continuing:
 * after GM_AGAIN. Otherwise what is under way is another process's, which this one was forked from, and begins again.
 */
gm_status model_pack(const gm_model *m, int64_t deadline_ns, bool continuing);
void model_cancel_packing(const gm_model *m);
int64_t config_dim(const gm_config *c, const gm_layer_config *l, int dim);
#endif
