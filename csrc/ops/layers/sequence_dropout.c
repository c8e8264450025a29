/* sequence_dropout.c - rows of sequences without some of their numbers, which are drawn by the sequence's own key, the
 * row's position and the column: neither what else is in the pass nor how often it is computed changes them.
 * Source: Srivastava et al., Dropout, 2014. */
#include "ops/ops.h"

enum { IN_X, IN_KEYS, IN_STARTS, INPUTS };
typedef struct {
    float share;
    int32_t salt;
} dropout_param;
static const gm_field fields[] = {{FIELD_FLOAT, offsetof(dropout_param, share), "share", 1},
                                  {FIELD_INT, offsetof(dropout_param, salt), "salt", 1},
                                  {0}};

static gm_status dropout_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "sequence_dropout";
    const gm_array *x = in[IN_X], *keys = in[IN_KEYS], *starts = in[IN_STARTS];
    (void)n_in;
    (void)param;
    GM_TRY(check_starts(op, starts));
    GM_TRY(check_rows(op, x, "x", x->ndim == 2 ? x->shape[0] : -1, x->ndim == 2 ? x->shape[1] : -1));
    if (keys->dtype != GM_UINT32 || keys->ndim != 2 || keys->shape[0] != starts->shape[0] - 1 || keys->shape[1] != 2) {
        char text[128];
        array_text(keys, text);
        return gm_fail(GM_ESHAPE, "%s: keys are %s, expected uint32(%lld,2)", op, text,
                       (long long)starts->shape[0] - 1);
    }
    spec_like(out, x, GM_FLOAT32);
    return GM_OK;
}

static gm_status dropout_eval(gm_array *out, gm_queue *q) {
    const dropout_param *p = out->param;
    const float *x;
    const void *keys, *starts;
    GM_TRY(float_operand(q, out->in[IN_X], &x));
    GM_TRY(dense_operand(q, out->in[IN_KEYS], &keys));
    GM_TRY(dense_operand(q, out->in[IN_STARTS], &starts));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, sequence_dropout, out->shape[0], .out = array_ptr(out), .x = x, .keys = keys, .starts = starts,
                    .sequences = out->in[IN_STARTS]->shape[0] - 1, .k = out->shape[1],
                    .least = (uint32_t)((double)p->share * 0x1p32), .salt = (uint32_t)p->salt,
                    .factor = 1 / (1 - p->share));
}

/* The same numbers are left out of the cotangent. */
static void dropout_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *all[INPUTS] = {cots[0], in[IN_KEYS], in[IN_STARTS]};
    grad[IN_X] = array_node(s, &sequence_dropout_op, all, INPUTS, out->param);
}

const gm_op sequence_dropout_op = {.name = "sequence_dropout",
                                   .n_in = INPUTS,
                                   .n_out = 1,
                                   .nondiff = 1u << IN_KEYS | 1u << IN_STARTS,
                                   .param_size = sizeof(dropout_param),
                                   .fields = fields,
                                   .infer = dropout_infer,
                                   .eval = dropout_eval,
                                   .vjp = dropout_vjp,
                                   .again = AGAIN_ALWAYS};

gm_array *gm_sequence_dropout(gm_scope *s, gm_array *x, float share, int salt, gm_array *keys, gm_array *starts) {
    gm_array *in[INPUTS] = {x, keys, starts};
    if (!(share >= 0 && share < 1))
        return gm_fail(GM_EVALUE, "dropout: a share of %g, expected 0 or more and less than 1", (double)share), NULL;
    return array_node(s, &sequence_dropout_op, in, INPUTS, &(dropout_param){share, salt});
}
