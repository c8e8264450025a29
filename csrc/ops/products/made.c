/* made.c - products of float32 rows that are normed, and brought into the form that matrices multiply, as they are
 * read: one operation, so that a device may do all of it at once. Which of them are normed is said by whoever makes the
 * node; as the processor does it, the bits are those of the operations one by one. */
#include <string.h>
#include "ops/products/packed.h"

enum { IN_X, IN_NORM, IN_RESIDUAL, IN_MATRICES, INPUTS = IN_MATRICES + 2 * GM_PRODUCTS };
enum { GLU_GATE = IN_NORM + 1, GLU_UP, GLU_INPUTS };
typedef struct {
    float eps;
    int32_t type; /* what rows become: float32, bfloat16 or GM_PACKED activations */
    int32_t prompt;
} made_param;
#define MADE_FIELDS(type_, at)                                                                                         \
    {FIELD_FLOAT, offsetof(type_, at.eps), "eps", 1}, {FIELD_INT, offsetof(type_, at.type), "dtype", 1},               \
        {FIELD_INT, offsetof(type_, at.prompt), "prompt", 1}
typedef struct {
    made_param made;
    int32_t count;
} products_param;
static const gm_field products_fields[] = {
    MADE_FIELDS(products_param, made), {FIELD_INT, offsetof(products_param, count), "count", 1}, {0}};
typedef struct {
    made_param made;
    int32_t gelu, out_type;
} made_glu_param;
static const gm_field made_glu_fields[] = {MADE_FIELDS(made_glu_param, made),
                                           {FIELD_INT, offsetof(made_glu_param, gelu), "gelu", 1},
                                           {FIELD_INT, offsetof(made_glu_param, out_type), "out_dtype", 1},
                                           {0}};

static gm_status check_rows_made(const char *op, const gm_array *x, const gm_array *norm) {
    char a[128], b[128];
    if (x->dtype != GM_FLOAT32 || x->ndim != 2) {
        array_text(x, a);
        return gm_fail(GM_ESHAPE, "%s: x is %s, expected float32 [n, k]", op, a);
    }
    if (!array_is_none(norm) && (norm->dtype != GM_FLOAT32 || norm->ndim != 1 || norm->shape[0] != x->shape[1])) {
        array_text(x, a);
        array_text(norm, b);
        return gm_fail(GM_ESHAPE, "%s: the norm's weight is %s for x %s", op, b, a);
    }
    return GM_OK;
}
static gm_row_form made_form(const made_param *p) {
    return p->type == GM_PACKED ? GM_FORM_INT8 : p->type == GM_BFLOAT16 ? GM_FORM_BF16 : GM_FORM_F32;
}
static gm_status made_rows_of(gm_queue *q, gm_array *const *in, const made_param *p, gm_made_rows *rows) {
    rows->eps = p->eps;
    rows->form = made_form(p);
    GM_TRY(float_operand(q, in[IN_X], &rows->x));
    return array_is_none(in[IN_NORM]) ? GM_OK : float_operand(q, in[IN_NORM], &rows->norm);
}
/* The same by operations. */
static gm_array *made_rows(gm_scope *s, gm_array *const *in, const made_param *p) {
    gm_array *x = array_is_none(in[IN_NORM]) ? in[IN_X] : gm_rms_norm(s, in[IN_X], in[IN_NORM], p->eps);
    return p->type == GM_PACKED ? gm_quantize_activations(s, x) : gm_astype(s, x, (gm_dtype)p->type);
}

/* ---- up to three products ---- */
static gm_status products_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const products_param *p = param;
    const gm_array *x = in[IN_X], *residual = in[IN_RESIDUAL];
    (void)n_in;
    GM_TRY(check_rows_made("packed_products", x, in[IN_NORM]));
    for (int i = 0; i < p->count; i++) {
        const gm_array *w = in[IN_MATRICES + 2 * i], *bias = in[IN_MATRICES + 2 * i + 1];
        GM_TRY(check_packed_product("packed_products", x, made_form(&p->made), w));
        spec_like(&out[i], x, GM_FLOAT32);
        out[i].shape[1] = w->shape[0];
        GM_TRY(check_packed_terms("packed_products", x, w, bias, i ? GM_NONE : residual));
    }
    return GM_OK;
}

static gm_status products_eval(gm_array *out, gm_queue *q) {
    const products_param *p = out->param;
    gm_packed_products_args a = {.count = p->count, .prompt = p->made.prompt};
    const gm_array *residual = out->in[IN_RESIDUAL];
    GM_TRY(made_rows_of(q, out->in, &p->made, &a.rows));
    if (!array_is_none(residual))
        GM_TRY(float_operand(q, residual, &a.residual));
    for (int i = 0; i < p->count; i++) {
        const gm_array *bias = out->in[IN_MATRICES + 2 * i + 1];
        gm_array *product = array_output(out, i);
        a.parts[i].weight = matrix_of(out->in[IN_MATRICES + 2 * i]);
        if (!array_is_none(bias))
            GM_TRY(float_operand(q, bias, &a.parts[i].bias));
        GM_TRY(i || array_is_none(residual) ? array_alloc(product, q) : array_alloc_like(product, q, IN_RESIDUAL));
        a.parts[i].out = array_ptr(product);
    }
    return DISPATCH_ARGS(q, packed_products, out->in[IN_X]->shape[0], &a);
}

/* Of models that are run: what is trained takes the operations one by one. */
const gm_op packed_products_op = {.name = "packed_products",
                                  .n_in = INPUTS,
                                  .n_out = -1,
                                  .nondiff = (1u << INPUTS) - 1,
                                  .optional = (1u << INPUTS) - 1 - (1u << IN_X) - (1u << IN_MATRICES),
                                  .param_size = sizeof(products_param),
                                  .fields = products_fields,
                                  .infer = products_infer,
                                  .eval = products_eval};

gm_array *gm_packed_products(gm_scope *s, const gm_made_inputs *rows, gm_array *const *weights, gm_array *const *biases,
                             int count, gm_array *residual, gm_array **out) {
    gm_array *in[INPUTS] = {rows->x, rows->norm, residual};
    const products_param p = {{rows->eps, (int32_t)rows->type, scope_is_prompt(s)}, count};
    if (count < 1 || count > GM_PRODUCTS)
        return gm_fail(GM_EVALUE, "packed_products: %d matrices, expected 1 to %d", count, GM_PRODUCTS), NULL;
    for (int i = 0; i < GM_PRODUCTS; i++) {
        in[IN_MATRICES + 2 * i] = i < count ? weights[i] : GM_NONE;
        in[IN_MATRICES + 2 * i + 1] = i < count ? biases[i] : GM_NONE;
    }
    for (int i = 0; i < count; i++)
        out[i] = NULL;
    for (int i = 0; i < INPUTS; i++)
        if (!in[i])
            return NULL;
    return array_nodes(s, &packed_products_op, in, INPUTS, &p, sizeof p, count, out) == GM_OK ? out[0] : NULL;
}

/* ---- a gated linear unit ---- */
static gm_status made_glu_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const made_glu_param *p = param;
    (void)n_in;
    GM_TRY(check_rows_made("made_glu", in[IN_X], in[IN_NORM]));
    GM_TRY(check_packed_product("made_glu", in[IN_X], made_form(&p->made), in[GLU_GATE]));
    GM_TRY(check_packed_product("made_glu", in[IN_X], made_form(&p->made), in[GLU_UP]));
    return packed_glu_spec("made_glu", in[IN_X], in[GLU_GATE], in[GLU_UP], (gm_dtype)p->out_type, out);
}

static gm_status made_glu_eval(gm_array *out, gm_queue *q) {
    const made_glu_param *p = out->param;
    gm_made_glu_args a = {.glu = {.out_form = packed_form(out),
                                  .gate = matrix_of(out->in[GLU_GATE]),
                                  .up = matrix_of(out->in[GLU_UP]),
                                  .kind = p->gelu ? GM_GLU_GELU : GM_GLU_SILU,
                                  .prompt = p->made.prompt}};
    GM_TRY(made_rows_of(q, out->in, &p->made, &a.rows));
    GM_TRY(array_alloc(out, q));
    a.glu.out = array_ptr(out);
    return DISPATCH_ARGS(q, made_glu, out->in[IN_X]->shape[0], &a);
}

static gm_array *made_glu_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    const made_glu_param *p = param;
    (void)n_in;
    return gm_packed_glu(s, made_rows(s, in, &p->made), in[GLU_GATE], in[GLU_UP], p->gelu != 0, (gm_dtype)p->out_type);
}

const gm_op made_glu_op = {.name = "made_glu",
                           .n_in = GLU_INPUTS,
                           .n_out = 1,
                           .nondiff = 1u << GLU_GATE | 1u << GLU_UP,
                           .optional = 1u << IN_NORM,
                           .param_size = sizeof(made_glu_param),
                           .fields = made_glu_fields,
                           .infer = made_glu_infer,
                           .eval = made_glu_eval,
                           .compose = made_glu_compose};

gm_array *gm_made_glu(gm_scope *s, const gm_made_inputs *rows, gm_array *gate, gm_array *up, bool gelu, gm_dtype type) {
    gm_array *in[GLU_INPUTS] = {rows->x, rows->norm, gate, up};
    const made_glu_param p = {{rows->eps, (int32_t)rows->type, scope_is_prompt(s)}, gelu, (int32_t)type};
    if (type != GM_FLOAT32 && type != GM_BFLOAT16 && type != GM_PACKED)
        return gm_fail(GM_EVALUE, "made_glu: a result in %s, expected float32, bfloat16 or packed activations",
                       gm_dtype_name(type)),
               NULL;
    return array_node(s, &made_glu_op, in, GLU_INPUTS, &p);
}
