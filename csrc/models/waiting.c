/* waiting.c - matrices that wait to be packed. Loading leaves them in the mapped files, where the first pass reads
 * them; before the second pass they are packed for good, and the files are closed. That takes the time and the memory
 * that loading would have taken, but not before the first token. Until then the memory counts as promised. Matrices
 * that cannot be read as they are stored are packed at once: MLX's arrays, those in another dtype, stacks of experts.
 */
#include <stdatomic.h>
#include "base/memory.h"
#include "models/load.h"

struct gm_waiting {
    gm_loader *loader; /* with the jobs, the queue and the files alone; NULL: all is packed */
    gm_buffer *keeper; /* closes it, after the last array that has its rows there */
    bool begun;        /* a pass has read the model */
};

static _Atomic size_t promised;

size_t gm_promised_memory(void) { return atomic_load(&promised); }

static void promise(gm_loader *l, size_t bytes) {
    l->promised += bytes;
    atomic_fetch_add(&promised, bytes);
}

static void take_off(gm_loader *l, size_t bytes) {
    l->promised -= bytes;
    atomic_fetch_sub(&promised, bytes);
}

void waiting_forget(gm_loader *l) { take_off(l, l->promised); }

bool waiting_can(const gm_loader *l, const job *j) {
    return !l->options.device && j->kind == JOB_PACK && !j->parts && !j->scales && !j->transposed &&
           loader_format(l, j) == j->tensor->format;
}

gm_status waiting_start(gm_loader *l, job *j) {
    const gm_quant_info *f = &gm_quants[j->tensor->format];
    gm_spec spec = {.dtype = GM_PACKED, .format = j->tensor->format, .ndim = 2, .shape = {j->rows, j->columns}};
    GM_TRY(loader_map_rows(l, j));
    j->in_rows = (gm_rows){j->tensor->data + j->first_row * j->columns / f->values * f->bytes, l->row_map};
    l->row_map = NULL;
    if (!l->keeper && !(l->keeper = buffer_foreign(NULL, 0, NULL, NULL)))
        return error_code();
    *j->to = array_in_rows(&spec, &j->in_rows, l->keeper);
    if (!*j->to)
        return error_code();
    promise(l, loader_result_bytes(l, j));
    checkpoint_will_need(l->checkpoint, j->tensor);
    return GM_OK;
}

static void close_loader(void *loader) { gm_loader_close(loader); }

gm_status waiting_keep(gm_loader *l) {
    if (!l->keeper)
        return GM_OK;
    gm_waiting *w = memory_zeroed(sizeof *w);
    gm_loader *rest = w ? memory_zeroed(sizeof *rest) : NULL;
    if (!rest) {
        memory_free(w);
        return GM_ENOMEM;
    }
    buffer_release(l->shared);
    rest->options = l->options;
    rest->jobs = l->jobs;
    rest->n_jobs = l->n_jobs;
    rest->checkpoint = l->checkpoint;
    rest->packs = l->packs;
    rest->promised = l->promised;
    l->promised = 0;
    l->shared = NULL;
    l->jobs = NULL;
    l->checkpoint = NULL;
    l->packs = NULL;
    l->n_jobs = l->at = 0;
    w->loader = rest;
    w->keeper = l->keeper;
    w->keeper->release = close_loader;
    w->keeper->payload = rest;
    l->keeper = NULL;
    l->model->waiting = w;
    return GM_OK;
}

void waiting_free(gm_waiting *w) {
    if (w && w->loader)
        waiting_forget(w->loader);
    if (w)
        buffer_release(w->keeper);
    memory_free(w);
}

bool model_in_rows(const gm_model *m) { return m->waiting && m->waiting->loader; }

gm_status model_begin_pass(const gm_model *m) {
    if (model_in_rows(m))
        GM_TRY(checkpoint_check_unchanged(m->waiting->loader->checkpoint));
    if (m->waiting)
        m->waiting->begun = true;
    return GM_OK;
}

bool model_wants_packing(const gm_model *m) { return model_in_rows(m) && m->waiting->begun; }

/* The matrix of the current job, whose memory in `shared` is the last that was taken. */
static gm_status start_packing(gm_loader *l, job *j, int threads) {
    const gm_array *a = *j->to;
    size_t offset;
    gm_buffer *memory = loader_take_shared(l, j, &offset);
    if (!memory)
        return error_code();
    l->offset = offset;
    buffer_release(memory); /* l->shared has it too */
    gm_status status = DISPATCH(l->packs, pack, j->rows, .out = (char *)l->shared->data + offset, .in = j->in_rows.data,
                                .row_map = j->in_rows.map, .format = a->format, .rows = j->rows, .k = j->columns);
    queue_end_node(l->packs);
    if (status != GM_OK) {
        queue_reset(l->packs);
        l->shared_used = offset;
        return status;
    }
    queue_start(l->packs, threads);
    l->packing = true;
    return GM_OK;
}

static void end_packing(gm_loader *l) {
    queue_finish(l->packs);
    queue_reset(l->packs);
    l->packing = false;
}

/* What was begun is begun again, in the same memory. */
static void undo_packing(gm_loader *l) {
    end_packing(l);
    l->shared_used = l->offset;
}

/* The next matrix is read ahead while this one is packed: memory may have been short since the first pass. */
static void read_ahead(const gm_loader *l) {
    for (size_t i = l->at + 1; i < l->n_jobs; i++)
        if (l->jobs[i].waits) {
            checkpoint_will_need(l->checkpoint, l->jobs[i].tensor);
            return;
        }
}

gm_status model_pack(const gm_model *m, int64_t deadline_ns, bool continuing) {
    gm_loader *l = m->waiting->loader;
    if (l->packing && !continuing)
        undo_packing(l);
    for (; l->at < l->n_jobs; l->at++) {
        job *j = &l->jobs[l->at];
        if (!j->waits)
            continue;
        if (!l->packing) {
            GM_TRY(checkpoint_check_unchanged(l->checkpoint));
            read_ahead(l);
            GM_TRY(start_packing(l, j, m->threads));
        }
        gm_status status = queue_step(l->packs, deadline_ns);
        if (status == GM_AGAIN)
            return GM_AGAIN;
        if (status != GM_OK) {
            undo_packing(l);
            return status;
        }
        end_packing(l);
        array_pack(*j->to, l->shared, (int64_t)l->offset);
        take_off(l, loader_result_bytes(l, j));
        checkpoint_done_with(l->checkpoint, j->tensor);
    }
    m->waiting->loader = NULL;
    buffer_release(m->waiting->keeper);
    m->waiting->keeper = NULL;
    return GM_OK;
}

void model_cancel_packing(const gm_model *m) {
    gm_loader *l = m->waiting->loader;
    if (!l || !l->packing)
        return;
    queue_cancel(l->packs);
    queue_step(l->packs, 0);
    undo_packing(l);
}

gm_status gm_model_pack(gm_model *m, int slice_ms, bool *held) {
    const bool continuing = *held;
    if (!m->waiting)
        return GM_OK;
    if (!continuing)
        GM_TRY(run_lock(slice_ms));
    *held = true;
    gm_status status = continuing ? GM_OK : model_begin_pass(m);
    if (status == GM_OK && model_wants_packing(m))
        status = model_pack(m, clock_ns() + (int64_t)slice_ms * 1000000, continuing);
    if (status != GM_AGAIN) {
        *held = false;
        run_unlock();
    }
    return status;
}

void gm_model_stop_packing(gm_model *m, bool *held) {
    if (!*held)
        return;
    model_cancel_packing(m);
    *held = false;
    run_unlock();
}
