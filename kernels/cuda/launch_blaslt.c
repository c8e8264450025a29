/* launch_blaslt.c - dense products by cuBLASLt. A shape is asked about once: which algorithm, of those that add in one
 * order however often they run, follows from the shape, the type and whether all is aligned alone. The library's
 * matrices lie by columns: out is its turned self, d = a b with w as a and x as b. */
#include <stdlib.h>
#include <string.h>
#include "cuda/blaslt.h"
#include "cuda/device_state.h"
#include "cuda/launch.h"

#define FEW (1 << 20)                     /* products of numbers, which own kernels do as soon, and begin sooner */
#define MOST_WORKSPACE ((size_t)32 << 20) /* as the library's own users give it on this hardware */
#define MOST_CALLS 16                     /* for one product of many matrices */
#define PARTS 64                          /* of a sum along k, each of which has an element of workspace for its own */

typedef enum { ADD_NOTHING, ADD_MATRIX, ADD_BIAS } addition; /* ADD_BIAS: one row to all */
typedef struct {
    int64_t rows, columns, k, batch;
    int64_t x_step, w_step, out_step, add_step; /* from line to line */
    int64_t x_matrix, w_matrix, out_matrix, add_matrix;
    int32_t type, out_type;
    bool x_along_lines, w_along_lines, aligned;
    uint8_t add;
} product_shape;
typedef struct {
    product_shape shape;
    bool asked, fits; /* fits: the library has an algorithm */
    blaslt_desc *desc;
    blaslt_layout *a, *b, *c, *d;
    blaslt_algorithm algorithm;
} product_plan;
#define PLANS 256
struct cuda_products {
    blaslt_handle *handle;
    product_plan plans[PLANS]; /* a shape has one place, which it may lose to another */
};

/* ---- which products the library takes ---- */
/* An operand as lines of k elements side by side, or the other way round, and the step from one to the next. */
static bool lies_dense(int64_t lines, int64_t k, int64_t line_step, int64_t k_step, bool *along_lines, int64_t *step) {
    *along_lines = !((k_step == 1 || k == 1) && (lines == 1 || line_step >= k));
    *step = *along_lines ? (k == 1 ? lines : k_step) : (lines == 1 ? k : line_step);
    return !*along_lines || ((line_step == 1 || lines == 1) && (k == 1 || k_step >= lines));
}
static bool add_fits(const cuda_product_args *p, product_shape *s) {
    if (!p->add) return true;
    if (p->add_column != 1 && p->columns > 1) return false;
    s->add = p->add_row == 0 && p->rows > 1 ? ADD_BIAS : ADD_MATRIX;
    s->add_step = s->add == ADD_BIAS || p->rows == 1 ? p->columns : p->add_row;
    bool same = true;
    for (int d = 0; d < p->batch.ndim; d++) same = same && (p->add_steps.at[d] == 0 || p->batch.shape[d] == 1);
    if (s->add == ADD_BIAS) return p->beta == 1 && same && is_aligned(p->add, 16);
    return s->add_step >= p->columns;
}
/* The library takes matrices that are one step apart, which one dimension of a batch is: the longest. Each of the
 * others is a call, of which there shall be few. */
static int longest(const cuda_shape *batch) {
    int found = 0;
    for (int d = 1; d < batch->ndim; d++)
        if (batch->shape[d] > batch->shape[found]) found = d;
    return found;
}
/* The step from matrix to matrix of an operand, in the order of the batch; false: it is not one. */
static bool one_step(const cuda_shape *batch, const cuda_strides *steps, int64_t *step) {
    int64_t after = 0;
    bool first = true;
    *step = 0;
    for (int d = batch->ndim - 1; d >= 0; d--) {
        if (batch->shape[d] == 1) continue;
        if (first) *step = after = steps->at[d];
        else if (steps->at[d] != after) return false;
        first = false;
        after *= batch->shape[d];
    }
    return true;
}
static int64_t calls_of(const cuda_shape *batch) { return batch->count / batch->shape[longest(batch)]; }
static bool batch_fits(const cuda_product_args *p, product_shape *s) {
    if (p->batch.count == 0 || calls_of(&p->batch) > MOST_CALLS) return false;
    const int along = longest(&p->batch);
    s->batch = p->batch.shape[along];
    if (s->batch == 1) return true;
    s->x_matrix = p->x_steps.at[along];
    s->w_matrix = p->w_steps.at[along];
    s->out_matrix = p->out_steps.at[along];
    s->add_matrix = p->add ? p->add_steps.at[along] : 0;
    return true;
}
static bool all_aligned(const cuda_product_args *p, const product_shape *s) {
    const int64_t each = 16 / type_bytes(p->type);
    int64_t steps = s->x_step | s->w_step | s->out_step | s->add_step;
    for (int d = 0; d < p->batch.ndim; d++)
        if (p->batch.shape[d] > 1)
            steps |= p->x_steps.at[d] | p->w_steps.at[d] | p->out_steps.at[d] | (p->add ? p->add_steps.at[d] : 0);
    return is_aligned(p->out, 16) && is_aligned(p->x, 16) && is_aligned(p->w, 16) && is_aligned(p->add, 16) &&
           (steps & (each - 1)) == 0;
}
/* The operands of call i. */
static cuda_product_args call_of(cuda_product_args p, int64_t i) {
    const int along = longest(&p.batch);
    int64_t out = 0, x = 0, w = 0, add = 0;
    for (int d = p.batch.ndim - 1; d >= 0; d--) {
        if (d == along) continue;
        const int64_t at = i % p.batch.shape[d];
        i /= p.batch.shape[d];
        out += at * p.out_steps.at[d];
        x += at * p.x_steps.at[d];
        w += at * p.w_steps.at[d];
        add += at * p.add_steps.at[d];
    }
    const int64_t item = type_bytes(p.type);
    p.out = (char *)p.out + out * item;
    p.x = (const char *)p.x + x * item;
    p.w = (const char *)p.w + w * item;
    if (p.add) p.add = (const char *)p.add + add * item;
    return p;
}
static bool shape_of(const cuda_product_args *p, product_shape *s) {
    memset(s, 0, sizeof *s);
    if (!is_float_type(p->type) || p->x_index || p->w_index || p->rows <= 0 || p->columns <= 0 || p->k <= 0 ||
        p->rows > INT32_MAX || p->columns > INT32_MAX || p->k > INT32_MAX || p->batch.count > INT32_MAX)
        return false;
    if ((double)p->rows * (double)p->columns * (double)p->k * (double)p->batch.count < FEW) return false;
    s->rows = p->rows;
    s->columns = p->columns;
    s->k = p->k;
    s->type = s->out_type = p->type;
    s->out_step = p->rows == 1 ? p->columns : p->out_row;
    if ((p->out_column != 1 && p->columns > 1) || s->out_step < p->columns || !batch_fits(p, s) || !add_fits(p, s) ||
        !lies_dense(p->rows, p->k, p->x_row, p->x_k, &s->x_along_lines, &s->x_step) ||
        !lies_dense(p->columns, p->k, p->w_column, p->w_k, &s->w_along_lines, &s->w_step))
        return false;
    s->aligned = all_aligned(p, s);
    return true;
}
static size_t workspace_of(const product_shape *s) {
    const double wanted = (double)(s->rows * s->columns) * (double)s->batch * PARTS * sizeof(float);
    return wanted < (double)MOST_WORKSPACE ? (size_t)wanted : MOST_WORKSPACE;
}
/* ---- operands that are copied: of small products by two steps, as those of heads of sequences are, the calls take
 * longer than one call for all of them and the copies that bring matrices one step apart ---- */
#define SMALL ((int64_t)1 << 28)       /* multiplications of a call */
#define MOST_COPIED ((size_t)64 << 20) /* bytes */
#define COPY_ALIGNED(bytes) (((bytes) + 255) & ~(size_t)255)
typedef struct {
    cuda_product_args p; /* the product that is made, of one call */
    bool x, w;           /* which are copied; first x, then w */
    size_t x_bytes, bytes;
} one_batch;

/* All the matrices one step apart, with copies to `room`; false: as many calls as before. */
static bool batch_at_once(const cuda_product_args *p, char *room, one_batch *o) {
    const cuda_shape *batch = &p->batch;
    const int64_t calls = batch->count ? calls_of(batch) : 0;
    int64_t out, x, w, add = 0;
    if (calls <= 1 || p->x_index || p->w_index || batch->count > INT32_MAX || !one_step(batch, &p->out_steps, &out) ||
        (p->add && !one_step(batch, &p->add_steps, &add)))
        return false;
    *o = (one_batch){.p = *p, .x = !one_step(batch, &p->x_steps, &x), .w = !one_step(batch, &p->w_steps, &w)};
    const double products = (double)p->rows * (double)p->columns * (double)p->k * (double)(batch->count / calls);
    if ((o->x || o->w) && products > SMALL) return false;
    const double item = (double)type_bytes(p->type) * (double)batch->count * (double)p->k;
    if (item * (double)((o->x ? p->rows : 0) + (o->w ? p->columns : 0)) > (double)MOST_COPIED) return false;
    o->x_bytes = o->x ? COPY_ALIGNED((size_t)item * (size_t)p->rows) : 0;
    o->bytes = o->x_bytes + (o->w ? COPY_ALIGNED((size_t)item * (size_t)p->columns) : 0);
    if (o->x) {
        const bool along_k = p->x_k == 1;
        o->p.x = room;
        o->p.x_row = along_k ? p->k : 1;
        o->p.x_k = along_k ? 1 : p->rows;
        x = p->rows * p->k;
    }
    if (o->w) {
        const bool along_k = p->w_k == 1;
        o->p.w = room + o->x_bytes;
        o->p.w_column = along_k ? p->k : 1;
        o->p.w_k = along_k ? 1 : p->columns;
        w = p->columns * p->k;
    }
    o->p.batch = (cuda_shape){.count = batch->count, .ndim = 1, .shape = {batch->count}};
    o->p.out_steps.at[0] = out;
    o->p.x_steps.at[0] = x;
    o->p.w_steps.at[0] = w;
    o->p.add_steps.at[0] = add;
    return true;
}
/* [lines][k] of each matrix, or [k][lines] where those are side by side. */
static void copy_matrices(const cuda_product_args *p, const void *to, const void *from, const cuda_strides *steps,
                          int64_t lines, int64_t line_step, int64_t k_step) {
    const int n = p->batch.ndim, k = n + (k_step == 1), line = n + (k_step != 1);
    int64_t shape[CUDA_DIMS + 2], in[CUDA_DIMS + 2], out[CUDA_DIMS + 2], count = 1;
    for (int d = 0; d < n; d++) {
        shape[d] = p->batch.shape[d];
        in[d] = steps->at[d];
    }
    shape[k] = p->k;
    in[k] = k_step;
    shape[line] = lines;
    in[line] = line_step;
    for (int d = n + 1; d >= 0; d--) {
        out[d] = count;
        count *= shape[d];
    }
    const gm_copy_args copy = {(void *)to, from, p->type, p->type, n + 2, shape, out, in};
    cuda_start_copy(&copy, count);
}

size_t blaslt_workspace(const cuda_product_args *p) {
    product_shape s;
    one_batch o;
    const bool at_once = batch_at_once(p, NULL, &o);
    return shape_of(at_once ? &o.p : p, &s) && blaslt_open() ? workspace_of(&s) + (at_once ? o.bytes : 0) : 0;
}

/* ---- what the library is told ---- */
static blaslt_layout *new_layout(const cuda_blaslt *l, const product_shape *s, int type, int64_t rows, int64_t columns,
                                 int64_t step, int64_t matrix) {
    static const int types[] = {BLASLT_TYPE_F16, BLASLT_TYPE_BF16, BLASLT_TYPE_F32};
    blaslt_layout *made = NULL;
    const int32_t batch = (int32_t)s->batch;
    if (l->layout_create(&made, types[float_index(type)], (uint64_t)rows, (uint64_t)columns, step) != BLASLT_SUCCESS)
        return NULL;
    if (l->layout_set(made, BLASLT_LAYOUT_BATCH, &batch, sizeof batch) == BLASLT_SUCCESS &&
        l->layout_set(made, BLASLT_LAYOUT_BATCH_STEP, &matrix, sizeof matrix) == BLASLT_SUCCESS)
        return made;
    l->layout_destroy(made);
    return NULL;
}
static void forget(const cuda_blaslt *l, product_plan *plan) {
    blaslt_layout *const layouts[] = {plan->a, plan->b, plan->c, plan->d};
    for (int i = 0; i < 4; i++)
        if (layouts[i]) l->layout_destroy(layouts[i]);
    if (plan->desc) l->desc_destroy(plan->desc);
    memset(plan, 0, sizeof *plan);
}
static bool describe(const cuda_blaslt *l, product_plan *plan) {
    const product_shape *s = &plan->shape;
    const int32_t turn_a = s->w_along_lines ? 0 : BLASLT_TURNED, turn_b = s->x_along_lines ? BLASLT_TURNED : 0;
    const uint32_t epilogue = BLASLT_EPILOGUE_BIAS;
    const bool adds = s->add == ADD_MATRIX;
    if (l->desc_create(&plan->desc, BLASLT_COMPUTE_F32, BLASLT_TYPE_F32) != BLASLT_SUCCESS ||
        l->desc_set(plan->desc, BLASLT_DESC_TURN_A, &turn_a, sizeof turn_a) != BLASLT_SUCCESS ||
        l->desc_set(plan->desc, BLASLT_DESC_TURN_B, &turn_b, sizeof turn_b) != BLASLT_SUCCESS ||
        (s->add == ADD_BIAS &&
         l->desc_set(plan->desc, BLASLT_DESC_EPILOGUE, &epilogue, sizeof epilogue) != BLASLT_SUCCESS))
        return false;
    plan->a = s->w_along_lines ? new_layout(l, s, s->type, s->columns, s->k, s->w_step, s->w_matrix)
                               : new_layout(l, s, s->type, s->k, s->columns, s->w_step, s->w_matrix);
    plan->b = s->x_along_lines ? new_layout(l, s, s->type, s->rows, s->k, s->x_step, s->x_matrix)
                               : new_layout(l, s, s->type, s->k, s->rows, s->x_step, s->x_matrix);
    plan->d = new_layout(l, s, s->out_type, s->columns, s->rows, s->out_step, s->out_matrix);
    plan->c = new_layout(l, s, s->out_type, s->columns, s->rows, adds ? s->add_step : s->out_step,
                         adds ? s->add_matrix : s->out_matrix);
    return plan->a && plan->b && plan->c && plan->d;
}
static bool choose(const cuda_blaslt *l, blaslt_handle *handle, product_plan *plan) {
    const bool prompt = plan->shape.type != plan->shape.out_type;
    const uint64_t workspace = prompt ? MOST_WORKSPACE : workspace_of(&plan->shape);
    /* Each adds the parts of a sum in one order; all but one keep them in the type of the result. */
    const uint32_t reduction = prompt                         ? BLASLT_REDUCTION_NONE
                               : plan->shape.type == GM_T_F32 ? BLASLT_REDUCTION_ANY
                                                              : BLASLT_REDUCTION_COMPUTE_TYPE;
    const uint32_t alignment = plan->shape.aligned ? 16 : (uint32_t)type_bytes(plan->shape.type);
    blaslt_preference *preference = NULL;
    blaslt_choice choice = {.status = BLASLT_NOT_SUPPORTED};
    int found = 0;
    if (l->preference_create(&preference) != BLASLT_SUCCESS) return false;
    bool told = l->preference_set(preference, BLASLT_PREFER_WORKSPACE, &workspace, sizeof workspace) == 0 &&
                l->preference_set(preference, BLASLT_PREFER_REDUCTION, &reduction, sizeof reduction) == 0;
    for (int i = 0; i < 4; i++)
        told = told && l->preference_set(preference, BLASLT_PREFER_ALIGNMENT_A + i, &alignment, sizeof alignment) == 0;
    if (told && l->choose(handle, plan->desc, plan->a, plan->b, plan->c, plan->d, preference, 1, &choice, &found) != 0)
        found = 0;
    l->preference_destroy(preference);
    plan->algorithm = choice.algorithm;
    return found > 0 && choice.status == BLASLT_SUCCESS && choice.workspace <= workspace;
}

/* ---- products ---- */
static struct cuda_products *products_of(const cuda_blaslt *l, gm_device_state *d) {
    if (d->products) return d->products;
    struct cuda_products *made = calloc(1, sizeof *made);
    if (made && l->create(&made->handle) != BLASLT_SUCCESS) made->handle = NULL; /* own kernels go on */
    return d->products = made;
}
static bool set_bias(const cuda_blaslt *l, const product_plan *plan, const void *bias) {
    return plan->shape.add != ADD_BIAS || l->desc_set(plan->desc, BLASLT_DESC_BIAS, &bias, sizeof bias) == 0;
}
/* NULL: the library has nothing for this shape. */
static product_plan *plan_of(const cuda_blaslt *l, struct cuda_products *all, const product_shape *s,
                             const void *bias) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof *s; i++) hash = (hash ^ ((const uint8_t *)s)[i]) * 0x100000001b3ull;
    product_plan *plan = &all->plans[(hash >> 32) % PLANS];
    if (plan->asked && memcmp(&plan->shape, s, sizeof *s) == 0) return plan->fits ? plan : NULL;
    forget(l, plan);
    plan->shape = *s;
    plan->asked = true;
    plan->fits = describe(l, plan) && set_bias(l, plan, bias) && choose(l, all->handle, plan);
    return plan->fits ? plan : NULL;
}
bool blaslt_product(const cuda_product_args *given, float scale, void *workspace) {
    gm_device_state *d = cuda_issuing();
    const cuda_blaslt *l = workspace ? blaslt_open() : NULL;
    product_shape s;
    one_batch o;
    const bool at_once = l && batch_at_once(given, workspace, &o);
    const cuda_product_args *p = at_once ? &o.p : given;
    if (!d || !l || !shape_of(p, &s)) return false;
    struct cuda_products *all = products_of(l, d);
    const product_plan *plan = all && all->handle ? plan_of(l, all, &s, p->add) : NULL;
    if (!plan) return false;
    if (at_once) {
        if (o.x) copy_matrices(given, p->x, given->x, &given->x_steps, p->rows, given->x_row, given->x_k);
        if (o.w) copy_matrices(given, p->w, given->w, &given->w_steps, p->columns, given->w_column, given->w_k);
        workspace = (char *)workspace + o.bytes;
    }
    const float alpha = p->add ? p->alpha : scale, beta = s.add == ADD_MATRIX ? p->beta : 0;
    for (int64_t i = 0; i < calls_of(&p->batch); i++) {
        const cuda_product_args one = call_of(*p, i);
        if (!set_bias(l, plan, one.add)) return false;
        const int status = l->multiply(all->handle, plan->desc, &alpha, one.w, plan->a, one.x, plan->b, &beta,
                                       s.add == ADD_MATRIX ? one.add : one.out, plan->c, one.out, plan->d,
                                       &plan->algorithm, workspace, workspace_of(&s), d->stream);
        if (status != BLASLT_SUCCESS) {
            cuda_library_failed("a product by cuBLASLt", l->status_text(status));
            break;
        }
    }
    return true;
}

/* ---- products of prompts' rows: a row's bits do not depend on how many there are ----
 * The algorithm of a weight is the one for PROMPT_ROWS of them, and it cuts no sum. */
#define PROMPT_ROWS 2048
#define LEAST_WEIGHT (1 << 16) /* elements of one that the library multiplies */

size_t blaslt_prompt_workspace(int64_t columns, int64_t k) {
    return columns * k >= LEAST_WEIGHT && blaslt_open() ? MOST_WORKSPACE : 0;
}
static product_shape prompt_shape(const cuda_prompt_args *p, int type, int64_t rows) {
    product_shape s;
    memset(&s, 0, sizeof s);
    s.rows = rows;
    s.columns = p->columns;
    s.k = s.x_step = s.w_step = p->k;
    s.batch = 1;
    s.out_step = p->out_step;
    s.add_step = p->residual ? p->out_step : p->columns;
    s.type = type;
    s.out_type = p->out_type;
    s.aligned = true;
    s.add = p->residual ? ADD_MATRIX : p->bias ? ADD_BIAS : ADD_NOTHING;
    return s;
}
/* The plan for so many rows and columns, with the algorithm of PROMPT_ROWS and of some of these columns. */
static product_plan *prompt_plan(const cuda_blaslt *l, struct cuda_products *all, const cuda_prompt_args *p,
                                 int64_t columns, int type) {
    cuda_prompt_args some = *p;
    some.columns = columns;
    if (p->out_step == p->columns) some.out_step = columns;
    const product_shape usual = prompt_shape(&some, type, PROMPT_ROWS), wanted = prompt_shape(p, type, p->rows);
    product_plan *plan = plan_of(l, all, &usual, p->bias);
    if (!plan || memcmp(&usual, &wanted, sizeof usual) == 0) return plan;
    const blaslt_algorithm algorithm = plan->algorithm;
    plan = plan_of(l, all, &wanted, p->bias);
    if (plan) plan->algorithm = algorithm;
    return plan;
}
bool blaslt_prompt(const cuda_prompt_args *p, int64_t columns, int type, void *workspace) {
    gm_device_state *d = cuda_issuing();
    const cuda_blaslt *l = workspace ? blaslt_open() : NULL;
    const bool aligned = p->out_step % 4 == 0 && p->k % 8 == 0 && is_aligned(p->out, 16) && is_aligned(p->x, 16) &&
                         is_aligned(p->w, 16) && is_aligned(p->bias, 16) && is_aligned(p->residual, 16);
    if (!d || !l || !aligned || p->up || (p->bias && p->residual)) return false;
    struct cuda_products *all = products_of(l, d);
    const product_plan *plan = all && all->handle ? prompt_plan(l, all, p, columns, type) : NULL;
    if (!plan || !set_bias(l, plan, p->bias)) return false;
    const float alpha = 1, beta = p->residual ? 1 : 0;
    const int status = l->multiply(all->handle, plan->desc, &alpha, p->w, plan->a, p->x, plan->b, &beta,
                                   p->residual ? p->residual : p->out, plan->c, p->out, plan->d, &plan->algorithm,
                                   workspace, MOST_WORKSPACE, d->stream);
    if (status != BLASLT_SUCCESS) cuda_library_failed("a product of a prompt by cuBLASLt", l->status_text(status));
    return true;
}
