/* launch.h - what the launchers (launch_*.c) share. A contract of this device records one launcher, whose range is the
 * contract's own; when it is issued, the launcher chooses kernels and starts them. It reads shapes, strides and lists,
 * and never what pointers to data point to: that is memory of the device. */
#ifndef GOMLX_CUDA_LAUNCH_H
#define GOMLX_CUDA_LAUNCH_H
#include "cuda/args.h"
#include "device.h"

/* CUDA_first_PART is the number of a part's first kernel. */
typedef enum {
#define CUDA_PART(name) CUDA_first_##name, CUDA_before_##name = CUDA_first_##name - 1,
#define CUDA_KERNEL(name) CUDA_##name,
#include "cuda/kernels.def"
    CUDA_KERNELS
} cuda_kernel;

#define CONTRACT(name, range, doc) bool cuda_##name(gm_recorder *r, const gm_##name##_args *a, int64_t n);
#include "contracts.def"
#undef CONTRACT

/* Starts a kernel on the device that issues: blocks of `threads` threads, with `shared` bytes of memory each. Nothing
 * where there are no blocks, or after something failed; what fails is noted there. */
void cuda_start(cuda_kernel kernel, int64_t blocks, int threads, size_t shared, const void *params);
void cuda_start_grid(cuda_kernel kernel, const int64_t blocks[3], int threads, size_t shared, const void *params);
/* blocks: a multiple of `cluster`, at most 8, of which so many side by side have one another's memory; where
 * cuda_has_wgmma says so. */
void cuda_start_clusters(cuda_kernel kernel, int64_t blocks, int cluster, int threads, size_t shared,
                         const void *params);
/* Starts a step with those that come before and after it, or its own kernel `alone`, a block of CUDA_THREADS threads
 * with so many bytes of parameters, at most CUDA_STEP_PARAMS. */
void cuda_start_step(const cuda_step *step, cuda_kernel alone, const void *params, size_t bytes);
/* Whether the device that issues is of sm_90 and its kernels are of sm_90a. */
bool cuda_has_wgmma(void);
/* The most that a launch on the device that issues may ask for as `shared`: at least 96 KiB. */
size_t cuda_block_memory(void);
int64_t cuda_processors(void);  /* that the card has */
size_t cuda_whole_memory(void); /* of kernels that declare no memory of their own */
/* Bytes that cuBLASLt is to have for a product; 0: own kernels make it. */
size_t blaslt_workspace(const cuda_product_args *p);
/* Starts a product by cuBLASLt, as cuda_start does, times `scale` where nothing is added; false: it is for own kernels.
 */
bool blaslt_product(const cuda_product_args *p, float scale, void *workspace);
/* The same of prompts' rows, of a 16-bit type, with float32 out: the same answer for a weight however many rows, by the
 * algorithm of its first `columns`. */
size_t blaslt_prompt_workspace(int64_t columns, int64_t k);
bool blaslt_prompt(const cuda_prompt_args *p, int64_t columns, int type, void *workspace);
/* What no kernel takes, and was not known when it was recorded; the device says so at the next call. */
void cuda_refuse(const char *what);

/* Records launcher `name` for contract arguments, of so many dimensions that are not merged. */
#define CUDA_CONTRACT(name) CUDA_CONTRACT_OF(name, 0)
#define CUDA_CONTRACT_OF(name, ndim)                                                                                   \
    bool cuda_##name(gm_recorder *r, const gm_##name##_args *a, int64_t n) {                                           \
        if ((ndim) > CUDA_DIMS) return r->lack(r, MANY_DIMENSIONS);                                                    \
        return r->launch(r, launch_##name, a, sizeof *a, n, 0, 0);                                                     \
    }

static inline int64_t type_bytes(int type) {
    static const int8_t bytes[GM_T_COUNT] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8};
    return bytes[type];
}
static inline bool is_float_type(int type) { return type >= GM_T_F16 && type <= GM_T_F32; }
/* Of kernels that come for 1, 2, 4 and 8 bytes; of those that come for f16, bf16, f32. */
static inline int size_index(int64_t bytes) { return bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3; }
static inline int float_index(int type) { return type - GM_T_F16; }
static inline int64_t blocks_of(int64_t n, int64_t each) { return (n + each - 1) / each; }
static inline bool is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

/* What other work is made of: launch_products.c, launch_reductions.c, launch_elements.c. */
void cuda_start_product(const cuda_product_args *p);
void cuda_start_softmax(const gm_softmax_args *a, int64_t rows);
void cuda_start_rms_norm(const gm_rms_norm_args *a, int64_t rows);
void cuda_start_rounded_norm(const gm_rms_norm_args *a, int64_t rows); /* of float32, out bfloat16: the same, rounded */
void cuda_start_copy(const gm_copy_args *a, int64_t n);

/* Products of prompts' rows (launch_prompts.c), by the tensor cores, of matrices of 16 bits and quantised ones. */
static inline bool prompt_takes(const gm_matrix *w) { return w->format != GM_QUANT_f32 && w->k % 8 == 0; }
bool cuda_prompt_matmul(gm_recorder *r, const gm_packed_matmul_args *a, int64_t n);
bool cuda_prompt_glu(gm_recorder *r, const gm_packed_glu_args *a, int64_t n);
/* Rows of k float32, a multiple of eight, to bfloat16; and a fence. */
bool cuda_rounded_rows(gm_recorder *r, void *out, const float *x, int64_t n, int64_t k);
#define IN_ROWS "matrices in files"
/* Packed matrices (launch_rows.c). Values along k of a tile of a format (tiles.cuh); 0: it has none. */
int cuda_tile_values(int format);
/* Of a packed matrix: in tiles where rows and k are whole ones. */
cuda_format cuda_format_of(int format, int64_t rows, int64_t k);
#define TILED_FILL 132 /* blocks that a large card has at once, one on each of its processors */
/* Products of matrices in tiles (launch_tiled.c). Whether a matrix is in tiles, or in rows that make such. */
bool cuda_makes_tiles(const cuda_matrix *w, int64_t rows, int64_t k);
/* Starts one; false: it is for other kernels. */
bool cuda_start_tiled(cuda_packed_args *p);
/* Starts two of one token and the same rows of x, of two formats, in one launch; false: there is none for such. */
bool cuda_start_two(const cuda_packed_args *first, const cuda_packed_args *second);
/* The same of pairs of a token and an expert, which fit or do not: then only their pairs' matrices may change. */
bool cuda_fits_experts(cuda_packed_args *p);
void cuda_start_tiled_experts(const cuda_packed_args *p);
/* Products of matrices in tiles by several tokens (launch_several.c). The memory that they need of a recorder, to
 * p->made; false: the recorder failed. */
bool cuda_several_memory(gm_recorder *r, cuda_packed_args *p);
/* Starts such a product, of the format of that number in the kernels' orders; false: there is not the memory for it. */
bool cuda_start_several(const cuda_packed_args *p, int number);
/* Bytes of a block's memory that made_rows.cuh takes. */
static inline size_t cuda_norm_memory(const cuda_packed_args *p) {
    return p->norm ? (size_t)(TILED_PARTS * TILED_COLUMNS + p->k) * sizeof(float) : 0;
}
/* Rows of a packed matrix to [rows, k] in bfloat16. */
void cuda_start_rounded_rows(void *out, const gm_matrix *w, int64_t first, int64_t rows);

/* Dimensions that operands are walked over together, merged; at most CUDA_DIMS of them are in `shape`, the others are
 * `outer`: the launcher starts a kernel for each index of those. */
#define CUDA_OPERANDS 3
#define CUDA_WALK_DIMS 64
typedef struct {
    cuda_shape shape;
    cuda_strides steps[CUDA_OPERANDS];
    int outer_ndim;
    int64_t outer, outer_shape[CUDA_WALK_DIMS], outer_steps[CUDA_OPERANDS][CUDA_WALK_DIMS];
} cuda_walk;
/* False where there are no elements. */
bool walk_of(cuda_walk *w, int ndim, const int64_t *shape, int operands, const int64_t *const *strides);
/* Whether one kernel walks over an operand; a contract that counts on it lacks what does not fit. */
bool walk_fits(int ndim, const int64_t *shape, const int64_t *strides);
#define MANY_DIMENSIONS "more dimensions than a kernel walks over"
/* Offsets of the operands at an outer index. */
void walk_outer(const cuda_walk *w, int operands, int64_t index, int64_t *offsets);
/* Whether an operand is side by side, or one value. */
static inline bool walk_is_line(const cuda_walk *w, int operand) {
    return w->shape.ndim == 1 && (w->steps[operand].at[0] == 1 || w->shape.shape[0] == 1);
}
static inline bool walk_is_one(const cuda_walk *w, int operand) {
    for (int d = 0; d < w->shape.ndim; d++)
        if (w->shape.shape[d] > 1 && w->steps[operand].at[d] != 0) return false;
    return true;
}
#endif
