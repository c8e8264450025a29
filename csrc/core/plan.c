/* plan.c - see plan.h. */
#include "core/plan.h"
#include "base/grow.h"
#include "base/memory.h"
#include "core/mirror.h"

gm_plan *plan_new(int number, bool begins_here) {
    gm_plan *p = memory_zeroed(sizeof *p);
    if (!p)
        return NULL;
    p->queue = queue_new(number);
    p->first = p->queue && begins_here ? queue_new(0) : NULL;
    if (p->queue && (p->first || !begins_here))
        return p;
    plan_free(p);
    return NULL;
}

void plan_free(gm_plan *p) {
    if (!p)
        return;
    queue_free(p->first);
    queue_free(p->queue);
    for (size_t i = 0; i < p->n_constants; i++)
        buffer_release(p->constants[i]);
    for (size_t i = 0; i < p->n_crossings; i++) {
        buffer_release(p->crossings[i].from);
        buffer_release(p->crossings[i].to);
    }
    memory_free(p->constants);
    memory_free(p->crossings);
    memory_free(p);
}

/* ---- recording ---- */
static bool makes(const gm_plan *p, const gm_array *a) {
    for (size_t i = 0; i < p->n_inputs; i++)
        if (p->inputs[i] == a)
            return false;
    return p->first != NULL;
}

static gm_status keep_constant(gm_plan *p, gm_array *moved) {
    const gm_status status = grow_array(&p->constants, p->n_constants, &p->constants_capacity, 1, sizeof *p->constants);
    if (status == GM_OK)
        p->constants[p->n_constants++] = buffer_retain(moved->buf);
    else
        gm_release(moved);
    return status;
}

/* Which bytes of its buffer: all, so that what is seen in parts crosses once; of memory of others what is seen. */
static plan_crossing crossing_of(const gm_array *a) {
    plan_crossing c = {.from = a->buf, .bytes = a->buf->bytes};
    if (a->buf->kind != BUFFER_OWNED)
        array_span(a, &c.begin, &c.bytes);
    return c;
}

/* The place on the device of what the processor's part makes. It is written by no later launch: the plan holds it. */
static gm_status cross_over(gm_plan *p, const gm_array *a, gm_array **out) {
    plan_crossing c = crossing_of(a);
    size_t i = 0;
    while (i < p->n_crossings &&
           (p->crossings[i].from != c.from || p->crossings[i].begin != c.begin || p->crossings[i].bytes != c.bytes))
        i++;
    if (i == p->n_crossings) {
        GM_TRY(grow_array(&p->crossings, i, &p->crossings_capacity, 1, sizeof *p->crossings));
        if (!(c.to = buffer_new_on(queue_device(p->queue), c.bytes)))
            return error_code();
        buffer_retain(c.from);
        p->crossings[p->n_crossings++] = c;
    }
    *out = array_moved(a, p->crossings[i].to, a->offset - c.begin);
    return *out ? GM_OK : error_code();
}

gm_status plan_bring(gm_plan *p, gm_queue *q, const gm_array *node, gm_array *input, gm_array **out) {
    *out = NULL;
    if (!makes(p, input)) {
        GM_TRY(mirror_make(q, input, node->op->shares, out));
        return keep_constant(p, *out);
    }
    if (queue_device(q))
        return cross_over(p, input, out);
    return gm_fail(GM_EUNSUPPORTED, "%s: it is on the processor, and reads what the device of its model makes",
                   node->op->name);
}

/* ---- running ---- */
gm_queue *plan_queue(gm_plan *p) { return p->queue; }

void plan_begin(gm_plan *p, int n_threads, gm_phase_profile *profile) {
    p->threads = n_threads;
    p->crossed = !p->first;
    queue_profile(p->queue, profile);
    if (p->first)
        queue_profile(p->first, profile);
    queue_begin(p->first ? p->first : p->queue, n_threads);
}

/* The processor's part, to its end, and then the copies. */
static gm_status cross(gm_plan *p, int64_t deadline_ns) {
    if (p->crossed)
        return GM_OK;
    GM_TRY(queue_go_on(p->first, deadline_ns));
    queue_end(p->first, false);
    p->crossed = true;
    queue_begin(p->queue, p->threads);
    for (size_t i = 0; i < p->n_crossings; i++) {
        const plan_crossing *c = &p->crossings[i];
        GM_TRY(device_copy(queue_device(p->queue), c->to->data, (const char *)c->from->data + c->begin, c->bytes));
    }
    return GM_OK;
}

gm_status plan_issue(gm_plan *p, int64_t deadline_ns) {
    GM_TRY(cross(p, deadline_ns));
    return device_issue(p->queue, deadline_ns);
}

gm_status plan_go_on(gm_plan *p, int64_t deadline_ns) {
    GM_TRY(cross(p, deadline_ns));
    return queue_go_on(p->queue, deadline_ns);
}

void plan_end(gm_plan *p, bool failed) {
    if (!p->crossed)
        queue_end(p->first, failed);
    queue_end(p->queue, failed);
}

void plan_give_up(gm_plan *p) {
    if (!p->crossed)
        queue_give_up(p->first);
    queue_give_up(p->queue);
}
