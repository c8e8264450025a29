/* model.h - models: loading, inspection, training, profiles: a chapter of gomlx.h. */
#ifndef GOMLX_MODEL_H
#define GOMLX_MODEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx/arrays.h"
#include "gomlx/text.h"

/* ---- models (csrc/models, csrc/nn) ---- */
typedef struct gm_model gm_model;
enum { GM_KV_Q8_0 = 100 }; /* entries of the KV cache: 34 bytes for 32 values, int8 times a float16 scale */
/* When a sequence has context_length tokens: its stream ends, or fails with GM_EVALUE, or goes on while every layer
 * sees the last context_length tokens at most. */
typedef enum { GM_CONTEXT_STOP, GM_CONTEXT_ERROR, GM_CONTEXT_ROTATE } gm_context_policy;
typedef struct {
    const char *path;       /* a folder with config.json and safetensors, or a .gguf file (first of split ones) */
    int64_t context_length; /* 0: the model's own */
    /* -1: as in the file; GM_FLOAT32, GM_FLOAT16 or GM_BFLOAT16 for unquantised weights */
    int weight_dtype;
    /* GM_FLOAT32, GM_FLOAT16, GM_BFLOAT16 or GM_KV_Q8_0; -1: GM_FLOAT32 with float32 activations, else GM_FLOAT16 */
    int kv_dtype;
    gm_context_policy context_policy;
    /* of products, 0: float32; 1: int8 with quantised weights but mxfp8; 2: rounded to bfloat16 with weights in
     * bfloat16; -1: 1, and 2 where the processor multiplies bfloat16. A GPU has no 1, and has 2 */
    int activations;
    int threads; /* 0: gm_default_threads() */
    int device;  /* where it is: 0 the processor, 1 + i GPU i */
    /* So many of its first layers are on the processor nevertheless, and so is the embedding; less than it has. Layers
     * that read another one's keys have to be where that is. */
    int host_layers;
} gm_load_options;
/* Loading takes many calls: open, then step until it is not GM_AGAIN, then finish (or close at any time to give up). */
typedef struct gm_loader gm_loader;
gm_status gm_loader_open(const gm_load_options *options, gm_loader **out);
gm_status gm_loader_step(gm_loader *loader, int slice_ms,
                         double *progress); /* GM_OK when all weights are in memory, or mapped */
gm_status gm_loader_finish(gm_loader *loader, gm_model **out);
void gm_loader_close(gm_loader *loader);
/* What loading with these options takes, by the headers of the files alone, as a JSON object (gm_buffer_free): the
 * config's sizes, what each layer is and keeps of a sequence, bytes of the tensors in the files and packed, types of
 * activations and of the cache, and an estimate of a pass's working memory. What the loader would refuse is refused,
 * but a tensor that is missing is left out. */
gm_status gm_describe(const gm_load_options *options, char **json);
/* How caches keep positions, as a JSON object: the positions of a block, those kept before a window, the copies of a
 * recurrent state, the rows of a pass, and the bytes of a value by type. */
gm_status gm_describe_cache(char **json);
/* The architectures, as a JSON list: names, weights and hyperparameters in both containers
 * (csrc/models/architectures.c). */
gm_status gm_architectures(char **json);
/* The formats of weights that the engine multiplies by, as a JSON list: name, values and bytes of a block, GGUF's id of
 * the type where it has one (kernels/quants.def). */
gm_status gm_formats(char **json);
gm_model *gm_model_retain(gm_model *m);
void gm_model_release(gm_model *m);
/* Everything known about the model, as a JSON object (from gm_buffer_free's allocator). */
gm_status gm_model_info(gm_model *m, char **json);
/* A weight by its Hugging Face name ("model.layers.0.self_attn.q_proj.weight") as a lazy float32 array: the values that
 * the kernels multiply by, rows in Hugging Face's order whatever the container. GM_EINDEX when there is none. */
gm_array *gm_model_weight(gm_scope *scope, gm_model *m, const char *name);
/* The name of weight number i, borrowed until the thread's next call; GM_END after the last. */
gm_status gm_model_weight_name(gm_model *m, int64_t i, const char **name);
int64_t gm_model_vocab_size(const gm_model *m);
int64_t gm_model_context_length(const gm_model *m);
int64_t gm_model_hidden_size(const gm_model *m);

/* ---- adapters: low-rank terms of linear layers, for some sequences (csrc/models/adapter.c) ---- */
/* scale * (x @ a.T) @ b.T, added to what a layer gives: a [rank, in], b [out, rank], floats. */
typedef struct {
    const char *layer;
    gm_array *a, *b;
    float scale;
    /* Or NULL. magnitude [out]: the length that each row of matrix and term together is brought to; squares, float32
     * [out]: the squared lengths of the matrix's rows. Sums, in training: the gradients of a, b and magnitude go on
     * from these, float32. */
    gm_array *magnitude, *squares, *sum_a, *sum_b, *sum_magnitude;
} gm_adapter_term; /* layer: "model.layers.0.mlp.up_proj" */
/* Copies the terms, under a name of less than GM_ADAPTER_NAME bytes that no other has. Streams may run meanwhile: they
 * wait no longer than for an evaluation. GM_EVALUE: a layer that the model has not; GM_ESHAPE: one of another shape;
 * GM_EUNSUPPORTED: experts, embeddings, the head. */
#define GM_ADAPTER_NAME 64
gm_status gm_model_load_adapter(gm_model *m, const char *name, const gm_adapter_term *terms, size_t n);
/* What runs with it keeps it until its end. GM_EVALUE names those that are loaded. */
gm_status gm_model_unload_adapter(gm_model *m, const char *name);
/* An adapter in use: hash says what it contains (layers, scales, numbers), whatever it is called. */
typedef struct {
    char name[GM_ADAPTER_NAME];
    uint64_t hash;
    float weight;
} gm_adapter_use;
typedef struct {
    gm_adapter_use use;
    int64_t terms, parameters, bytes, least_rank, most_rank;
} gm_adapter_info;
gm_status gm_model_adapter(gm_model *m, size_t i, gm_adapter_info *out); /* GM_END: there are no more than i */
/* Part of a sum of adapters, times a weight. None at all: the model as it is. */
typedef struct {
    const char *name;
    float weight;
} gm_adapter_share;

/* ---- inspection (csrc/models/taps.h, csrc/run/inspect.c) ----
 * An activation is what a forward pass computes at a point of a layer: csrc/models/taps.def. A model numbers its
 * activations; some numbers are unused. */
typedef struct {
    char name[64]; /* "layers.3.q" */
    int ndim;
    int64_t shape[3];
    gm_dtype dtype; /* GM_FLOAT32, of router_ids GM_INT32 */
    bool editable;
    int source; /* the layer whose keys and values this one reads; -1: it has no attention */
} gm_activation_info;
int64_t gm_model_activations(const gm_model *m);
/* Describes activation i of n tokens; false where the number is unused. */
bool gm_model_activation(const gm_model *m, int64_t i, int64_t n, gm_activation_info *out);
/* A change of an activation at positions [from, to): value is added to it, or replaces it. value: evaluated float32
 * [width], the activation's size for a token, or [to - from, width]. */
typedef struct {
    int64_t activation;
    bool replaces;
    gm_array *value;
    int64_t from, to;
} gm_edit;
/* One forward pass over ids in a fresh sequence, in slices, as loading; then the requested activations. exact: with
 * float32 activations and a float32 cache, whatever the model was loaded with. */
typedef struct {
    const int32_t *ids;
    size_t n_ids;
    const int64_t *activations;
    size_t n_activations;
    const gm_edit *edits;
    size_t n_edits;
    bool exact;
    const gm_adapter_share *adapters;
    size_t n_adapters;
} gm_inspect_request;
typedef struct gm_inspection gm_inspection;
gm_status gm_inspect_begin(gm_model *m, const gm_inspect_request *request, gm_inspection **out);
gm_status gm_inspect_step(gm_inspection *inspection, int slice_ms);
gm_array *gm_inspect_result(gm_scope *scope, const gm_inspection *inspection, size_t i); /* of activations[i], a copy */
void gm_inspect_free(gm_inspection *inspection);                                         /* NULL is fine */
/* The end of the forward pass alone: final norm, head, softcap of a residual stream float32 [n, hidden]; lazy. */
gm_array *gm_model_head(gm_scope *scope, gm_model *m, gm_array *x);

/* ---- training: lazy, with gradients to what is trained (csrc/models/training.c) ---- */
/* A weight that is trained itself: a matrix of a linear layer or its bias, the embedding, a vector of a norm. */
typedef struct {
    const char *name; /* "model.layers.0.mlp.up_proj.weight" */
    gm_array *values; /* floats, in the model's place; of the weight's shape */
    gm_array *sum;    /* its gradient goes on from these, float32; or NULL */
} gm_trained_weight;
typedef struct {
    const int32_t *tokens; /* of all sequences, one after another */
    const int32_t *lengths;
    int64_t n_sequences;
    const int32_t
        *groups;      /* tokens of the sequences that belong together: gradients are summed group by group. NULL: */
    int64_t n_groups; /* each sequence is one */
    const gm_adapter_term *terms;
    size_t n_terms;
    const gm_trained_weight *whole;
    size_t n_whole;
    bool int8;        /* linear layers round what they read as decoders do */
    bool bf16;        /* they, attention and gradients multiply numbers rounded to bfloat16; not beside int8 */
    bool checkpoints; /* backwards, each layer is computed again from its input */
    gm_array *keys;   /* uint32 [n_sequences, 2]: by them terms leave a share of what they read out; or NULL */
    float dropout;
} gm_training_batch;
/* Packs the matrices that still wait in files, so that passes read them packed: GM_AGAIN after about slice_ms, to be
 * called on with the same *held (false at first: whether this call's thread has the engine for itself), or stopped. */
gm_status gm_model_pack(gm_model *m, int slice_ms, bool *held);
void gm_model_stop_packing(gm_model *m, bool *held);
/* The rows after the final norm, float32 [tokens, hidden]. */
gm_array *gm_model_rows(gm_scope *scope, gm_model *m, const gm_training_batch *batch);
typedef struct {
    const int32_t *ids; /* [n], one for each row */
    int64_t n;
    bool gradient; /* the loss is something to differentiate */
    bool int8;     /* the head rounds what it reads as decoders do */
    bool bf16;     /* the head multiplies as rows with bf16 do; not beside int8 */
} gm_row_targets;
/* The cross entropy of each row's logits against its target, float32 [n]. */
gm_array *gm_model_loss(gm_scope *scope, gm_model *m, gm_array *rows, const gm_row_targets *targets);

/* ---- profiles: what forward passes did (csrc/core/queue.c, csrc/run/profile.c) ----
 * Kernel launches are counted and timed by class of work. An op has a class of its own (norms, attention, experts), or
 * that of its weights, or that of what made its last input: what quantises a norm's output counts with the norm. */
typedef enum {
    GM_WORK_OTHER,
    GM_WORK_EMBEDDING,
    GM_WORK_NORM,
    GM_WORK_ATTENTION_PROJECTION,
    GM_WORK_ATTENTION,
    GM_WORK_RECURRENT,
    GM_WORK_ROUTER,
    GM_WORK_EXPERTS,
    GM_WORK_MLP,
    GM_WORK_HEAD,
    GM_WORK_SAMPLING,
    GM_WORK_CLASSES,
} gm_work;
const char *gm_work_name(gm_work work); /* "attention_projection" */
/* pieces: what launches were cut into, for threads to take. barriers: launches that begin only when all before them are
 * done. ns: of the calling thread, thread_ns: of all threads together; waiting is not counted. */
typedef struct { int64_t launches, pieces, barriers, ns, thread_ns; } gm_work_counts;
#define GM_MAX_WEIGHT_TYPES 16
typedef struct {
    int64_t passes, tokens;          /* forward passes, and their rows of this stream (a decoder's: all rows) */
    int64_t pass_ns;                 /* from choosing the rows to the logits */
    int64_t setup_ns;                /* of these, before the first launch: building and recording a new plan and, at the
                                      * second pass, packing the matrices */
    int64_t wait_ns;                 /* of these, waiting for other threads and their evaluations */
    int64_t thread_wait_ns;          /* of all threads together, waiting for one another; not within pass_ns */
    int64_t sample_calls, sample_ns; /* draws from logits */
    gm_work_counts work[GM_WORK_CLASSES];
    /* Bytes of weights read, by type as in gm_model_info, "" after the last. Of experts as many as a pass's pairs may
     * choose: exact for a pass of one row. */
    struct {
        char type[24];
        int64_t bytes;
    } weights[GM_MAX_WEIGHT_TYPES];
    int64_t work_bytes[GM_WORK_CLASSES]; /* the same bytes by class; what is not a matrix counts as norm */
} gm_phase_profile;
typedef struct { gm_phase_profile prefill, decode; } gm_profile;
#endif
