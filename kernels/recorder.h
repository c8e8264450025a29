/* recorder.h - how operations ask a backend for work: by contracts, functions that record what is to run.
 *  (1) An operation says what, and of how much (contracts.def). Into which launches that is cut, in which layouts
 *      and over which workspaces, is the backend's matter, and changes no bit of the result.
 *  (2) A contract reads and writes no element: they may not be there yet, or in another memory. Shapes, strides
 *      and lists among its arguments it may read; they live as long as what is recorded.
 *  (3) All that a contract needs comes from the recorder: csrc/core/queue.c is the one that there is. */
#ifndef GOMLX_RECORDER_H
#define GOMLX_RECORDER_H
#include "best.h"
#include "contracts.h"

enum {
    LAUNCH_FTZ = 1,  /* flush denormals to zero while it runs */
    LAUNCH_PART = 2, /* one of several in a row of a node that touch different elements: they run side by side */
};

typedef struct gm_recorder gm_recorder;

/* n: what the range of the contract counts. False where the recorder has failed, which keeps the cause. NULL in the
 * table of a device: it has no such kernel, and the operation runs on the processor; so it does where the contract
 * returns what `lack` says. */
typedef struct {
#define CONTRACT(name, range, doc) bool (*name)(gm_recorder * r, const gm_##name##_args *a, int64_t n);
#include "contracts.def"
    int64_t (*packed_bytes)(const gm_kernels *kernels, int format, int64_t rows, int64_t k); /* of a packed matrix */
    bool (*multiplies_bf16)(const gm_kernels *kernels); /* bfloat16 as such, not widened to float32 */
    bool makes_rows;     /* products norm and round rows as they read them: what does both is worth one operation */
    bool rounds_prompts; /* packed_matmul of a prompt takes bfloat16 rows for quantised matrices too */
} gm_contracts;
extern const gm_contracts contracts_cpu;

struct gm_recorder {
    const gm_contracts *contracts;
    const gm_kernels *kernels;            /* of the processor: the loops of its instruction set */
    int (*threads)(const gm_recorder *r); /* that will work on it */
    /* Copies args and records fn over [0, n), in pieces of about `grain`; nothing where n is 0. */
    bool (*launch)(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain, int flags);
    void (*scale)(gm_recorder *r, const int32_t *factor); /* the last launch's range is n * *factor when it runs */
    void (*fence)(gm_recorder *r);                        /* launches after this see the results of those before it */
    void *(*workspace)(gm_recorder *r, size_t bytes);     /* for this operation; NULL: the recorder failed */
    void *(*arguments)(gm_recorder *r, size_t bytes);     /* lives as long as the launches; NULL likewise */
    /* Where kernels read a copy of these bytes of the host, as long as the launches live; NULL likewise. */
    const void *(*constant)(gm_recorder *r, const void *data, size_t bytes);
    bool (*lack)(gm_recorder *r, const char *what); /* false: this device has no kernel for these arguments */
};
#endif
