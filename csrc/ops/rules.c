/* rules.c - parts of gradients and of batching that ops share. */
#include <string.h>
#include "ops/ops.h"

gm_array *unbroadcast(gm_scope *s, gm_array *cotangent, const gm_array *operand) {
    if (!cotangent)
        return NULL;
    int axes[GM_MAX_NDIM], n = 0, lead = cotangent->ndim - operand->ndim;
    for (int i = 0; i < cotangent->ndim; i++)
        if (i < lead || (operand->shape[i - lead] == 1 && cotangent->shape[i] != 1))
            axes[n++] = i;
    if (n)
        cotangent = gm_sum(s, cotangent, n, axes, true);
    for (int i = 0; i < lead; i++)
        axes[i] = i;
    return gm_astype(s, gm_squeeze(s, cotangent, lead, axes), (gm_dtype)operand->dtype);
}

gm_status rebuilt(gm_array *made, gm_array **outs) {
    outs[0] = made;
    return made ? GM_OK : error_code() != GM_OK ? error_code() : rebuild_refuse("operation");
}

gm_status rebuild_refuse(const char *op) {
    return gm_fail(GM_EVALUE, "%s: it cannot have the parameters that the file gives it", op);
}

gm_status refuse_index(const char *op, bool forward) {
    return gm_fail(GM_EVALUE,
                   "[%s] Cannot calculate %s with respect to indices. Use stop_gradient on indices to stop "
                   "gradients from being computed.",
                   op, forward ? "JVP" : "VJP");
}

int64_t batch_size(gm_array *const *in, int n_in, const bool *batched) {
    for (int i = 0; i < n_in; i++)
        if (batched[i])
            return in[i]->shape[0];
    return 1;
}

gm_array *batched_input(gm_scope *s, gm_array *in, bool batched, int64_t batch) {
    if (!in || batched || array_is_none(in))
        return in;
    int64_t shape[GM_MAX_NDIM + 1];
    shape[0] = batch;
    memcpy(shape + 1, in->shape, (size_t)in->ndim * sizeof *shape);
    return gm_broadcast_to(s, in, in->ndim + 1, shape);
}

gm_status vmap_broadcasting(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    gm_array *aligned[MAX_OPERANDS];
    int axes[GM_MAX_NDIM];
    for (int i = 0; i < out->n_in; i++) {
        aligned[i] = in[i];
        int pad = out->ndim - (in[i]->ndim - 1);
        if (!batched[i] || pad <= 0)
            continue;
        for (int d = 0; d < pad; d++)
            axes[d] = 1 + d;
        aligned[i] = gm_expand_dims(s, in[i], pad, axes);
    }
    outs[0] = array_again(s, out, aligned);
    return outs[0] ? GM_OK : error_code();
}

gm_status vmap_leading(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    gm_array *all[MAX_OPERANDS];
    int64_t batch = batch_size(in, out->n_in, batched);
    for (int i = 0; i < out->n_in; i++)
        all[i] = batched_input(s, in[i], batched[i], batch);
    outs[0] = array_again(s, out, all);
    return outs[0] ? GM_OK : error_code();
}
