/* index_key.h - what the key in a[key] says about each axis of a.
 *  (1) Ints, slices and arrays take one axis each, in order; an Ellipsis stands for the axes that nothing else takes.
 *  (2) Arrays are broadcast together. Their dimensions take the place of the arrays when these (ints among them) are
 *      neighbours, and come first when anything is between them: as in NumPy, but that an Ellipsis which stands for no
 *      axis does not count, as in MLX.
 *  (3) A boolean mask is a key by itself: it takes as many axes as it has dimensions. */
#ifndef GOMLX_PY_INDEX_KEY_H
#define GOMLX_PY_INDEX_KEY_H
#include "py/py.h"

typedef enum { AXIS_SLICE, AXIS_INT, AXIS_ARRAY } axis_kind;

typedef struct {
    const int64_t *shape; /* of the array */
    int ndim;
    int64_t start[GM_MAX_NDIM], stop[GM_MAX_NDIM], step[GM_MAX_NDIM], length[GM_MAX_NDIM];
    axis_kind kind[GM_MAX_NDIM];
    bool sliced;                   /* some axis is not taken whole */
    int new_axes[GM_MAX_NDIM + 1]; /* how many None come before axis i */
    int n_arrays, array_axes[GM_MAX_NDIM];
    gm_array *arrays[GM_MAX_NDIM];
    bool front;     /* the arrays' dimensions come first */
    int index_ndim; /* of the arrays together */
    int64_t index_shape[GM_MAX_NDIM];
    gm_array *mask; /* the key is this boolean mask; nothing else is filled */
    int axis, runs; /* while reading: the next axis, runs of neighbouring ints and arrays */
    bool in_run;
} index_key;

/* False with an exception. Arrays of the key are in the scope. */
bool read_key(module_state *state, gm_scope *scope, const gm_array *x, PyObject *key, bool masks, index_key *out);
/* How many axes that no array takes come before the arrays' dimensions in the result of gm_gather. */
int key_place(const index_key *k);
/* The shape of a[key]. For each of its dimensions, from[] is the axis it comes from: GM_MAX_NDIM + i is dimension i of
 * the arrays, -1 a new axis. */
bool key_shape(const index_key *k, int *ndim, int64_t *shape, int *from);
#endif
