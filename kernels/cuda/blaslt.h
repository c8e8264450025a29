/* blaslt.h - the functions of cuBLASLt that are used, declared here: nothing of CUDA is needed to build. NVIDIA's
 * library makes products of matrices faster than the kernels here; where it is not found, they make all. */
#ifndef GOMLX_CUDA_BLASLT_H
#define GOMLX_CUDA_BLASLT_H
#include "cuda/driver.h"

/* Numbers of the library's interface, which do not change. */
enum {
    BLASLT_SUCCESS = 0,
    BLASLT_NOT_SUPPORTED = 15,
    BLASLT_COMPUTE_F32 = 68, /* without TF32 */
    BLASLT_TYPE_F32 = 0,     /* cudaDataType_t */
    BLASLT_TYPE_F16 = 2,
    BLASLT_TYPE_BF16 = 14,
    BLASLT_LAYOUT_BATCH = 5, /* attributes of a layout */
    BLASLT_LAYOUT_BATCH_STEP = 6,
    BLASLT_DESC_TURN_A = 3, /* attributes of a product */
    BLASLT_DESC_TURN_B = 4,
    BLASLT_DESC_EPILOGUE = 7,
    BLASLT_DESC_BIAS = 8,
    BLASLT_TURNED = 1,
    BLASLT_EPILOGUE_BIAS = 4,
    BLASLT_PREFER_WORKSPACE = 1, /* what is asked of an algorithm */
    BLASLT_PREFER_REDUCTION = 3,
    BLASLT_PREFER_ALIGNMENT_A = 5, /* and of B, C, D after it */
    BLASLT_REDUCTION_NONE = 0,     /* sums are not cut */
    BLASLT_REDUCTION_COMPUTE_TYPE = 2,
    BLASLT_REDUCTION_ANY = 7,
};

typedef struct blaslt_handle blaslt_handle;
typedef struct blaslt_desc blaslt_desc;
typedef struct blaslt_layout blaslt_layout;
typedef struct blaslt_preference blaslt_preference;
typedef struct { uint64_t words[8]; } blaslt_algorithm;
typedef struct {
    blaslt_algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} blaslt_choice;

/* F(name here, symbol, arguments) */
#define BLASLT_FUNCTIONS(F)                                                                                            \
    F(create, "cublasLtCreate", (blaslt_handle * *handle))                                                             \
    F(desc_create, "cublasLtMatmulDescCreate", (blaslt_desc * *desc, int compute, int scale_type))                     \
    F(desc_set, "cublasLtMatmulDescSetAttribute",                                                                      \
      (blaslt_desc * desc, int attribute, const void *value, size_t bytes))                                            \
    F(desc_destroy, "cublasLtMatmulDescDestroy", (blaslt_desc * desc))                                                 \
    F(layout_create, "cublasLtMatrixLayoutCreate",                                                                     \
      (blaslt_layout * *layout, int type, uint64_t rows, uint64_t columns, int64_t step))                              \
    F(layout_set, "cublasLtMatrixLayoutSetAttribute",                                                                  \
      (blaslt_layout * layout, int attribute, const void *value, size_t bytes))                                        \
    F(layout_destroy, "cublasLtMatrixLayoutDestroy", (blaslt_layout * layout))                                         \
    F(preference_create, "cublasLtMatmulPreferenceCreate", (blaslt_preference * *preference))                          \
    F(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                                          \
      (blaslt_preference * preference, int attribute, const void *value, size_t bytes))                                \
    F(preference_destroy, "cublasLtMatmulPreferenceDestroy", (blaslt_preference * preference))                         \
    F(choose, "cublasLtMatmulAlgoGetHeuristic",                                                                        \
      (blaslt_handle * handle, blaslt_desc * desc, blaslt_layout * a, blaslt_layout * b, blaslt_layout * c,            \
       blaslt_layout * d, blaslt_preference * preference, int asked, blaslt_choice *choices, int *found))              \
    F(multiply, "cublasLtMatmul",                                                                                      \
      (blaslt_handle * handle, blaslt_desc * desc, const void *alpha, const void *a, blaslt_layout *a_layout,          \
       const void *b, blaslt_layout *b_layout, const void *beta, const void *c, blaslt_layout *c_layout, void *d,      \
       blaslt_layout *d_layout, const blaslt_algorithm *algorithm, void *workspace, size_t workspace_bytes,            \
       driver_stream *stream))

typedef struct {
#define BLASLT_MEMBER(name, symbol, arguments) int(*name) arguments;
    BLASLT_FUNCTIONS(BLASLT_MEMBER)
#undef BLASLT_MEMBER
    size_t (*version)(void);
    const char *(*status_text)(int status);
} cuda_blaslt;

/* The library, looked for at the first call: the one that GOMLX_CUDA_BLASLT names; else one that the process has
 * loaded, that of the package nvidia-cublas beside this one, one on the loader's path. NULL: there is none. */
const cuda_blaslt *blaslt_open(void);
/* Which one it is, or why there is none. */
void blaslt_says(char *out, size_t bytes);
#endif
