/* load.h - the inside of a loader: what load.c does job by job, what fields.c lists, what info.c tells. */
#ifndef GOMLX_MODELS_LOAD_H
#define GOMLX_MODELS_LOAD_H
#include <cjson/cJSON.h>
#include "core/graph.h"
#include "models/config.h"

typedef enum {
    JOB_VECTOR, /* numbers to float32 */
    JOB_PACK,   /* rows of a dense or block format, or of MLX's arrays, to panels */
} job_kind;

/* One tensor, or a part of one, becomes one array, or a part of one. */
typedef struct {
    const gm_tensor *tensor;
    const gm_tensor *scales, *biases; /* of MLX's arrays, else NULL; biases of mode affine alone */
    int format;                       /* that these are packed in */
    gm_array **to;                    /* where the array goes */
    job_kind kind;
    int64_t rows, columns;     /* of one part; a vector has 1 column */
    int64_t part, parts;       /* index of this job's slice in a stack of `parts`; parts 0: not stacked */
    bool apart;                /* every part has a tensor of its own */
    int64_t first_row;         /* of the tensor: where the part begins */
    row_pick picks[MAX_PICKS]; /* one after another; n_picks 0: all rows as they are */
    int n_picks;
    int64_t permuted_heads; /* > 0: the number of heads, the rows of each of which are interleaved in the file */
    int64_t transposed;     /* > 0: the tensor has columns as its rows, each of this length */
    int64_t layer;          /* whose weight it is, -1: the model's own */
    int device;             /* where that is */
    bool multiplies;        /* a linear layer, which takes the activations of the model; a router's are exact */
    bool waits;             /* the array has these rows until the model's second pass: waiting.c */
    gm_rows in_rows;
} job;

struct gm_loader {
    gm_load_options options;
    char *path;
    gm_checkpoint *checkpoint;
    gm_model *model;
    const char *prefix;   /* of the names in safetensors: "model", "language_model.model" */
    bool one_plus_weight; /* FIELD_ONE_PLUS_WEIGHT norms are stored without the 1 */
    bool describes;       /* nothing is to be loaded: what is missing is left out */
    int64_t layer;        /* of the field being listed */
    bool multiplies;
    job *jobs;
    size_t n_jobs, capacity, at;
    bool *used; /* which tensors of the checkpoint the model is made of */
    gm_queue *queue;
    gm_queue *packs; /* what packs matrices, on the device of the options */
    bool running;    /* a queue has the current job and the run lock is held */
    int32_t *row_map;
    gm_buffer *shared; /* of the matrices at hand, filled up to shared_used: load.c */
    size_t shared_used;
    size_t bytes_total, bytes_done;
    gm_buffer *keeper; /* of the files, for arrays that have their rows in them: waiting.c */
    bool packing;      /* the queue has the current job, which waited, at `offset` of `shared` */
    size_t offset;
    size_t promised; /* bytes that its matrices in rows will take: waiting.c */
};

/* load.c, also for waiting.c and describe.c */
/* Opens the files, reads the config and lists the jobs. *out NULL on failure. */
gm_status loader_open(const gm_load_options *options, bool describes, gm_loader **out);
size_t loader_result_bytes(const gm_loader *l, const job *j); /* of the array that the job is, or is a part of */
int loader_choose_kv(const gm_load_options *o, bool int8, bool bf16,
                     bool quantised); /* the type of the cache's entries */
/* What linear layers on a device may multiply. */
void loader_choose_activations(const gm_load_options *o, int number, bool *int8, bool *bf16);
/* Whether a job of the model's own is of what comes after the layers: the final norm and the head. */
bool loader_is_after_layers(const gm_model *m, const job *j);
int loader_format(const gm_loader *l, const job *j);          /* that the job's matrix is packed in */
size_t loader_result_bytes(const gm_loader *l, const job *j); /* that the job's array takes */
/* Memory for the matrix of a job, next to those of the jobs after it that are packed with it. */
gm_buffer *loader_take_shared(gm_loader *l, const job *j, size_t *offset);
/* Which row of the file each row is, in l->row_map; NULL: all as they are. */
gm_status loader_map_rows(gm_loader *l, const job *j);

/* waiting.c */
bool waiting_can(const gm_loader *l, const job *j);
gm_status waiting_start(gm_loader *l, job *j); /* the job's array has its rows */
gm_status waiting_keep(gm_loader *l);          /* what packs them goes to l->model */
void waiting_free(gm_waiting *w);
void waiting_forget(gm_loader *l); /* what it promised is not taken any more */

/* fields.c: what listing needs, also for experts.c. Names are written to `name`; NULL: there is no such tensor. */
#define NAME_BYTES 192
const gm_tensor *fields_find(const gm_loader *l, char name[NAME_BYTES], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
gm_status fields_list(gm_loader *l);  /* all jobs of the model, checked against the files */
gm_status fields_name(gm_loader *l);  /* m->weights, once everything is loaded */
gm_status fields_adapt(gm_loader *l); /* norms that are stored without their 1, decays as logs */
/* The fields that a model has: first the globals, then layer by layer. Begin with a cursor of zeros. */
typedef struct {
    const gm_weight_field *field;
    int64_t layer; /* -1: a global */
    const gm_layer_config *config;
    void *where;  /* gm_linear, or gm_array * */
    int64_t next; /* of the table at hand */
    bool begun;
} field_cursor;
bool fields_next(const gm_model *m, field_cursor *c);
bool fields_multiplies(const gm_weight_field *f); /* a linear layer, but not a router: its choices are exact */
/* "model.layers.3." or "blk.3."; for globals "model." or nothing. */
void fields_prefix(const gm_loader *l, int64_t layer, char out[NAME_BYTES]);
/* The first of the field's names that is in the files with this ending; name is it without the ending, or the first of
 * all. */
const gm_tensor *fields_find_named(const gm_loader *l, const field_cursor *c, const char *ending,
                                   char name[NAME_BYTES]);
gm_status fields_missing(const gm_loader *l, const char *name);
gm_status fields_refuse_shape(const gm_loader *l, const gm_tensor *t, int ndim, const int64_t *want);
bool fields_has_shape(const gm_tensor *t, int ndim, const int64_t *want);
gm_status fields_add(gm_loader *l, job j);
/* All tensors of a job; the bytes that it reads. */
size_t fields_job_bytes(const job *j);
/* A matrix (experts 0) or a stack of them: a checkpoint has `source` rows of each, of which `rows` are picked. */
typedef struct { int64_t experts, rows, source, columns; } stack_size;
/* The job's tensor, whose shape was checked, with its scales and, for mode affine, biases, packed in its format. */
gm_status fields_add_groups(gm_loader *l, job j, const stack_size *size);
/* The same of the tensors of base, whose shapes tell the format. The job has the picks only. */
gm_status fields_add_mlx(gm_loader *l, const char *base, gm_linear *linear, job j, const stack_size *size);
/* The bias of this linear layer, or stack, must have been the last job that was added. */
gm_status fields_need_bias(const gm_loader *l, const gm_linear *linear);
/* experts.c */
gm_status fields_add_experts(gm_loader *l, const field_cursor *c);
/* unused.c: an error when a tensor that the model is not made of would change its result; after everything is listed.
 */
gm_status fields_check_unused(const gm_loader *l);
/* What a cache of the model holds: keys and values of this type, or states, of the layers that have such. */
gm_status model_lay_out(gm_model *m, int kv_type);
/* info.c */
gm_status make_info(gm_loader *l);
/* The config's sizes, for a description and for what is known of a loaded model. */
bool info_add_config(cJSON *o, const gm_config *c);
const char *info_kind(gm_layer_kind kind); /* "full", "sliding" or "linear" */
#endif
