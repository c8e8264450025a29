/* taps.h - reading and editing what a forward pass computes, at the points of taps.def.
 *  (1) A forward calls pass_tap (block.h) at each point and uses what it returns: without taps, its argument.
 *  (2) An activation that is read becomes another root of the step. Reading changes no bit of anything else.
 *  (3) An edit is ops of the same step, which select its rows by their positions when it runs. Other rows keep their
 *      bits, and so do rows to which it adds 0. */
#ifndef GOMLX_MODELS_TAPS_H
#define GOMLX_MODELS_TAPS_H
#include "gomlx.h"

typedef enum {
#define TAP(point, name, has, edit, first, second) TAP_##point,
#include "models/taps.def"
#undef TAP
    GM_TAP_POINTS,
} gm_tap_point;

typedef struct {
    const int64_t *reads; /* activations, as gm_model_activation numbers them */
    gm_array **read;      /* what each gave: retained, contiguous; NULL for states */
    int n_reads;
    const gm_edit *edits; /* in the order in which they are applied; evaluated values */
    int n_edits;
    gm_array **keys; /* of each layer, rotated; while the graph of a pass with attention weights is built */
    bool rotated;    /* rotated queries and keys, or attention weights, are read */
} gm_taps;

/* Checks and copies the requested reads and edits; their values are retained. */
gm_status taps_new(const gm_model *m, const int64_t *reads, size_t n_reads, const gm_edit *edits, size_t n_edits,
                   gm_taps **out);
void taps_free(gm_taps *t);    /* NULL is fine */
void taps_release(gm_taps *t); /* what was read */
/* A copy of what one was read to be, in memory of the host. */
gm_array *taps_value(gm_scope *s, const gm_array *read, const gm_activation_info *info);
bool taps_has(const gm_taps *t, int64_t layer, gm_tap_point point);
/* x [n, width] with the edits of that point, and read. layer -1: of the model. positions int32 [n]. */
gm_array *taps_apply(gm_scope *s, gm_taps *t, int64_t layer, gm_tap_point point, gm_array *x, gm_array *positions);
static inline int64_t tap_number(int64_t layer, gm_tap_point point) { return (layer + 1) * GM_TAP_POINTS + point; }
static inline gm_tap_point tap_point(int64_t number) { return (gm_tap_point)(number % GM_TAP_POINTS); }
static inline int64_t tap_layer(int64_t number) { return number / GM_TAP_POINTS - 1; }
/* x [n, heads * head_dim], each head rotated by angles [n, 2, half] as cached_attention does. */
gm_array *taps_rotate(gm_scope *s, gm_array *x, gm_array *angles, int64_t head_dim);
/* Softmax weights [heads, n, n] of rotated q and k of one sequence from its beginning. */
gm_array *taps_weights(gm_scope *s, gm_array *q, gm_array *k, gm_array *sinks, gm_array *positions,
                       const gm_attention_spec *spec);
#endif
