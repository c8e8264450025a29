/* loss.c - losses over logits. */
#include <string.h>
#include "ops/ops.h"

/* x less the largest of its row, so that nothing is lost where the target is taken from the logarithm of a large sum. One
 * that is infinite stays: its row's loss is then infinite or NaN by itself. */
static gm_array *centred(gm_scope *s, gm_array *x) {
    gm_array *top = gm_stop_gradient(s, gm_max(s, x, 1, (int[]){-1}, true));
    top = gm_where(s, gm_isfinite(s, top), top, scalar_array(s, 0, GM_FLOAT32));
    return gm_subtract(s, x, top);
}

/* logsumexp(logits) - logits[target], in float32. */
gm_array *gm_cross_entropy(gm_scope *s, gm_array *logits, gm_array *targets) {
    if (!logits || !targets)
        return NULL;
    bool fits = logits->ndim == targets->ndim + 1;
    for (int d = 0; d < targets->ndim && fits; d++)
        fits = logits->shape[d] == targets->shape[d];
    if (!fits) {
        char a[128], b[128];
        array_text(targets, a);
        array_text(logits, b);
        return gm_fail(GM_ESHAPE, "cross_entropy: targets %s do not have the shape of logits %s without the last axis",
                       a, b), NULL;
    }
    if (!dtype_is_integer((gm_dtype)targets->dtype))
        return gm_fail(GM_EVALUE, "cross_entropy: targets are %s, expected class numbers of an integer dtype",
                       gm_dtype_name((gm_dtype)targets->dtype)), NULL;
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, targets->shape, (size_t)targets->ndim * sizeof *shape);
    shape[targets->ndim] = 1;
    gm_array *x = centred(s, gm_astype(s, logits, GM_FLOAT32));
    gm_array *index = gm_reshape(s, targets, logits->ndim, shape);
    gm_array *chosen = gm_reshape(s, gm_take_along_axis(s, x, index, logits->ndim - 1), targets->ndim, targets->shape);
    return gm_subtract(s, gm_logsumexp(s, x, 1, (int[]){-1}, false), chosen);
}
