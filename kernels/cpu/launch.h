/* launch.h - what the files of the processor's contracts (launch_*.c) share: cpu_NAME records the launches of NAME.
 * They are compiled once; the loops that they name are those of the recorder's instruction set. */
#ifndef GOMLX_KERNELS_CPU_LAUNCH_H
#define GOMLX_KERNELS_CPU_LAUNCH_H
#include "cpu/grains.h"
#include "cpu/loops.h"
#include "recorder.h"

#define CONTRACT(name, range, doc) bool cpu_##name(gm_recorder *r, const gm_##name##_args *a, int64_t n);
#include "contracts.def"
int64_t cpu_packed_bytes(const gm_kernels *kernels, int format, int64_t rows, int64_t k);
bool cpu_multiplies_bf16(const gm_kernels *kernels);

/* cpu_copy of all elements, with dimensions that may be merged and need not live longer than the call. */
bool launch_merged_copy(gm_recorder *r, const gm_copy_args *a);
/* A product as the loops take it, before it is cut. */
gm_gemm_args gemm_of(const gm_product_args *p);
/* One whose rows the loop fetches from an image: what a->product says of blocks and layouts is filled in here. */
bool launch_image_product(gm_recorder *r, gm_conv_args *a);

/* One workspace of so many bytes for each thread that will work, or for fewer, where no more work at once. */
bool launch_workspaces(gm_recorder *r, int64_t bytes, gm_workspaces *workspaces);
bool launch_some_workspaces(gm_recorder *r, int64_t most, int64_t bytes, gm_workspaces *workspaces);

/* A loop over [0, n) with these arguments, a pointer. */
#define LAUNCH(r, name, args, n, grain, flags) (r)->launch(r, (r)->kernels->name, args, sizeof *(args), n, grain, flags)

static inline int64_t type_bytes(int type) {
    static const int8_t bytes[GM_T_COUNT] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8};
    return bytes[type];
}
#endif
