/* adam.c - a step of Adam for many parameters as one node: on a GPU, where launches of small parameters cost more than
 * their bytes, one launch. Each operation is rounded as if it were a node of its own. */
#include "ops/ops.h"

enum { IN_RATE, IN_SHRINK, IN_SCALE, IN_PARTS };     /* numbers, then four inputs of each parameter */
enum { IN_GRADIENT, IN_W, IN_M, IN_V, PART_INPUTS }; /* of one */
enum { OUT_W, OUT_M, OUT_V, PART_OUTPUTS };          /* of one */

typedef struct { float b1, c1, b2, c2, eps; } adam_param; /* c1: 1 - b1, c2: 1 - b2, rounded once */
static const gm_field adam_fields[] = {
    {FIELD_FLOAT, offsetof(adam_param, b1), "b1", 1},   {FIELD_FLOAT, offsetof(adam_param, c1), "1 - b1", 1},
    {FIELD_FLOAT, offsetof(adam_param, b2), "b2", 1},   {FIELD_FLOAT, offsetof(adam_param, c2), "1 - b2", 1},
    {FIELD_FLOAT, offsetof(adam_param, eps), "eps", 1}, {0}};

static int part_count(int n_in) { return (n_in - IN_PARTS) / PART_INPUTS; }

static bool is_like(const gm_array *a, const gm_array *b) {
    bool like = a->dtype == GM_FLOAT32 && a->ndim == b->ndim;
    for (int d = 0; d < a->ndim && like; d++)
        like = a->shape[d] == b->shape[d];
    return like;
}

static gm_status adam_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)param;
    for (int i = 0; i < IN_PARTS; i++)
        if (!array_is_none(in[i]) && (in[i]->dtype != GM_FLOAT32 || in[i]->ndim != 0))
            return gm_fail(GM_ESHAPE, "adam: numbers are float32 arrays without dimensions");
    for (int k = 0; k < part_count(n_in); k++) {
        gm_array *const *part = in + IN_PARTS + PART_INPUTS * k;
        for (int i = 0; i < PART_INPUTS; i++) {
            if (!is_like(part[i], part[IN_W])) {
                char got[128], want[128];
                array_text(part[i], got);
                array_text(part[IN_W], want);
                return gm_fail(GM_ESHAPE, "adam: %s beside a parameter %s, expected float32 of its shape", got, want);
            }
        }
        for (int i = 0; i < PART_OUTPUTS; i++)
            spec_like(&out[PART_OUTPUTS * k + i], part[IN_W], GM_FLOAT32);
    }
    return GM_OK;
}

static gm_status place_part(gm_array *node, gm_queue *q, int k, gm_adam_part *part) {
    static const int donors[PART_OUTPUTS] = {[OUT_W] = IN_W, [OUT_M] = IN_M, [OUT_V] = IN_V};
    gm_array **in = node->in + IN_PARTS + PART_INPUTS * k;
    float *outs[PART_OUTPUTS];
    GM_TRY(float_operand(q, in[IN_GRADIENT], &part->gradient));
    GM_TRY(float_operand(q, in[IN_W], &part->w));
    GM_TRY(float_operand(q, in[IN_M], &part->m));
    GM_TRY(float_operand(q, in[IN_V], &part->v));
    for (int i = 0; i < PART_OUTPUTS; i++) {
        gm_array *out = array_output(node, PART_OUTPUTS * k + i);
        GM_TRY(array_alloc_from(out, q, in[donors[i]]));
        outs[i] = array_ptr(out);
    }
    part->out = outs[OUT_W], part->m_out = outs[OUT_M], part->v_out = outs[OUT_V];
    return GM_OK;
}

static gm_status adam_eval(gm_array *out, gm_queue *q) {
    const adam_param *p = out->param;
    const int count = part_count(out->n_in);
    const float *numbers[IN_PARTS] = {NULL, NULL, NULL};
    for (int i = 0; i < IN_PARTS; i++)
        if (!array_is_none(out->in[i]))
            GM_TRY(float_operand(q, out->in[i], &numbers[i]));
    gm_adam_part *parts = queue_arena(q, (size_t)count * sizeof *parts);
    int64_t *starts = queue_arena(q, (size_t)(count + 1) * sizeof *starts);
    if (!parts || !starts)
        return error_code();
    starts[0] = 0;
    for (int k = 0; k < count; k++) {
        GM_TRY(place_part(out, q, k, &parts[k]));
        starts[k + 1] = starts[k] + array_output(out, PART_OUTPUTS * k)->size;
    }
    return DISPATCH(q, adam, starts[count], .parts = parts, .starts = starts, .count = count, .rate = numbers[IN_RATE],
                    .shrink = numbers[IN_SHRINK], .scale = numbers[IN_SCALE], .b1 = p->b1, .c1 = p->c1, .b2 = p->b2,
                    .c2 = p->c2, .eps = p->eps);
}

/* ---- its gradient ---- */
static gm_array *sum_of(gm_scope *s, gm_array *x) { return gm_sum(s, x, -1, NULL, false); }
static gm_array *times(gm_scope *s, gm_array *x, double factor) {
    return gm_multiply(s, x, scalar_array(s, factor, GM_FLOAT32));
}
/* Adds to what a slot has; a cotangent of NULL adds nothing. */
static void give(gm_scope *s, gm_array **slot, gm_array *cotangent) {
    if (cotangent)
        *slot = *slot ? gm_add(s, *slot, cotangent) : cotangent;
}

/* With root = sqrt(v_out) * scale and below = root + eps, w_out is w * shrink - rate * m_out / below. */
static void part_vjp(gm_scope *s, gm_array *node, gm_array *const *in, int k, gm_array *const *cotangents,
                     gm_array **grad) {
    const adam_param *p = node->param;
    gm_array *const *part = in + IN_PARTS + PART_INPUTS * k, *const *cot = cotangents + PART_OUTPUTS * k;
    gm_array **of = grad + IN_PARTS + PART_INPUTS * k;
    gm_array *m_cot = cot[OUT_M], *v_cot = cot[OUT_V];
    if (cot[OUT_W]) {
        gm_array *m = array_pick(s, node, PART_OUTPUTS * k + OUT_M), *v = array_pick(s, node, PART_OUTPUTS * k + OUT_V);
        gm_array *root = gm_sqrt(s, v),
                 *scaled = array_is_none(in[IN_SCALE]) ? root : gm_multiply(s, root, in[IN_SCALE]);
        gm_array *below = gm_add(s, scaled, scalar_array(s, (double)p->eps, GM_FLOAT32));
        gm_array *back = gm_negative(s, gm_divide(s, cot[OUT_W], below)); /* of rate * m_out */
        gm_array *slope = gm_negative(s, gm_divide(s, gm_multiply(s, back, gm_multiply(s, in[IN_RATE], m)), below));
        give(s, &grad[IN_RATE], sum_of(s, gm_multiply(s, back, m)));
        give(s, &m_cot, gm_multiply(s, back, in[IN_RATE]));
        if (!array_is_none(in[IN_SCALE])) {
            give(s, &grad[IN_SCALE], sum_of(s, gm_multiply(s, slope, root)));
            slope = gm_multiply(s, slope, in[IN_SCALE]);
        }
        give(s, &v_cot, times(s, gm_divide(s, slope, root), 0.5));
        of[IN_W] = cot[OUT_W];
        if (!array_is_none(in[IN_SHRINK])) {
            give(s, &grad[IN_SHRINK], sum_of(s, gm_multiply(s, cot[OUT_W], part[IN_W])));
            of[IN_W] = gm_multiply(s, cot[OUT_W], in[IN_SHRINK]);
        }
    }
    if (m_cot) {
        of[IN_M] = times(s, m_cot, (double)p->b1);
        give(s, &of[IN_GRADIENT], times(s, m_cot, (double)p->c1));
    }
    if (v_cot) {
        of[IN_V] = times(s, v_cot, (double)p->b2);
        give(s, &of[IN_GRADIENT], times(s, gm_multiply(s, v_cot, part[IN_GRADIENT]), 2 * (double)p->c2));
    }
}

static void adam_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    for (int k = 0; k < part_count(out->n_in); k++)
        part_vjp(s, out, in, k, cotangents, grad);
}

/* ---- made of a file, and of arrays ---- */
static gm_status adam_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    const int count = part_count(n_in);
    if (count < 1 || n_in != IN_PARTS + PART_INPUTS * count || n_out != PART_OUTPUTS * count)
        return rebuild_refuse("adam");
    return array_nodes(s, &adam_op, in, n_in, param, sizeof(adam_param), n_out, outs);
}

const gm_op adam_op = {.name = "adam",
                       .n_in = -1,
                       .n_out = -1,
                       .optional = 1u << IN_SHRINK | 1u << IN_SCALE,
                       .param_size = sizeof(adam_param),
                       .fields = adam_fields,
                       .infer = adam_infer,
                       .eval = adam_eval,
                       .vjp = adam_vjp,
                       .rebuild = adam_rebuild,
                       .work = GM_WORK_OTHER};

gm_array *gm_adam(gm_scope *s, gm_array *const *in, int count, double b1, double b2, double eps, gm_array **outs) {
    const adam_param p = {(float)b1, (float)(1 - b1), (float)b2, (float)(1 - b2), (float)eps};
    if (count < 1 || count > GM_ADAM_MOST)
        return gm_fail(GM_EVALUE, "adam: %d parameters, expected 1 to %d", count, GM_ADAM_MOST), NULL;
    if (array_nodes(s, &adam_op, in, IN_PARTS + PART_INPUTS * count, &p, sizeof p, PART_OUTPUTS * count, outs) != GM_OK)
        return NULL;
    return outs[0];
}
