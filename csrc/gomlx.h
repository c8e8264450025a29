/* gomlx.h - the one public C header of the engine.
 *
 * Contracts
 *  - Functions return gm_status, or a pointer that is NULL on failure. The cause is in a slot of the calling thread
 *    until gm_take_error reads it. The library never exits, aborts or prints.
 *  - GM_AGAIN is no failure: the time slice of a long call is over; call again with the same handle. Between two calls
 *    the caller may look at signals. Dropping the handle (close, free) instead cancels what is left.
 *  - Handles are opaque and reference-counted; retain and release are atomic. Arguments are borrowed, nothing is
 *    stolen.
 *  - Ops given NULL return NULL silently, so a chain is checked once, at its end. NULL never means "none": GM_NONE
 *    does.
 *  - Sizes, strides (in elements) and shapes are int64. At most GM_MAX_NDIM dimensions. */
#ifndef GOMLX_H
#define GOMLX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GM_VERSION "0.1.0"
#define GM_MAX_NDIM 64

/* ---- errors ---- */
typedef enum {
    GM_OK = 0,
    GM_EVALUE,       /* ValueError */
    GM_ESHAPE,       /* ValueError */
    GM_ETYPE,        /* TypeError */
    GM_EINDEX,       /* IndexError */
    GM_EAXIS,        /* gomlx.AxisError, an IndexError and a ValueError: an axis that is out of range */
    GM_EOVERFLOW,    /* OverflowError */
    GM_ENOMEM,       /* MemoryError */
    GM_EFILE,        /* OSError, with errno */
    GM_EUNSUPPORTED, /* NotImplementedError */
    GM_ESTATE,       /* RuntimeError */
    GM_EBADFILE,     /* gomlx.Error: a file that is not what it should be */
    GM_EDEVICE,      /* gomlx.Error */
    GM_ECONTEXT,     /* gomlx.ContextLengthExceeded, with both numbers */
    GM_EMODEL,       /* gomlx.ModelNotSupported */
    GM_ECANCELLED,   /* the work was cancelled from another thread */
    GM_AGAIN,        /* not a failure: call again */
    GM_END,          /* not a failure: a stream has no more tokens */
    GM_LOGITS,       /* not a failure: a stream's logits wait for gm_stream_sample */
} gm_status;

/* tokens, context: of GM_ECONTEXT, how many there are and how many fit. */
typedef struct {
    gm_status code;
    int os_errno;
    int64_t tokens, context;
    char text[1024];
} gm_error;
/* Copies the calling thread's error to *out and clears the slot; returns its code, GM_OK when there is none. */
gm_status gm_take_error(gm_error *out);

/* ---- element types ---- */
typedef enum {
    GM_BOOL,
    GM_UINT8,
    GM_UINT16,
    GM_UINT32,
    GM_UINT64,
    GM_INT8,
    GM_INT16,
    GM_INT32,
    GM_INT64,
    GM_FLOAT16,
    GM_BFLOAT16,
    GM_FLOAT32,
    GM_FLOAT64,
    GM_COMPLEX64,
    GM_DTYPE_COUNT,
    GM_PACKED, /* an opaque weight matrix in panels, or packed activations: gm_array_format tells */
} gm_dtype;
const char *gm_dtype_name(gm_dtype type);    /* "float32" */
size_t gm_dtype_size(gm_dtype type);         /* bytes; 0 for GM_PACKED */
gm_dtype gm_promote(gm_dtype a, gm_dtype b); /* MLX's promotion of two arrays */

/* ---- arrays ---- */
typedef struct gm_array gm_array;
typedef struct gm_scope gm_scope;
extern gm_array gm_none_array;
#define GM_NONE (&gm_none_array) /* an optional input that is absent */

/* A scope owns the arrays made through it until it is closed; gm_retain outlives it. One thread at a time. */
gm_scope *gm_scope_open(void);
void gm_scope_close(gm_scope *scope);                      /* NULL is fine */
gm_array *gm_retain(gm_array *array);                      /* returns its argument */
gm_array *gm_scope_keep(gm_scope *scope, gm_array *array); /* the scope holds a reference more; returns the array */
void gm_release(gm_array *array);                          /* NULL is fine */

/* A new array with a copy of the data, contiguous, row-major. */
gm_array *gm_array_from(gm_scope *scope, gm_dtype type, int ndim, const int64_t *shape, const void *data);
/* Memory of somebody else, used in place and never written; release(payload) is called when the last view dies.
 * On failure release is not called. Strides may be NULL for contiguous. */
typedef struct {
    const void *data;
    const int64_t *strides;
    void (*release)(void *payload);
    void *payload;
} gm_foreign;
gm_array *gm_array_wrap(gm_scope *scope, gm_dtype type, int ndim, const int64_t *shape, gm_foreign memory);
/* An array of the same shape and dtype whose value is gone: evaluating it, or what depends on it, is GM_ESTATE. */
gm_array *gm_freed(gm_scope *scope, const gm_array *array);
gm_dtype gm_array_dtype(const gm_array *array);
int gm_array_ndim(const gm_array *array);
const int64_t *gm_array_shape(const gm_array *array);
const int64_t *gm_array_strides(const gm_array *array); /* meaningful once evaluated */
int64_t gm_array_size(const gm_array *array);
const char *gm_array_format(const gm_array *array);  /* GM_PACKED: "Q4_0"; else NULL */
const char *gm_array_op_name(const gm_array *array); /* what makes it; NULL for data */
bool gm_array_is_evaluated(const gm_array *array);
/* The elements of an evaluated array, NULL otherwise. Valid while the array is retained. */
void *gm_array_data(const gm_array *array);
/* Pins the array's buffer for an export (NumPy, DLPack): it is not reused while pinned. *writable tells whether the
 * array is the buffer's only owner. Evaluated arrays only. */
gm_status gm_array_pin(gm_array *array, bool *writable);
void gm_array_unpin(gm_array *array);

/* Sizes of a convolution, one for each spatial axis; n_... is how many were given, -1: one for all. */
typedef struct {
    int n_stride, n_low, n_high, n_dilation, n_input_dilation;
    int64_t stride[3], low[3], high[3], dilation[3], input_dilation[3];
} gm_conv_sizes;

/* The rows of a forward pass and the caches of their sequences: csrc/ops/layers/batch_state.h. */
typedef struct gm_batch_state gm_batch_state;
/* One layer's attention over a slot of the caches. window: keys that a row sees, 0 all; softcap 0: none. */
typedef struct {
    int slot, n_heads, n_kv_heads, head_dim, window;
    float scale, softcap;
} gm_attention_spec;
typedef struct { gm_array *q, *k, *v, *angles, *sinks; } gm_attention_inputs;
/* One layer's gated delta rule. tiled: value head h reads key head h % n_key_heads, else h / (heads of each). */
typedef struct {
    int slot, n_key_heads, n_value_heads;
    bool tiled;
} gm_delta_spec;
typedef struct { gm_array *q, *k, *v, *decay, *beta; } gm_delta_inputs;
/* Indices of n axes together; their own axes come after `place` of the others. */
typedef struct {
    gm_array *const *arrays;
    int n;
    const int *axes;
    int place;
} gm_indices;
typedef struct { const int64_t *start, *stop, *step; } gm_region; /* of each axis */

/* ---- ops: one line of ops.def each ---- */
typedef enum { GM_PAD_CONSTANT, GM_PAD_EDGE, GM_PAD_REFLECT, GM_PAD_SYMMETRIC } gm_pad_mode;
#define UNARY(name, doc) gm_array *gm_##name(gm_scope *scope, gm_array *x);
#define BINARY(name, doc) gm_array *gm_##name(gm_scope *scope, gm_array *a, gm_array *b);
#define REDUCE(name, doc) gm_array *gm_##name(gm_scope *scope, gm_array *x, int n_axes, const int *axes, bool keepdims);
#define OP(name, namespace_, result, arguments, doc) gm_array *gm_##name(gm_scope *scope arguments result);
#define ARG(text, letter, members, defaults, parameters, ...) OPEN parameters
#define SINGLE
#define TUPLE(n) , gm_array **outs
#define PAIR , gm_array **second
#define LIST_OF_TWO , gm_array **second
#define HAND(name, namespace_, parameters, text, doc) gm_array *gm_##name parameters;
#define ENGINE(name, parameters, doc) gm_array *gm_##name parameters;
#include "ops/ops.def"
#undef SINGLE
#undef TUPLE
#undef PAIR
#undef LIST_OF_TWO

/* ---- arrays in files ---- */
/* An open file of whose bytes arrays are made; they are read when they are evaluated. The descriptor is duplicated;
 * name is for messages. Arrays keep the file open until they are read or die. */
typedef struct gm_source gm_source;
gm_status gm_source_open(int fd, const char *name, gm_source **out);
void gm_source_close(gm_source *source); /* NULL is fine */
/* The elements from byte `offset` on, contiguous; swapped: in the other order of bytes than this machine's. A file that
 * has become too short is GM_ESTATE when the array is evaluated. */
gm_array *gm_source_array(gm_scope *scope, gm_source *source, gm_dtype type, int ndim, const int64_t *shape,
                          int64_t offset, bool swapped);

/* ---- tracing: the ground of the transforms (csrc/transform) ----
 * Between enter and leave (they nest) the calling thread traces: arrays made from a tracer are tracers. */
void gm_trace_enter(void);
void gm_trace_leave(void);
gm_array *gm_tracer(gm_scope *scope, gm_array *x); /* x as a traced input: the same value */
bool gm_array_is_tracer(const gm_array *array);    /* false outside of a trace */
/* Between these, which stand inside of a trace, what is traced is to serve inputs of other shapes too: ops whose
 * parameters would hold the traced sizes take another way, or fail with GM_EVALUE. */
void gm_shapeless_enter(void);
void gm_shapeless_leave(void);
/* A traced input without a value: evaluating what depends on it is GM_EVALUE. */
gm_array *gm_placeholder(gm_scope *scope, gm_dtype type, int ndim, const int64_t *shape);

/* ---- transforms: graph in, graph out (csrc/transform) ---- */
/* grads[i] = the gradient of sum(cotangents * outputs) with respect to primals[i], a traced input; NULL where nothing
 * depends on it. cotangents have the outputs' shapes. */
gm_status gm_vjp(gm_scope *scope, gm_array *const *outputs, gm_array *const *cotangents, int n_outputs,
                 gm_array *const *primals, int n_primals, gm_array **grads);
/* out_tangents[k] = the derivative of outputs[k] along tangents of the primals; NULL where it is zero. */
gm_status gm_jvp(gm_scope *scope, gm_array *const *outputs, int n_outputs, gm_array *const *primals,
                 gm_array *const *tangents, int n_primals, gm_array **out_tangents);
/* The outputs with each traced input replaced by values[i], which has a batch axis in front where batched[i].
 * out_batched[k]: outs[k] has one. */
typedef struct {
    gm_array *const *arrays;
    int count;
} gm_arrays;
gm_status gm_vmap(gm_scope *scope, gm_arrays outputs, gm_arrays inputs, gm_array *const *values, const bool *batched,
                  gm_array **outs, bool *out_batched);
/* Rules of its own for a function that was run already: results[k] is outputs[k], but gradients go by the closure.
 * Callbacks NULL: the graph of outputs is differentiated or batched as usual. They are called while gm_vjp, gm_jvp or
 * gm_vmap run, on that thread, never while evaluating. */
typedef struct {
    gm_status (*vjp)(void *payload, gm_scope *scope, gm_arrays inputs, gm_array *const *cotangents, gm_arrays outputs,
                     gm_array **grads);
    gm_status (*jvp)(void *payload, gm_scope *scope, gm_array *const *inputs, gm_array *const *tangents, int n_inputs,
                     int n_outputs, gm_array **out_tangents);
    gm_status (*vmap)(void *payload, gm_scope *scope, gm_array *const *inputs, const bool *batched, int n_inputs,
                      int n_outputs, gm_array **outs);
    void (*free)(void *payload); /* on any thread */
    void *payload;
} gm_closure;
/* The closure is taken over, also on failure. */
gm_status gm_custom(gm_scope *scope, const gm_closure *closure, gm_array *const *inputs, int n_inputs,
                    gm_array *const *outputs, int n_outputs, gm_array **results);

/* A traced graph, simplified, that runs again over other inputs. shapeless: their shapes may differ from the traced
 * ones, in the same number of dimensions. */
typedef struct gm_graph gm_graph;
gm_status gm_graph_new(gm_array *const *inputs, int n_inputs, gm_array *const *outputs, int n_outputs, bool shapeless,
                       gm_graph **out);
gm_status gm_graph_call(gm_scope *scope, const gm_graph *graph, gm_array *const *inputs, int n_inputs, gm_array **outs);
gm_status gm_graph_fuse(gm_graph *graph);                  /* elementwise chains become one op each */
gm_status gm_graph_check_shapeless(const gm_graph *graph); /* GM_EVALUE when some op can only have the traced shapes */
bool gm_graph_captures_tracer(const gm_graph *graph);      /* of a trace that goes on around the traced function */
int gm_graph_outputs(const gm_graph *graph);
/* A look at the code of a graph that is not fused. Operands: the number of a value (inputs first, then results as they
 * come), or -1 - number of a constant. Everything is borrowed. */
typedef struct {
    const char *name;           /* "exp" */
    int n_in, n_out, first_out; /* the results are values first_out ... */
    const int32_t *in;
    int n_parameters;
} gm_instruction;
typedef struct {
    const char *name;
    int count; /* 1, or that of a list */
    bool is_list, is_real;
    int64_t integers[256];
    double reals[256];
} gm_parameter;
int gm_graph_inputs(const gm_graph *graph);
const gm_array *gm_graph_input(const gm_graph *graph, int k); /* dtype and shape */
const int32_t *gm_graph_output_operands(const gm_graph *graph);
int64_t gm_graph_constants(const gm_graph *graph);
gm_array *gm_graph_constant(const gm_graph *graph, int64_t k); /* may be GM_NONE */
int64_t gm_graph_instructions(const gm_graph *graph);
gm_instruction gm_graph_instruction(const gm_graph *graph, int64_t i);
const gm_array *gm_graph_result(const gm_graph *graph, int64_t i,
                                int k); /* dtype and shape of an instruction's result k */
/* The names of what a fused instruction is made of, in order; 0: it is none. */
#define GM_GRAPH_TITLES 80
int gm_graph_titles(const gm_graph *graph, int64_t i, const char *titles[GM_GRAPH_TITLES]);
void gm_graph_parameter(const gm_graph *graph, int64_t i, int k, gm_parameter *out);
void gm_graph_free(gm_graph *graph);

/* The same with everything in it that is not evaluated, whether it depends on the inputs or not; simplified only. */
gm_status gm_graph_whole(gm_array *const *inputs, int n_inputs, gm_array *const *outputs, int n_outputs,
                         gm_graph **out);

/* ---- exported functions: files of traced graphs ---- */
/* Failures of files are GM_ESTATE here. What cannot be exported (functions with rules of their own) is GM_EVALUE. */
typedef struct gm_exporter gm_exporter;
/* The file gets its name when the exporter is closed. metadata: text or NULL. */
gm_status gm_export_open(const char *path, bool shapeless, const char *metadata, gm_exporter **out);
/* Adds what was traced from inputs (placeholders) to outputs. names[i]: of a keyword input, or NULL. */
gm_status gm_export_trace(gm_exporter *exporter, gm_array *const *inputs, const char *const *names, int n_inputs,
                          gm_array *const *outputs, int n_outputs);
gm_status gm_export_close(gm_exporter *exporter, bool keep); /* keep false: no file */
typedef struct gm_import gm_import;
gm_status gm_import_open(const char *path, gm_import **out);
const char *gm_import_metadata(const gm_import *import); /* NULL: none */
bool gm_import_is_shapeless(const gm_import *import);
int gm_import_traces(const gm_import *import);
typedef struct {
    gm_array *const *inputs; /* placeholders */
    const char *const *names;
    int n_inputs;
    gm_array *const *outputs;
    int n_outputs;
} gm_traced; /* borrowed from the import */
gm_traced gm_import_trace(const gm_import *import, int k);
void gm_import_close(gm_import *import);

/* ---- evaluation ---- */
typedef struct gm_run gm_run;
/* Starts the evaluation of arrays (NULL entries are an error). Waits for the run lock at most slice_ms; *run is NULL
 * and the status GM_AGAIN when another thread has it (at once for a slice of 0). Arrays that are evaluated already cost
 * nothing. */
gm_status gm_eval_begin(gm_array *const *arrays, size_t count, int slice_ms, gm_run **run);
/* Whether the run is a matter of microseconds. */
bool gm_eval_is_small(const gm_run *run);
/* Works for about slice_ms: GM_OK when all is evaluated, GM_AGAIN when not yet. */
gm_status gm_eval_step(gm_run *run, int slice_ms);
/* Ends the run. Work that is not done is cancelled and its arrays raise GM_ESTATE from then on. */
void gm_eval_end(gm_run *run);
/* All of the above in one call, without time slices. */
gm_status gm_eval(gm_array *const *arrays, size_t count);
/* Hands the arrays to the evaluator thread and returns (waits when it is far behind). Who needs their values evaluates
 * them as any others: that waits for the thread, and gives the error if there was one. */
gm_status gm_async_eval(gm_array *const *arrays, size_t count);
/* Waits until everything handed in is done. The first failure since the last call, if there was one. */
gm_status gm_synchronize(void);

/* ---- machine ---- */
/* selects the kernels (GOMLX_ISA); every other call needs it once; thread-safe */
gm_status gm_init(void);
const char *gm_isa(void); /* "avx512vnni" */
const char *gm_isa_reason(void);
bool gm_multiplies_bfloat16(void); /* the instruction set does: then it is what models do by default */
int gm_default_threads(void);
const char *gm_default_threads_reason(void);
gm_status gm_set_threads(int n); /* for array evaluation; models have their own number */

/* ---- memory: bytes ---- */
size_t gm_active_memory(void);
size_t gm_peak_memory(void);
size_t gm_cache_memory(void);
size_t gm_promised_memory(void);          /* that loaded models take before their second pass: not active yet */
void gm_reset_peak_memory(void);          /* to 0: the next allocation makes it what is active then */
size_t gm_set_memory_limit(size_t bytes); /* returns the old one; an allocation above it is GM_ENOMEM */
size_t gm_memory_limit(void);
size_t gm_set_cache_limit(size_t bytes);
/* Bytes of the memory behind an evaluated array, which other arrays may share: *identity tells which it is. */
size_t gm_array_memory(const gm_array *array, const void **identity);
void gm_clear_cache(void);

/* ---- tokenizers (csrc/text) ---- */
typedef struct gm_tokenizer gm_tokenizer;
typedef struct gm_detokenizer gm_detokenizer;
/* A tokenizer.json file's text. name is used in messages. */
gm_status gm_tokenizer_from_json(const char *json, size_t length, const char *name, gm_tokenizer **out);
/* The vocabulary in a GGUF file's metadata. */
gm_status gm_tokenizer_from_gguf(const char *path, gm_tokenizer **out);
/* What tokenizer.ggml.pre may be and stands for: patterns that cut text one after the other (NULL behind the last), NFC
 * before them, whole pieces looked up before merges, the start token unless the file says otherwise. */
typedef struct {
    const char *name;
    const char *const *patterns;
    bool nfc, ignore_merges, add_bos;
} gm_gguf_pre;
bool gm_gguf_pre_type(size_t i, gm_gguf_pre *out); /* false: there are no more than i */
/* A SentencePiece .model file's bytes. parts, which may be empty: the text of a tokenizer.json without a model, for
 * added tokens, of which such a file knows only some. add_bos, add_eos: around a text, with the ids that the file
 * gives. */
typedef struct {
    const char *parts;
    size_t parts_length;
    bool add_bos, add_eos;
} gm_sentencepiece_options;
gm_status gm_tokenizer_from_sentencepiece(const void *data, size_t length, const gm_sentencepiece_options *o,
                                          const char *name, gm_tokenizer **out);
gm_tokenizer *gm_tokenizer_retain(gm_tokenizer *t);
void gm_tokenizer_release(gm_tokenizer *t);
/* Texts are UTF-8, else GM_EVALUE; with raw they may be any bytes: what is not UTF-8 becomes tokens of single bytes,
 * GM_EVALUE where the vocabulary has none. valid: it is known to be UTF-8, and not checked again. */
typedef struct {
    const char *data;
    size_t length;
    bool raw, valid;
} gm_text;
typedef enum { GM_TRUNCATE_LONGEST_FIRST, GM_TRUNCATE_ONLY_FIRST, GM_TRUNCATE_ONLY_SECOND } gm_truncation_strategy;
/* In tokens, special ones included; neighbouring parts have stride tokens in common. left: a text's start is cut off.
 */
typedef struct {
    size_t max_length, stride;
    gm_truncation_strategy strategy;
    bool left;
} gm_truncation;
/* fixed: to `length` tokens, else to the longest of the texts; then up to a multiple (0: none). */
typedef struct {
    bool fixed, left;
    size_t length, multiple_of;
    int32_t id, type_id;
    const char *token; /* what tells of the padding's tokens call them */
    size_t token_length;
} gm_padding;
/* add_special: what the post-processor adds, such as BOS. parse_special: text of special tokens becomes those tokens
 * (as Hugging Face does). truncation and padding: NULL for none. */
typedef struct {
    bool add_special, parse_special;
    const gm_truncation *truncation;
    const gm_padding *padding;
} gm_encode_options;
/* What the file declares, NULL for nothing. Borrowed. */
const gm_truncation *gm_tokenizer_truncation(const gm_tokenizer *t);
const gm_padding *gm_tokenizer_padding(const gm_tokenizer *t);
/* Ids of a text, or of a pair of texts (pair NULL: one); *ids is from gm_buffer_free's allocator. truncated (NULL is
 * fine): whether any were cut off. */
gm_status gm_tokenizer_encode(gm_tokenizer *t, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                              int32_t **ids, size_t *count, bool *truncated);
/* The same, and all that is known about the tokens: the bytes of the text that each stands for (raw), or its scalars;
 * the number of its word and of its type; whether it was added (special), whether it is more than padding. */
typedef struct {
    int32_t id, type_id, word, start, end;
    bool special, attention;
} gm_token_info; /* word -1: none */
typedef struct gm_encoding gm_encoding;
gm_status gm_tokenizer_encoding(gm_tokenizer *t, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                                gm_encoding **out);
size_t gm_encoding_size(const gm_encoding *e);
gm_token_info gm_encoding_token(const gm_encoding *e, size_t i);
/* What token i is called. whole: the encoding that e is, or is an overflowing part of. Borrowed; NULL for a hole. */
const char *gm_encoding_text(const gm_encoding *whole, const gm_encoding *e, size_t i, const gm_tokenizer *t,
                             size_t *length);
void gm_encoding_sequences(const gm_encoding *e, int32_t *out); /* of each token: 0, 1, or -1 for none */
/* What truncation took away, in parts of at most its length. Borrowed. */
size_t gm_encoding_overflowing(const gm_encoding *e);
const gm_encoding *gm_encoding_overflow(const gm_encoding *e, size_t i);
void gm_encoding_free(gm_encoding *e);
/* Many texts (pairs: NULL, or one for each) on several threads, in slices as evaluation is: begin, step until it is not
 * GM_AGAIN, free. What each becomes does not depend on the others nor on the threads, but for padding to the longest.
 * The texts are borrowed until free. A failure is that of the first text that fails, whose number the message tells. */
typedef struct {
    const gm_text *texts, *pairs;
    size_t n;
    bool encodings; /* whole encodings; else ids alone */
    int threads;    /* at most; 0: those of the engine */
} gm_encode_request;
typedef struct gm_encode_batch gm_encode_batch;
gm_status gm_encode_begin(gm_tokenizer *t, const gm_encode_request *request, const gm_encode_options *o,
                          gm_encode_batch **out);
gm_status gm_encode_step(gm_encode_batch *b, int slice_ms);
/* Without encodings: the ids, which lie in some blocks. take gives a block away, for gm_buffer_free. */
typedef struct {
    size_t block, start, count;
    bool truncated;
} gm_encoded;
size_t gm_encode_blocks(const gm_encode_batch *b);
int32_t *gm_encode_take(gm_encode_batch *b, size_t block, size_t *count);
gm_encoded gm_encode_result(const gm_encode_batch *b, size_t i);
const int32_t *gm_encode_ids(const gm_encode_batch *b, size_t i);
gm_encoding *gm_encode_encoding(gm_encode_batch *b, size_t i); /* given away */
void gm_encode_free(gm_encode_batch *b);
/* Text of ids; bytes that are not UTF-8 become U+FFFD as in Hugging Face's decode. Not NUL-terminated. */
gm_status gm_tokenizer_decode(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **text,
                              size_t *length);
/* The bytes of ids of a byte-level vocabulary, UTF-8 or not; any other is GM_EUNSUPPORTED. */
gm_status gm_tokenizer_decode_bytes(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **bytes,
                                    size_t *length);
int64_t gm_tokenizer_vocab_size(const gm_tokenizer *t); /* added tokens included: largest id + 1 */
/* The same of the model's vocabulary alone, without what is an added token too. */
int64_t gm_tokenizer_base_size(const gm_tokenizer *t);
/* The token's own string; NULL for a hole. *length in bytes. Borrowed. */
const char *gm_tokenizer_token(const gm_tokenizer *t, int32_t id, size_t *length);
int32_t gm_tokenizer_id(const gm_tokenizer *t, const char *token, size_t length); /* -1 when there is none */
bool gm_tokenizer_is_special(const gm_tokenizer *t, int32_t id);
void gm_buffer_free(void *buffer);
/* Incremental decoding: each push gives the text that is certain now; never half a character, never U+FFFD early.
 * The concatenation of all pushes and the finish equals the batch decode, but for a run of <0xNN> tokens that is not
 * UTF-8: of that the batch, as Hugging Face, keeps nothing, a stream what was whole. strict: such runs are held back
 * until they end, and there is no exception. *text is borrowed until the next call. */
gm_status gm_detokenizer_new(gm_tokenizer *t, bool skip_special, bool strict, gm_detokenizer **out);
gm_status gm_detokenizer_push(gm_detokenizer *d, int32_t id, const char **text, size_t *length);
gm_status gm_detokenizer_finish(gm_detokenizer *d, const char **text, size_t *length);
void gm_detokenizer_free(gm_detokenizer *d);

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
     * bfloat16; -1: 1, and 2 where the processor multiplies bfloat16 */
    int activations;
    int threads; /* 0: gm_default_threads() */
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
} gm_inspect_request;
typedef struct gm_inspection gm_inspection;
gm_status gm_inspect_begin(gm_model *m, const gm_inspect_request *request, gm_inspection **out);
gm_status gm_inspect_step(gm_inspection *inspection, int slice_ms);
gm_array *gm_inspect_result(gm_scope *scope, const gm_inspection *inspection, size_t i); /* of activations[i], a copy */
void gm_inspect_free(gm_inspection *inspection);                                         /* NULL is fine */
/* The end of the forward pass alone: final norm, head, softcap of a residual stream float32 [n, hidden]; lazy. */
gm_array *gm_model_head(gm_scope *scope, gm_model *m, gm_array *x);

/* ---- training: lazy, with gradients to the terms (csrc/models/training.c) ---- */
typedef struct {
    const char *layer;
    gm_array *a, *b;
    float scale;
} gm_adapter_term; /* layer: "model.layers.0.mlp.up_proj" */
typedef struct {
    const int32_t *tokens; /* of all sequences, one after another */
    const int32_t *lengths;
    int64_t n_sequences;
    const gm_adapter_term *terms;
    size_t n_terms;
    bool int8;        /* linear layers round what they read as decoders do */
    bool checkpoints; /* backwards, each layer is computed again from its input */
} gm_training_batch;
/* The rows after the final norm, float32 [tokens, hidden]. */
gm_array *gm_model_rows(gm_scope *scope, gm_model *m, const gm_training_batch *batch);
/* The cross entropy of each row's logits against its target, float32 [n]; gradient: as something to differentiate. */
gm_array *gm_model_loss(gm_scope *scope, gm_model *m, gm_array *rows, const int32_t *targets, int64_t n, bool gradient);

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

/* ---- sampling (csrc/run/sample.c): logits become one id ----
 * First the biases, then what is forbidden, then the samplers in their order, then the draw. */
/* In the default order, which is that of transformers; what it does not have stands where llama.cpp has it. */
typedef enum {
    GM_SAMPLER_PENALTIES, /* repetition, frequency and presence */
    GM_SAMPLER_DRY,
    GM_SAMPLER_TOP_N_SIGMA,
    GM_SAMPLER_TEMPERATURE,
    GM_SAMPLER_TOP_K,
    GM_SAMPLER_TOP_P,
    GM_SAMPLER_MIN_P,
    GM_SAMPLER_TYPICAL_P,
    GM_SAMPLER_XTC,
    GM_SAMPLER_MIROSTAT, /* only as the last one */
    GM_SAMPLER_KINDS,
} gm_sampler_kind;
const char *gm_sampler_name(gm_sampler_kind kind); /* "top_k" */
typedef struct {
    const int32_t *ids;
    const size_t *lengths;
    size_t n;
} gm_sequences; /* ids one after another */
typedef struct {
    const gm_sampler_kind *order;
    size_t n_order;     /* NULL: all in the default order; what is set must be in it */
    float temperature;  /* 0: greedy, ties to the lowest id, after penalties; the other samplers do nothing */
    int32_t top_k;      /* 0: off */
    float top_p, min_p; /* 1 and 0: off */
    float typical_p;    /* 1: off */
    float top_n_sigma;  /* 0: off */
    float xtc_probability, xtc_threshold;   /* 0: off */
    float dry_multiplier, dry_base;         /* 0: off */
    int32_t dry_allowed_length, dry_last_n; /* last ids looked at; 0: off, -1: all */
    gm_sequences dry_breakers;
    float mirostat_tau, mirostat_eta;          /* 0: off */
    float repetition_penalty;                  /* 1: off */
    float frequency_penalty, presence_penalty; /* 0: off */
    int32_t penalty_last_n;                    /* the last ids that the penalties look at; 0: off, -1: all */
    bool repetition_of_prompt;                 /* the repetition penalty looks at the prompt too */
    bool counts_of_prompt;                     /* the other two as well */
    const int32_t *bias_ids;
    const float *biases;
    size_t n_biases;        /* added to the logits */
    gm_sequences bad_words; /* a sequence's last id is forbidden after the others */
    const int32_t *suppressed;
    size_t n_suppressed; /* forbidden ids */
    uint64_t seed;
} gm_sampling;
void gm_sampling_defaults(gm_sampling *o); /* greedy, nothing on */
/* What draw number `step` of a sequence is made from: logits, float32 [vocab], and the ids so far, the first n_prompt
 * of which are the prompt's. */
typedef struct {
    const float *logits;
    int64_t vocab;
    const int32_t *ids;
    size_t n_ids, n_prompt;
    uint64_t step;
} gm_draw;
/* n draws from d->step on, each from these logits. The ids are not appended; mirostat learns from draw to draw.
 * GM_EVALUE when no token is left. */
gm_status gm_sample(const gm_sampling *o, const gm_draw *d, int32_t *out, size_t n);
/* The distribution that the draw is made from: out float32 [vocab]. With temperature 0, 1 for one id. */
gm_status gm_sample_probabilities(const gm_sampling *o, const gm_draw *d, float *out);

/* ---- sessions and streams (csrc/run): the one decode loop ---- */
/* A session is one sequence: its ids, and a cache that holds the first of them. Used by one stream at a time (else
 * GM_ESTATE). */
typedef struct gm_session gm_session;
gm_status gm_session_new(gm_model *m, gm_session **out);
void gm_session_free(gm_session *s);            /* NULL is fine */
int64_t gm_session_length(const gm_session *s); /* ids that are in the cache */
/* All ids: the prompts and the output of its streams, without stop ids. The last ones may not be in the cache: a
 * sampled token is computed together with the next one. Borrowed until the session is used. */
const int32_t *gm_session_ids(const gm_session *s, size_t *n);
/* Drops the ids from `length` on. The cache may keep fewer (gm_session_length): recurrent layers fall back to their
 * last checkpoint, sliding windows to a position whose keys are all there. What is missing is computed again. */
gm_status gm_session_truncate(gm_session *s, int64_t length);
/* A copy of the sequence. Nothing is copied until either is extended (copy-on-write). */
gm_status gm_session_fork(gm_session *s, gm_session **out);
gm_status gm_session_bytes(gm_session *s,
                           int64_t *bytes); /* memory that it holds; shared with forks: counted in each */
/* The session as bytes that a model of the same shape and kv_dtype restores, in another process too, bit for bit
 * (states kept to fall back to are not among them). out NULL: only *size; else *size is what that gave. */
gm_status gm_session_save(gm_session *s, void *out, size_t *size);
/* GM_EBADFILE: what is not a whole saved session of such a model. */
gm_status gm_session_restore(gm_model *m, const void *bytes, size_t size, gm_session **out);

/* How a prompt is computed: in passes of many rows, or of one. */
typedef enum { GM_PREFILL_BATCHED, GM_PREFILL_TOKEN } gm_prefill;
typedef struct {
    gm_sampling sampling;
    int64_t max_tokens; /* -1: until a stop or the end of the context; 0: only the prompt is computed, which
                         * may fill the context */
    int64_t min_tokens; /* stop ids are forbidden until there are this many tokens */
    const int32_t *stop_ids;
    size_t n_stop_ids;
    const char *const *stop_texts;
    size_t n_stop_texts;    /* UTF-8 */
    int32_t top_logprobs;   /* alternatives reported with each token, at most GM_MAX_LOGPROBS */
    bool hand_out_logits;   /* gm_stream_next returns GM_LOGITS before each token; with max_tokens 0 once, and
                             * gm_stream_sample then ends the stream */
    double timeout_seconds; /* from gm_stream_open on; 0: none */
    gm_prefill prefill;
    /* Edits of activations, and activations for gm_stream_activation. A stream with either has passes of its own; one
     * with edits reuses nothing of its session and leaves it empty. */
    const gm_edit *edits;
    size_t n_edits;
    const int64_t *activations;
    size_t n_activations;
    gm_profile *profile; /* NULL, or where what its passes did is added; outlives the stream */
} gm_generate_options;
void gm_generate_defaults(gm_generate_options *o); /* greedy, nothing on, max_tokens -1 */

typedef enum {
    GM_FINISH_NONE,
    GM_FINISH_STOP,
    GM_FINISH_LENGTH,
    GM_FINISH_CONTEXT,
    GM_FINISH_CANCELLED,
    GM_FINISH_TIMEOUT,
} gm_finish;
#define GM_MAX_LOGPROBS 256
typedef struct {
    int32_t id;
    float logprob;
} gm_logprob;
typedef struct {
    int32_t id;            /* -1 on a last event that carries only held-back text */
    float logprob;         /* under the model's own distribution: no sampler, penalty or bias counts */
    const gm_logprob *top; /* the likeliest under it, best first, valid until the next call */
    int32_t n_top;
    const char *text;
    size_t length;    /* what became certain, valid until the next call */
    gm_finish finish; /* != NONE on the last event */
} gm_token;
typedef struct {
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    /* forward passes of one token: the first token comes from prefill, a stop token from a step */
    int64_t decode_steps;
    /* Of the forward passes that had rows of it, whole, and its own sampling. */
    double prefill_seconds, decode_seconds;
    size_t peak_memory; /* bytes that were active at most while it was open, of the whole process */
    gm_finish finish;
    int32_t stop_id;   /* the stop token that ended it, or -1 */
    int32_t stop_text; /* the number of the stop text that ended it, or -1 */
} gm_stream_stats;

typedef struct gm_stream gm_stream;
/* The prompt's ids are copied; a common prefix with the session's tokens is kept, the rest prefilled. tokenizer may be
 * NULL: then texts are empty and stop_texts are refused. The session's ids become the prompt's, and what is drawn is
 * added. A prompt that leaves no room in the context is GM_ECONTEXT. */
gm_status gm_stream_open(gm_session *s, gm_tokenizer *t, const int32_t *prompt, size_t n_prompt,
                         const gm_generate_options *options, gm_stream **out);
/* The next token: GM_OK with *token filled, GM_AGAIN when the slice is over (prefill, or a slow step), GM_END after the
 * last. A token whose text is held back (half a character, a possible stop text) still comes out at once, with less
 * text. */
gm_status gm_stream_next(gm_stream *st, int slice_ms, gm_token *token);
/* After GM_LOGITS: the ids so far (prompt and output) and the model's logits, float32 [vocab]; borrowed until the
 * token is drawn. */
typedef struct {
    const int32_t *ids;
    size_t n_ids;
    const float *logits;
    int64_t vocab;
} gm_pending_logits;
gm_status gm_stream_logits(const gm_stream *st, gm_pending_logits *out);
/* The token drawn from these logits, float32 [vocab], in place of the model's: as gm_stream_next fills it. */
gm_status gm_stream_sample(gm_stream *st, const float *logits, gm_token *token);
/* options.activations[i] of the rows of the last pass, a copy; after a token, or GM_LOGITS. */
gm_array *gm_stream_activation(gm_scope *scope, const gm_stream *st, size_t i);
void gm_stream_cancel(gm_stream *st); /* from any thread; the next event is the last */
gm_stream_stats gm_stream_get_stats(const gm_stream *st);
void gm_stream_free(gm_stream *st); /* the session stays usable */

/* ---- decoders: streams of one model, decoded together ----
 * A stream on its own is a decoder's only member; gm_decoder_add makes it one of several. Members enter and leave
 * between forward passes; each gets the bits that it would get alone. One thread at a time. */
typedef struct gm_decoder gm_decoder;
gm_status gm_decoder_new(gm_model *m, gm_decoder **out);
void gm_decoder_free(gm_decoder *d); /* its members remain usable; NULL is fine */
/* The stream, which must live until its last event or gm_stream_free; at most 1024 at a time. */
gm_status gm_decoder_add(gm_decoder *d, gm_stream *st);
/* The next event of any member, as gm_stream_next gives it, and whose it is. A failure with *which set is that member's
 * alone, and its last event; the others go on. GM_END: there are no members. */
gm_status gm_decoder_next(gm_decoder *d, int slice_ms, gm_stream **which, gm_token *token);
/* NULL, or where what all passes do is added that have rows of a stream with a profile; outlives the decoder. A pass
 * that has other rows than those that decode is one of prefill. */
void gm_decoder_set_profile(gm_decoder *d, gm_profile *profile);
void gm_decoder_pause(gm_decoder *d); /* abandons the current pass; the next call computes it again */

/* ---- scoring: what the model says of given sequences, each in a fresh session ---- */
typedef enum {
    GM_SCORE_LOGITS,   /* after each token: float32 [sum of n, vocab] */
    GM_SCORE_LAST,     /* after the last token: float32 [sequences, vocab] */
    GM_SCORE_LOGPROBS, /* of each token after those before it, NaN for the first: float32 [sum of n, 1] */
    GM_SCORE_HIDDEN,   /* what the head would take for each token: float32 [sum of n, hidden] */
} gm_score_kind;
typedef struct {
    const int32_t *ids;
    size_t n;
} gm_scored;
/* With GM_SCORE_LAST, labels go on from each sequence. In slices, as loading. Rows of the sequences come one after
 * another; each has the bits that it has alone. */
typedef struct gm_scoring gm_scoring;
gm_status gm_score_begin(gm_model *m, gm_score_kind kind, const gm_scored *sequences, size_t n_sequences,
                         const gm_scored *labels, size_t n_labels, gm_scoring **out);
gm_status gm_score_step(gm_scoring *s, int slice_ms);
const float *gm_score_data(const gm_scoring *s); /* owned by the scoring until it is freed */
/* [sequences, labels]: the logarithm of the probability of each label's tokens after each sequence. */
const double *gm_score_labels(const gm_scoring *s);
void gm_score_free(gm_scoring *s);
#endif
