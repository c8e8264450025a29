/* fake_blaslt.c - a cuBLASLt that GOMLX_CUDA_BLASLT names: its products are loops over the memory of the fake driver
 * (fake_driver.c), which it asks to open it. It takes what the library takes and nothing else: matrices by columns,
 * descriptions and layouts that are alive, algorithms that it has chosen for them, all of the workspace, which it
 * overwrites. With GOMLX_FAKE_BLASLT=refuses it has no algorithm for anything.
 *
 * fake_blaslt_fail("multiply", 3) makes the third call of that kind from now on fail; "create" (of any object), "set"
 * and "choose" likewise; 0: none. fake_blaslt_count gives the calls so far, fake_blaslt_alive what was created and not
 * destroyed, handles aside. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, F16 = 2, BF16 = 14, COMPUTE_F32 = 68 };
enum { HANDLE = 0x4a11d1e, DESC, LAYOUT, PREFERENCE };

typedef struct {
    int is, turn_a, turn_b, epilogue;
    const void *bias;
} desc;
typedef struct {
    int is, type, batch;
    uint64_t rows, columns;
    int64_t step, matrix;
} layout;
typedef struct {
    int is;
    uint64_t workspace;
    uint32_t reduction, alignments[4];
} preference;
typedef struct { uint64_t words[8]; } algorithm;
typedef struct {
    algorithm chosen;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} choice;

typedef enum { CREATE, SET, CHOOSE, MULTIPLY, KINDS } call_kind;
static const char *const kinds[KINDS] = {"create", "set", "choose", "multiply"};
static long fail_at[KINDS], calls[KINDS], alive;

EXPORT void fake_blaslt_fail(const char *what, long nth) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(what, kinds[i]) == 0)
            fail_at[i] = nth ? calls[i] + nth : 0;
}
EXPORT long fake_blaslt_count(const char *what) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(what, kinds[i]) == 0)
            return calls[i];
    return -1;
}
EXPORT long fake_blaslt_alive(void) { return alive; }
static int fails(call_kind kind, int error) { return ++calls[kind] == fail_at[kind] ? error : SUCCESS; }

/* ---- descriptions ---- */
static int make(void **out, size_t bytes, int is) {
    const int error = fails(CREATE, ALLOC_FAILED);
    int *made = error ? NULL : calloc(1, bytes);
    if (!made)
        return ALLOC_FAILED;
    *made = is;
    *out = made;
    alive += is != HANDLE;
    return SUCCESS;
}
static int drop(void *what, int is) {
    if (!what || *(int *)what != is)
        abort();
    *(int *)what = 0;
    free(what);
    alive--;
    return SUCCESS;
}
static int put(void *to, size_t expected, const void *value, size_t bytes) {
    const int error = fails(SET, INVALID);
    if (error || bytes != expected)
        return INVALID;
    memcpy(to, value, bytes);
    return SUCCESS;
}
EXPORT size_t cublasLtGetVersion(void) { return 130102; }
EXPORT const char *cublasLtGetStatusString(int status) {
    return status == EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_INVALID_VALUE";
}
EXPORT int cublasLtCreate(void **handle) { return make(handle, sizeof(int), HANDLE); }
EXPORT int cublasLtMatmulDescCreate(void **made, int compute, int scale_type) {
    return compute == COMPUTE_F32 && scale_type == F32 ? make(made, sizeof(desc), DESC) : INVALID;
}
EXPORT int cublasLtMatmulDescDestroy(void *d) { return drop(d, DESC); }
EXPORT int cublasLtMatmulDescSetAttribute(desc *d, int attribute, const void *value, size_t bytes) {
    return attribute == 3   ? put(&d->turn_a, 4, value, bytes)
           : attribute == 4 ? put(&d->turn_b, 4, value, bytes)
           : attribute == 7 ? put(&d->epilogue, 4, value, bytes)
           : attribute == 8 ? put(&d->bias, sizeof d->bias, value, bytes)
                            : INVALID;
}
EXPORT int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t step) {
    const int error = step < (int64_t)rows ? INVALID : make(made, sizeof(layout), LAYOUT);
    if (!error)
        *(layout *)*made = (layout){LAYOUT, type, 1, rows, columns, step, 0};
    return error;
}
EXPORT int cublasLtMatrixLayoutDestroy(void *l) { return drop(l, LAYOUT); }
EXPORT int cublasLtMatrixLayoutSetAttribute(layout *l, int attribute, const void *value, size_t bytes) {
    return attribute == 5   ? put(&l->batch, 4, value, bytes)
           : attribute == 6 ? put(&l->matrix, 8, value, bytes)
                            : INVALID;
}
EXPORT int cublasLtMatmulPreferenceCreate(void **made) { return make(made, sizeof(preference), PREFERENCE); }
EXPORT int cublasLtMatmulPreferenceDestroy(void *p) { return drop(p, PREFERENCE); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(preference *p, int attribute, const void *value, size_t bytes) {
    return attribute == 1                     ? put(&p->workspace, 8, value, bytes)
           : attribute == 3                   ? put(&p->reduction, 4, value, bytes)
           : attribute >= 5 && attribute <= 8 ? put(&p->alignments[attribute - 5], 4, value, bytes)
                                              : INVALID;
}

/* ---- products ---- */
/* What a product is given, so that an algorithm is used for that alone; of prompts' rows for any number of them and of
 * the weight's. */
static uint64_t sum_of(const desc *d, const layout *a, const layout *b, const layout *c, const layout *out) {
    const layout *const all[] = {a, b, c, out};
    uint64_t sum = (uint64_t)(4 * d->turn_a + 2 * d->turn_b + d->epilogue);
    for (int i = 0; i < 4; i++) {
        const bool any = a->type != out->type, is_out = i > 1;
        const uint64_t words[] = {(uint64_t)all[i]->type,
                                  (uint64_t)all[i]->batch,
                                  any && is_out ? 0 : all[i]->rows,
                                  any ? 0 : all[i]->columns,
                                  any && is_out ? 0 : (uint64_t)all[i]->step,
                                  (uint64_t)all[i]->matrix};
        for (int w = 0; w < 6; w++)
            sum = sum * 31 + words[w];
    }
    return sum;
}
static bool fit(const desc *d, const layout *a, const layout *b, const layout *c, const layout *out) {
    const uint64_t rows = d->turn_a ? a->columns : a->rows, k = d->turn_a ? a->rows : a->columns;
    return rows == out->rows && k == (d->turn_b ? b->columns : b->rows) &&
           out->columns == (d->turn_b ? b->rows : b->columns) && c->rows == out->rows && c->columns == out->columns &&
           (a->type == out->type || out->type == F32) && b->type == a->type && c->type == out->type &&
           a->batch == out->batch && b->batch == out->batch && c->batch == out->batch;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(int *handle, desc *d, layout *a, layout *b, layout *c, layout *out,
                                          preference *p, int asked, choice *choices, int *found) {
    const char *mode = getenv("GOMLX_FAKE_BLASLT");
    const int error = fails(CHOOSE, NOT_SUPPORTED);
    *found = 0;
    if (error || (mode && strcmp(mode, "refuses") == 0))
        return NOT_SUPPORTED;
    /* Parts of sums of 16-bit numbers are to be float32. */
    if (*handle != HANDLE || asked != 1 ||
        p->reduction != (a->type != out->type ? 0
                         : out->type          ? 2
                                              : 7) ||
        !fit(d, a, b, c, out))
        return INVALID;
    choices[0] = (choice){.chosen = {{sum_of(d, a, b, c, out), p->alignments[0]}}, .workspace = p->workspace};
    *found = 1;
    return SUCCESS;
}

static float value(const char *p, int64_t i, int type) {
    uint32_t bits;
    float x;
    uint16_t half;
    if (type == F32)
        return memcpy(&x, p + 4 * i, 4), x;
    memcpy(&half, p + 2 * i, 2);
    if (type == F16) {
        _Float16 h;
        memcpy(&h, &half, 2);
        return (float)h;
    }
    bits = (uint32_t)half << 16;
    memcpy(&x, &bits, 4);
    return x;
}
static void put_value(char *p, int64_t i, float x, int type) {
    uint32_t bits;
    if (type == F32) {
        memcpy(p + 4 * i, &x, 4);
    } else if (type == F16) {
        const _Float16 h = (_Float16)x;
        memcpy(p + 2 * i, &h, 2);
    } else {
        memcpy(&bits, &x, 4);
        bits = x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        memcpy(p + 2 * i, &bits, 2);
    }
}
typedef struct {
    const desc *d;
    const char *a, *b, *c;
    char *out, *workspace;
    const layout *la, *lb, *lc, *lout;
    float alpha, beta;
    size_t workspace_bytes;
} product;
static void one_matrix(const product *p, int64_t m) {
    const int type = p->la->type, out_type = p->lout->type;
    const int64_t k = (int64_t)(p->d->turn_a ? p->la->rows : p->la->columns);
    for (int64_t j = 0; j < (int64_t)p->lout->columns; j++)
        for (int64_t i = 0; i < (int64_t)p->lout->rows; i++) {
            double sum = 0;
            for (int64_t s = 0; s < k; s++)
                sum += (double)value(
                           p->a, m * p->la->matrix + (p->d->turn_a ? s + i * p->la->step : i + s * p->la->step), type) *
                       (double)value(
                           p->b, m * p->lb->matrix + (p->d->turn_b ? j + s * p->lb->step : s + j * p->lb->step), type);
            float x = p->alpha * (float)sum;
            if (p->beta != 0)
                x += p->beta * value(p->c, m * p->lc->matrix + i + j * p->lc->step, out_type);
            if (p->d->epilogue == 4)
                x += value(p->d->bias, i, out_type);
            put_value(p->out, m * p->lout->matrix + i + j * p->lout->step, x, out_type);
        }
}
static void multiply(void *of) {
    const product *p = of;
    memset(p->workspace, 0xa5, p->workspace_bytes);
    for (int64_t m = 0; m < p->lout->batch; m++)
        one_matrix(p, m);
}
static bool aligned(const void *p, uint64_t bytes) { return (uintptr_t)p % bytes == 0; }
EXPORT int cublasLtMatmul(int *handle, desc *d, const float *alpha, const void *a, layout *la, const void *b,
                          layout *lb, const float *beta, const void *c, layout *lc, void *out, layout *lout,
                          const algorithm *chosen, void *workspace, size_t workspace_bytes, void *stream) {
    void (*work)(void (*)(void *), void *) = NULL;
    void *driver = dlopen(getenv("GOMLX_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = driver ? dlsym(driver, "fake_work") : NULL;
    const int error = fails(MULTIPLY, EXECUTION_FAILED);
    const uint64_t bytes = chosen->words[1];
    memcpy(&work, &symbol, sizeof symbol);
    if (error)
        return error;
    if (!work || *handle != HANDLE || d->is != DESC || la->is != LAYOUT || lb->is != LAYOUT || lc->is != LAYOUT ||
        lout->is != LAYOUT || chosen->words[0] != sum_of(d, la, lb, lc, lout) || !workspace || !stream ||
        !aligned(a, bytes) || !aligned(b, bytes) || !aligned(c, bytes) || !aligned(out, bytes))
        return INVALID;
    product p = {d, a, b, c, out, workspace, la, lb, lc, lout, *alpha, *beta, workspace_bytes};
    work(multiply, &p);
    return SUCCESS;
}
