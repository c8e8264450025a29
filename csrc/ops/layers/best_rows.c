/* best_rows.c - what rows of logits come to, in memory of the host: where a model is on a device, it is all that most
 * streams need of a step. Of sequences with one row each the state of the batch moves on by a position: run again, the
 * same plan computes what follows the ids that were found. Out: uint32 [n], these ids. */
#include "ops/layers/batch_state.h"
#include "ops/ops.h"

enum { IN_LOGITS, IN_BATCH, INPUTS };
typedef struct {
    gm_batch_shape shape;
    int32_t moves;
    gm_row_best *best;
} best_param;
static const gm_field best_fields[] = {
    {FIELD_INT, offsetof(best_param, shape), "shape", 4}, {FIELD_INT, offsetof(best_param, moves), "moves", 1}, {0}};

static gm_status best_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const best_param *p = param;
    const gm_array *logits = in[IN_LOGITS];
    (void)n_in;
    if (logits->dtype != GM_FLOAT32 || logits->ndim != 2 || logits->shape[0] > p->shape.rows || logits->shape[1] < 1 ||
        logits->shape[1] > INT32_MAX) {
        char text[128];
        array_text(logits, text);
        return gm_fail(GM_ESHAPE, "best_rows: logits are %s, expected float32 [up to %d, vocab]", text, p->shape.rows);
    }
    GM_TRY(batch_state_check("best_rows", in[IN_BATCH], &p->shape, p->moves ? logits->shape[0] : p->shape.rows, 0));
    *out = (gm_spec){.dtype = GM_UINT32, .ndim = 1, .shape = {logits->shape[0]}};
    return GM_OK;
}

static gm_status best_eval(gm_array *out, gm_queue *q) {
    const best_param *p = out->param;
    const gm_array *block = out->in[IN_BATCH];
    const gm_batch_view batch = batch_view(array_ptr(block), &p->shape);
    const float *logits;
    GM_TRY(float_operand(q, out->in[IN_LOGITS], &logits));
    GM_TRY(array_alloc(out, q));
    if (p->moves)
        GM_TRY(queue_writes(q, block->buf));
    queue_fence(q); /* all that read the state of the batch are before it */
    return DISPATCH(q, best_rows, out->size, .best = p->best, .ids = array_ptr(out), .logits = logits,
                    .vocab = out->in[IN_LOGITS]->shape[1], .tokens = p->moves ? batch.tokens : NULL,
                    .positions = p->moves ? batch.positions : NULL);
}

const gm_op best_rows_op = {.name = "best_rows",
                            .n_in = INPUTS,
                            .n_out = 1,
                            .nondiff = (1u << INPUTS) - 1,
                            .param_size = sizeof(best_param),
                            .fields = best_fields,
                            .infer = best_infer,
                            .eval = best_eval,
                            .work = GM_WORK_SAMPLING};

gm_array *gm_best_rows(gm_scope *s, gm_array *logits, const gm_batch_state *batch, bool moves) {
    gm_array *in[INPUTS] = {logits, batch->block};
    return array_node(s, &best_rows_op, in, INPUTS,
                      &(best_param){.shape = batch->shape, .moves = moves, .best = batch->best});
}
