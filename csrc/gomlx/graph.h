/* graph.h - traces, transforms, exported functions and evaluation: a chapter of gomlx.h. */
#ifndef GOMLX_GRAPH_H
#define GOMLX_GRAPH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx/arrays.h"

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
#endif
