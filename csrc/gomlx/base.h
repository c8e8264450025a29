/* base.h - errors and element types: a chapter of gomlx.h. */
#ifndef GOMLX_BASE_H
#define GOMLX_BASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
#endif
