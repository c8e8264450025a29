/* best_rows.h - the parameters of the kernels of best_rows, as host and device see them. */
#ifndef GOMLX_CUDA_BEST_ROWS_H
#define GOMLX_CUDA_BEST_ROWS_H
#include "best.h"
#include "cuda/args.h"

/* Rows of logits in parts, whose number follows from their length alone. lines: rows are aligned groups of 16 bytes. */
#define CUDA_BEST_EACH 16
#define CUDA_BEST_PART (CUDA_THREADS * CUDA_BEST_EACH)
typedef struct {
    float top;   /* the greatest */
    uint32_t at; /* where it is first */
    double sum;  /* of exp(x - top) */
} cuda_best;
typedef struct {
    gm_best_rows_args to;
    cuda_best *partial; /* [rows][parts] */
    int64_t rows, parts;
    bool lines;
} cuda_best_rows_args;
#endif
