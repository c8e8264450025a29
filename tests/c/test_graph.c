/* test_graph.c - evaluation: fused ops against their compositions, order, donation, plans, cancelling, threads. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "check.h"
#include "core/graph.h"
#include "ops/ops.h"

static float noise(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

static gm_array *random_array(gm_scope *s, int ndim, const int64_t *shape, unsigned seed) {
    gm_array *a = array_new(s, GM_FLOAT32, ndim, shape);
    for (int64_t i = 0; a && i < a->size; i++)
        ((float *)array_ptr(a))[i] = noise(&seed);
    return a;
}

/* The fused op and the same value from primitives. */
static void check_compose(gm_scope *s, gm_array *fused, double tolerance) {
    CHECK(fused && fused->op->compose);
    gm_array *plain = fused->op->compose(s, fused->in, fused->n_in, fused->param);
    CHECK(plain && plain->size == fused->size && plain->dtype == fused->dtype);
    gm_array *both[2] = {fused, plain};
    CHECK(gm_eval(both, 2) == GM_OK);
    double worst = 0;
    for (int64_t i = 0; i < fused->size; i++)
        worst = fmax(worst, fabs((double)((float *)array_ptr(fused))[i] - (double)((float *)array_ptr(plain))[i]));
    CHECK(worst <= tolerance);
}

static void fused_ops_match_their_compositions(void) {
    const int64_t dims[] = {1, 7, 8, 17, 33, 1000};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        gm_scope *s = gm_scope_open();
        int64_t shape[2] = {5, dims[d]};
        gm_array *x = random_array(s, 2, shape, 1), *y = random_array(s, 2, shape, 2),
                 *w = random_array(s, 1, shape + 1, 3);
        check_compose(s, gm_rms_norm(s, x, w, 1e-5f), 4e-6);
        check_compose(s, gm_rms_norm(s, x, GM_NONE, 1e-5f), 4e-6);
        check_compose(s, gm_softmax(s, x, 1, (int[]){-1}), 1e-6);
        check_compose(s, gm_swiglu(s, x, y), 1e-6);
        check_compose(s, gm_geglu(s, x, y), 1e-6);
        check_compose(s, gm_clamped_swiglu(s, x, y, 1.702f, 0.6f), 2e-6);
        check_compose(s, gm_softcap(s, x, 0.7f), 1e-6);
        gm_scope_close(s);
    }
}

/* One of the units that have no gradient of their own, but a composition. */
static gm_array *unit(gm_scope *s, int which, gm_array *gate, gm_array *up) {
    gm_array *y = which == 0   ? gm_geglu(s, gate, up)
                  : which == 1 ? gm_clamped_swiglu(s, gate, up, 1.702f, 0.9f)
                               : gm_multiply(s, gm_softcap(s, gate, 0.7f), up);
    return gm_sum(s, y, -1, NULL, false);
}

static void gated_units_have_gradients(void) {
    const int64_t shape[2] = {3, 5};
    for (int which = 0; which < 3; which++) {
        gm_scope *s = gm_scope_open();
        gm_array *x[2] = {random_array(s, 2, shape, 11), random_array(s, 2, shape, 12)}, *in[2], *grad[2] = {NULL};
        gm_trace_enter();
        in[0] = gm_tracer(s, x[0]);
        in[1] = gm_tracer(s, x[1]);
        gm_array *sum = unit(s, which, in[0], in[1]), *one = scalar_array(s, 1, GM_FLOAT32);
        CHECK(gm_vjp(s, &sum, &one, 1, in, 2, grad) == GM_OK);
        gm_trace_leave();
        CHECK(gm_eval(grad, 2) == GM_OK);
        for (int i = 0; i < 2 * 15; i++) {
            float *at = (float *)array_ptr(x[i / 15]) + i % 15, old = *at, value[2];
            for (int side = 0; side < 2; side++) {
                *at = old + (side ? 4e-3f : -4e-3f);
                gm_array *moved = unit(s, which, gm_array_from(s, GM_FLOAT32, 2, shape, array_ptr(x[0])),
                                       gm_array_from(s, GM_FLOAT32, 2, shape, array_ptr(x[1])));
                CHECK(gm_eval(&moved, 1) == GM_OK);
                value[side] = *(float *)array_ptr(moved);
            }
            *at = old;
            CHECK(fabsf((value[1] - value[0]) / 8e-3f - ((float *)array_ptr(grad[i / 15]))[i % 15]) < 4e-3f);
        }
        gm_scope_close(s);
    }
}

/* ---- a rule that adds to what its input has got ---- */
static int sums_found;
static gm_status adding_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in, (void)param;
    spec_like(out, in[0], GM_FLOAT32);
    return GM_OK;
}
static void adding_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out, (void)in;
    sums_found += grad[0] != NULL;
    grad[0] = grad[0] ? gm_add(s, grad[0], cots[0]) : cots[0];
}
static void a_rule_that_adds_is_given_the_sum_so_far(void) {
    static const gm_op adding = {
        .name = "adding", .n_in = 1, .n_out = 1, .infer = adding_infer, .vjp = adding_vjp, .adds = 1};
    gm_scope *s = gm_scope_open();
    const int64_t shape[1] = {5};
    gm_array *x = random_array(s, 1, shape, 1), *grad = NULL;
    gm_array *cots[3] = {random_array(s, 1, shape, 2), random_array(s, 1, shape, 3), random_array(s, 1, shape, 4)};
    double want[5];
    for (int i = 0; i < 5; i++) { /* what is evaluated may take their memory */
        const float *at[4] = {array_ptr(x), array_ptr(cots[0]), array_ptr(cots[1]), array_ptr(cots[2])};
        want[i] = (double)at[1][i] + (double)at[2][i] + 2.0 * (double)at[0][i] * (double)at[3][i];
    }
    gm_trace_enter();
    gm_array *in = gm_tracer(s, x);
    gm_array *outs[3] = {array_node(s, &adding, &in, 1, NULL), array_node(s, &adding, &in, 1, NULL), gm_square(s, in)};
    CHECK(gm_vjp(s, outs, cots, 3, &in, 1, &grad) == GM_OK);
    gm_trace_leave();
    CHECK(gm_eval(&grad, 1) == GM_OK);
    CHECK(sums_found == 2); /* the last output comes first */
    for (int i = 0; i < 5; i++)
        CHECK(fabs((double)((float *)array_ptr(grad))[i] - want[i]) < 1e-6);
    gm_scope_close(s);
}

static void rules_of_many_inputs(void) { /* more than an op has bits for */
    gm_scope *s = gm_scope_open();
    const int64_t shape[1] = {1};
    gm_array *x = random_array(s, 1, shape, 1), *grad = NULL, *many[40];
    gm_trace_enter();
    gm_array *in = gm_tracer(s, x);
    for (int i = 0; i < 40; i++)
        many[i] = in;
    gm_array *out = gm_sum(s, gm_concatenate(s, many, 40, 0), -1, NULL, false), *one = scalar_array(s, 1, GM_FLOAT32);
    CHECK(gm_vjp(s, &out, &one, 1, &in, 1, &grad) == GM_OK);
    gm_trace_leave();
    CHECK(gm_eval(&grad, 1) == GM_OK && *(float *)array_ptr(grad) == 40);
    gm_scope_close(s);
}

static void a_long_chain_needs_no_stack(void) {
    gm_scope *s = gm_scope_open();
    gm_array *one = scalar_array(s, 1, GM_FLOAT32), *x = gm_retain(scalar_array(s, 0, GM_FLOAT32));
    for (int i = 0; i < 300000; i++) {
        gm_scope *inner = gm_scope_open();
        gm_array *next = gm_retain(gm_add(inner, x, one));
        gm_release(x);
        gm_scope_close(inner);
        x = next;
    }
    CHECK(gm_eval(&x, 1) == GM_OK && *(float *)gm_array_data(x) == 300000);
    gm_release(x);
    x = gm_retain(one); /* and one that is freed without being evaluated */
    for (int i = 0; i < 300000; i++) {
        gm_scope *inner = gm_scope_open();
        gm_array *next = gm_retain(gm_add(inner, x, one));
        gm_release(x);
        gm_scope_close(inner);
        x = next;
    }
    gm_release(x);
    gm_scope_close(s);
}

static void temporaries_share_memory(void) {
    gm_scope *s = gm_scope_open();
    gm_array *x = gm_retain(random_array(s, 1, (int64_t[]){1 << 20}, 5)), *y = x;
    for (int i = 0; i < 50; i++)
        y = gm_exp(s, gm_negative(s, y));
    gm_retain(y);
    gm_scope_close(s);
    gm_reset_peak_memory();
    size_t before = gm_active_memory();
    CHECK(gm_eval(&y, 1) == GM_OK);
    CHECK(gm_peak_memory() - before <= (size_t)3 << 22); /* of 100 arrays of 4 MiB */
    gm_release(x);
    gm_release(y);
}

static void a_reader_keeps_its_value(void) {
    gm_scope *s = gm_scope_open();
    gm_array *a = gm_add(s, random_array(s, 1, (int64_t[]){1000}, 6), scalar_array(s, 1, GM_FLOAT32));
    gm_array *all[3] = {
        gm_exp(s, a), gm_negative(s, a),
        gm_reshape(s, gm_transpose(s, gm_reshape(s, a, 2, (int64_t[]){10, 100}), -1, NULL), 1, (int64_t[]){-1})};
    CHECK(gm_eval(all, 3) == GM_OK && gm_eval(&a, 1) == GM_OK);
    bool right = true;
    const float *v = gm_array_data(a), *e = gm_array_data(all[0]), *n = gm_array_data(all[1]),
                *t = gm_array_data(all[2]);
    for (int i = 0; i < 1000; i++)
        right &= fabsf(e[i] - expf(v[i])) < 1e-5f && n[i] == -v[i] && t[(i % 100) * 10 + i / 100] == v[i];
    CHECK(right);
    gm_scope_close(s);
}

static void a_plan_runs_again_with_other_inputs(void) {
    gm_scope *s = gm_scope_open();
    gm_array *x = gm_retain(array_new(s, GM_FLOAT32, 1, (int64_t[]){4096}));
    gm_array *y = gm_retain(gm_add(s, gm_exp(s, x), gm_square(s, x)));
    gm_scope_close(s);
    gm_plan *plan;
    CHECK(run_lock(-1) == GM_OK && plan_capture(&y, 1, &plan) == GM_OK && queue_length(plan_queue(plan)) == 3);
    run_unlock();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4096; i++)
            ((float *)array_ptr(x))[i] = (float)(round + i % 3);
        CHECK(run_lock(-1) == GM_OK);
        queue_start(plan_queue(plan), 2);
        CHECK(queue_step(plan_queue(plan), 0) == GM_OK);
        queue_finish(plan_queue(plan));
        run_unlock();
        bool right = true;
        for (int i = 0; i < 4096; i++) {
            float v = (float)(round + i % 3), want = expf(v) + v * v;
            right &= fabsf(((float *)array_ptr(y))[i] - want) < 1e-5f * want;
        }
        CHECK(right);
    }
    plan_free(plan);
    gm_release(x);
    gm_release(y);
}

static void a_plan_keeps_its_constants(void) {
    gm_scope *s = gm_scope_open();
    int64_t shape[1] = {4096};
    gm_array *x = gm_retain(random_array(s, 1, shape, 1)), *constant = random_array(s, 1, shape, 2);
    gm_array *sum = gm_add(s, x, constant), *y = gm_retain(gm_multiply(s, gm_exp(s, sum), gm_square(s, sum)));
    gm_scope_close(s); /* the plan's own is the last reader of the constant */
    gm_plan *plan;
    float first = 0;
    CHECK(run_lock(-1) == GM_OK && plan_capture(&y, 1, &plan) == GM_OK);
    for (int round = 0; round < 3; round++) {
        queue_start(plan_queue(plan), 2);
        CHECK(queue_step(plan_queue(plan), 0) == GM_OK);
        queue_finish(plan_queue(plan));
        float got = ((float *)array_ptr(y))[7];
        CHECK(round == 0 || got == first);
        first = got;
    }
    run_unlock();
    plan_free(plan);
    gm_release(x);
    gm_release(y);
}

/* A node of two launches: a slow one on one thread alone, and one whose range is known when it runs, which reads. */
typedef struct { _Atomic int written, early; } two_steps;

static void write_slowly(const void *args, int64_t begin, int64_t end) {
    two_steps *t = *(two_steps *const *)args;
    (void)begin, (void)end;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    t->written = 1;
}

static void read_written(const void *args, int64_t begin, int64_t end) {
    two_steps *t = *(two_steps *const *)args;
    t->early += t->written ? 0 : (int)(end - begin);
}

static void a_scaled_launch_waits_for_what_it_reads(void) {
    two_steps steps = {0}, *t = &steps;
    const int32_t factor = 64;
    gm_queue *q = queue_new(0);
    gm_buffer *b = buffer_new(1);
    CHECK(run_lock(-1) == GM_OK && queue_writes(q, b) == GM_OK);
    CHECK(queue_launch(q, write_slowly, &t, sizeof t, 1, 1, 0) == GM_OK);
    queue_fence(q);
    CHECK(queue_launch(q, read_written, &t, sizeof t, 1, 1, 0) == GM_OK);
    queue_scale(q, &factor);
    queue_end_node(q);
    queue_start(q, 4);
    CHECK(queue_step(q, 0) == GM_OK);
    queue_finish(q);
    run_unlock();
    CHECK(steps.written == 1 && steps.early == 0);
    queue_free(q);
    buffer_release(b);
}

/* Behind a barrier a launch of one thread alone, which the others pass by, and then one that needs the barrier as well:
 * all pieces of the first launch are done before one of the last begins. */
typedef struct { _Atomic int written, early; } shared_steps;

static void write_pieces(const void *args, int64_t begin, int64_t end) {
    shared_steps *t = *(shared_steps *const *)args;
    if (begin == 0)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    t->written += (int)(end - begin);
}

static void pass(const void *args, int64_t begin, int64_t end) { (void)args, (void)begin, (void)end; }

static void read_pieces(const void *args, int64_t begin, int64_t end) {
    shared_steps *t = *(shared_steps *const *)args;
    t->early += t->written < 2 ? (int)(end - begin) : 0;
}

static void a_barrier_holds_for_all_that_comes_behind_it(void) {
    for (int round = 0; round < 20; round++) {
        shared_steps steps = {0}, *t = &steps;
        gm_queue *q = queue_new(0);
        CHECK(run_lock(-1) == GM_OK);
        CHECK(queue_launch(q, write_pieces, &t, sizeof t, 2, 1, 0) == GM_OK);
        queue_fence(q);
        CHECK(queue_launch(q, pass, &t, sizeof t, 1, 1, 0) == GM_OK);
        CHECK(queue_launch(q, read_pieces, &t, sizeof t, 8, 1, 0) == GM_OK);
        queue_start(q, 2);
        CHECK(queue_step(q, 0) == GM_OK);
        queue_finish(q);
        run_unlock();
        CHECK(steps.written == 2 && steps.early == 0);
        queue_free(q);
    }
}

/* Launches of one thread alone that nothing else runs beside: whoever ends what is before them does them. */
typedef struct { _Atomic int written, alone, early; } closed_steps;

static void write_closed(const void *args, int64_t begin, int64_t end) {
    closed_steps *t = *(closed_steps *const *)args;
    if (begin == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    t->written += (int)(end - begin);
}
static void alone_first(const void *args, int64_t begin, int64_t end) {
    closed_steps *t = *(closed_steps *const *)args;
    t->early += t->written != 2;
    t->alone += (int)(end - begin);
}
static void alone_second(const void *args, int64_t begin, int64_t end) {
    closed_steps *t = *(closed_steps *const *)args;
    (void)begin, (void)end;
    t->early += t->alone != 3;
    t->alone = 10;
}
static void read_closed(const void *args, int64_t begin, int64_t end) {
    closed_steps *t = *(closed_steps *const *)args;
    t->early += t->alone == 10 ? 0 : (int)(end - begin);
}

static int64_t all_barriers(const gm_phase_profile *p) {
    int64_t n = 0;
    for (int i = 0; i < GM_WORK_CLASSES; i++)
        n += p->work[i].barriers;
    return n;
}

static void what_runs_alone_ends_the_stage_before_it(void) {
    for (int round = 0; round < 24; round++) {
        closed_steps steps = {0}, *t = &steps;
        gm_phase_profile profile;
        memset(&profile, 0, sizeof profile);
        gm_queue *q = queue_new(0);
        CHECK(run_lock(-1) == GM_OK);
        CHECK(queue_launch(q, write_closed, &t, sizeof t, 2, 1, 0) == GM_OK);
        queue_fence(q);
        CHECK(queue_launch(q, alone_first, &t, sizeof t, 3, 3, 0) == GM_OK);
        CHECK(queue_launch(q, alone_second, &t, sizeof t, 1, 1, LAUNCH_FTZ) == GM_OK);
        queue_fence(q);
        CHECK(queue_launch(q, read_closed, &t, sizeof t, 8, 1, 0) == GM_OK);
        if (round % 2) { /* and at the end of the queue */
            queue_fence(q);
            CHECK(queue_launch(q, alone_second, &t, sizeof t, 1, 1, 0) == GM_OK);
        }
        queue_profile(q, &profile);
        for (int run = 0; run < 3; run++) {
            steps = (closed_steps){0};
            queue_start(q, 1 + round % 3);
            CHECK(queue_step(q, 0) == GM_OK);
            queue_finish(q);
            CHECK(steps.written == 2 && steps.alone == 10 && steps.early == round % 2);
        }
        run_unlock();
        CHECK(all_barriers(&profile) == 3);
        queue_free(q);
    }
}

static void read_all_three(const void *args, int64_t begin, int64_t end) {
    shared_steps *t = *(shared_steps *const *)args;
    t->early += t->written < 3 ? (int)(end - begin) : 0;
}

/* Runs what was recorded: three pieces are written, none while they are read, by two stages. */
static void check_one_barrier(gm_queue *q, const shared_steps *steps, int threads) {
    gm_phase_profile profile;
    memset(&profile, 0, sizeof profile);
    queue_profile(q, &profile);
    queue_start(q, threads);
    CHECK(queue_step(q, 0) == GM_OK);
    queue_finish(q);
    run_unlock();
    CHECK(steps->written == 3 && steps->early == 0 && all_barriers(&profile) == 1);
    queue_free(q);
}

/* Parts of a node write one buffer side by side, also those of one piece; what reads it waits for all of them. */
static void parts_of_a_node_do_not_wait_for_each_other(void) {
    for (int threads = 1; threads <= 3; threads++) {
        shared_steps steps = {0}, *t = &steps;
        gm_queue *q = queue_new(0);
        gm_buffer *b = buffer_new(1);
        CHECK(run_lock(-1) == GM_OK && queue_writes(q, b) == GM_OK);
        CHECK(queue_launch(q, write_pieces, &t, sizeof t, 2, 1, LAUNCH_PART) == GM_OK);
        CHECK(queue_launch(q, write_pieces, &t, sizeof t, 1, 1, LAUNCH_PART) == GM_OK);
        queue_end_node(q);
        CHECK(queue_reads(q, b) == GM_OK);
        CHECK(queue_launch(q, read_all_three, &t, sizeof t, 8, 1, LAUNCH_PART) == GM_OK);
        CHECK(queue_launch(q, read_all_three, &t, sizeof t, 8, 1, LAUNCH_PART) == GM_OK);
        queue_end_node(q);
        check_one_barrier(q, t, threads);
        buffer_release(b);
    }
}

static void read_unwritten(const void *args, int64_t begin, int64_t end) {
    shared_steps *t = *(shared_steps *const *)args;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    t->early += t->written ? (int)(end - begin) : 0;
}

/* Memory that is taken between the parts of a node may be what a node before it reads: the part before had not to wait
 * for that. */
static void a_part_waits_for_who_has_its_memory(void) {
    for (int threads = 1; threads <= 3; threads++) {
        shared_steps steps = {0}, *t = &steps;
        gm_queue *q = queue_new(0);
        gm_buffer *b = buffer_new(64);
        CHECK(run_lock(-1) == GM_OK && queue_reserve(q, 2) == GM_OK && queue_reads(q, b) == GM_OK);
        CHECK(queue_launch(q, read_unwritten, &t, sizeof t, 4, 1, 0) == GM_OK);
        queue_end_node(q);
        queue_drop(q, b);
        CHECK(queue_launch(q, pass, &t, sizeof t, 1, 1, LAUNCH_PART) == GM_OK);
        CHECK(queue_scratch(q, 64) == b->data);
        CHECK(queue_launch(q, write_pieces, &t, sizeof t, 2, 1, LAUNCH_PART) == GM_OK);
        CHECK(queue_launch(q, write_pieces, &t, sizeof t, 1, 1, LAUNCH_PART) == GM_OK);
        queue_end_node(q);
        check_one_barrier(q, t, threads);
    }
}

static void check_counts(const gm_phase_profile *p, gm_work work, int64_t launches, int64_t pieces, int64_t barriers) {
    const gm_work_counts *c = &p->work[work];
    CHECK(c->launches == launches && c->pieces == pieces && c->barriers == barriers);
}

/* Of each run that asks, whatever the number of threads; a launch that comes to no pieces is none. */
static void a_profile_counts_what_ran(void) {
    const int32_t nothing = 0;
    for (int threads = 1; threads <= 3; threads++) {
        shared_steps steps = {0}, *t = &steps;
        gm_phase_profile profile;
        memset(&profile, 0, sizeof profile);
        gm_queue *q = queue_new(0);
        CHECK(run_lock(-1) == GM_OK);
        queue_work(q, GM_WORK_NORM);
        CHECK(queue_launch(q, write_pieces, &t, sizeof t, 2, 1, 0) == GM_OK);
        queue_fence(q);
        queue_work(q, GM_WORK_ATTENTION);
        CHECK(queue_launch(q, pass, &t, sizeof t, 1, 1, 0) == GM_OK);
        queue_work(q, GM_WORK_MLP);
        CHECK(queue_launch(q, read_pieces, &t, sizeof t, 8, 1, 0) == GM_OK);
        CHECK(queue_launch(q, read_pieces, &t, sizeof t, 8, 1, 0) == GM_OK);
        queue_scale(q, &nothing);
        queue_end_node(q);
        for (int run = 0; run < 3; run++) {
            queue_profile(q, run < 2 ? &profile : NULL);
            queue_start(q, threads);
            CHECK(queue_step(q, 0) == GM_OK);
            queue_finish(q);
        }
        run_unlock();
        check_counts(&profile, GM_WORK_NORM, 2, 4, 0);
        check_counts(&profile, GM_WORK_ATTENTION, 2, 2, 2);
        check_counts(&profile, GM_WORK_MLP, 2, 16, 0);
        check_counts(&profile, GM_WORK_OTHER, 0, 0, 0);
        CHECK(threads > 1 || (profile.work[GM_WORK_NORM].ns >= 2 * 5000000 && profile.wait_ns == 0));
        queue_free(q);
    }
}

static void what_was_cancelled_says_so(void) {
    gm_scope *s = gm_scope_open();
    gm_array *x = random_array(s, 2, (int64_t[]){1024, 1024}, 7);
    for (int i = 0; i < 20; i++)
        x = gm_matmul(s, x, x);
    gm_run *run;
    CHECK(gm_eval_begin(&x, 1, -1, &run) == GM_OK);
    CHECK(gm_eval_step(run, 1) == GM_AGAIN);
    CHECK(gm_eval(&x, 1) == GM_ESTATE); /* not from within, as a signal handler would */
    gm_error e;
    gm_take_error(&e);
    gm_eval_end(run);
    CHECK(!gm_array_is_evaluated(x) && gm_array_data(x) == NULL);
    CHECK_ERROR(gm_eval(&x, 1), GM_ESTATE, "interrupted");
    gm_array *y = gm_exp(s, random_array(s, 1, (int64_t[]){100}, 8));
    CHECK(gm_eval(&y, 1) == GM_OK);
    gm_scope_close(s);
}

/* What a batch has computed when it is cancelled is kept, and so is what none of its flags concern. On one thread each
 * launch that ran is known to have run; on several the stages before. */
static void what_was_computed_is_kept(void) {
    gm_scope *s = gm_scope_open();
    const int threads = engine_threads();
    CHECK(gm_set_threads(1) == GM_OK);
    gm_array *x = random_array(s, 2, (int64_t[]){512, 512}, 7), *row = random_array(s, 1, (int64_t[]){100}, 9);
    gm_array *early = gm_exp(s, row), *numbers = gm_arange(s, 0, 5, 1, GM_FLOAT32), *late = numbers;
    gm_array *slow = x;
    for (int i = 0; i < 100; i++)
        slow = gm_matmul(s, slow, x);
    for (int i = 0; i < 102; i++) /* of roots, those with the longest way come last */
        late = gm_add(s, late, numbers);
    gm_array *roots[] = {early, slow, late};
    gm_run *run;
    CHECK(gm_eval_begin(roots, 3, -1, &run) == GM_OK);
    CHECK(gm_eval_step(run, 20) == GM_AGAIN);
    gm_eval_end(run);
    CHECK(gm_set_threads(threads) == GM_OK);
    CHECK(gm_array_is_evaluated(early) && !gm_array_is_evaluated(slow) && !gm_array_is_evaluated(late));
    CHECK_ERROR(gm_eval(&slow, 1), GM_ESTATE, "interrupted");
    CHECK_ERROR(gm_eval(&late, 1), GM_ESTATE, "interrupted");
    CHECK(gm_eval(&numbers, 1) == GM_OK && ((const float *)gm_array_data(numbers))[4] == 4);

    /* Nodes with flags of their own, and more of them than there are bits for flags. */
    enum { N = 100 };
    const int64_t good = 3, bad = 100;
    gm_array *right = gm_array_from(s, GM_INT64, 1, (int64_t[]){1}, &good);
    gm_array *wrong = gm_array_from(s, GM_INT64, 1, (int64_t[]){1}, &bad), *taken[N], *more[N];
    for (int i = 0; i < N; i++) {
        taken[i] = gm_take(s, row, i == 5 ? wrong : right, 0);
        more[i] = gm_add(s, taken[i], taken[i]);
    }
    CHECK_ERROR(gm_eval(more, N), GM_EINDEX, "out of range");
    for (int i = 0; i < N; i++)
        CHECK(gm_array_is_evaluated(taken[i]) == (i != 5) && gm_array_is_evaluated(more[i]) == (i != 5));
    for (int i = 0; i < N; i++) {
        taken[i] = gm_take(s, row, i == 70 ? wrong : right, 0);
        more[i] = gm_add(s, taken[i], taken[i]);
    }
    CHECK_ERROR(gm_eval(more, N), GM_EINDEX, "out of range");
    for (int i = 0; i < N; i++)
        CHECK(gm_array_is_evaluated(more[i]) || i >= 63);
    CHECK(gm_array_is_evaluated(more[10]) && !gm_array_is_evaluated(more[70]));
    CHECK_ERROR(gm_eval(&more[70], 1), GM_EINDEX, "it has no value");
    gm_scope_close(s);
}

static void an_error_leaves_the_graph_as_it_was(void) {
    gm_scope *s = gm_scope_open();
    gm_array *x = random_array(s, 1, (int64_t[]){1 << 20}, 9), *y = gm_sum(s, gm_exp(s, x), -1, NULL, false);
    gm_clear_cache();
    size_t old = gm_set_memory_limit(gm_active_memory() + (1 << 20));
    CHECK_ERROR(gm_eval(&y, 1), GM_ENOMEM, "limit");
    gm_set_memory_limit(old);
    CHECK(gm_eval(&y, 1) == GM_OK);
    CHECK(gm_add(s, x, random_array(s, 1, (int64_t[]){3}, 1)) == NULL);
    gm_error e;
    CHECK(gm_take_error(&e) == GM_ESHAPE && strstr(e.text, "(1048576)") && strstr(e.text, "(3)"));
    CHECK(gm_exp(s, NULL) == NULL && gm_take_error(&e) == GM_OK); /* NULL in, NULL out, silently */
    gm_scope_close(s);
}

static void *evaluate(void *array) {
    gm_array *a = array;
    return gm_eval(&a, 1) == GM_OK && *(float *)gm_array_data(a) == 64 * 64 ? array : NULL;
}

static void threads_may_share_lazy_arrays(void) {
    for (int round = 0; round < 50; round++) {
        gm_scope *s = gm_scope_open();
        gm_array *x = gm_full(s, 2, (int64_t[]){64, 64}, scalar_array(s, 1, GM_FLOAT32), GM_FLOAT32);
        gm_array *sum = gm_sum(s, gm_multiply(s, x, x), -1, NULL, false);
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, evaluate, i % 2 ? sum : gm_add(s, sum, scalar_array(s, 0, GM_FLOAT32)));
        for (int i = 0; i < 8; i++) {
            void *held;
            pthread_join(threads[i], &held);
            CHECK(held);
        }
        gm_scope_close(s);
    }
}

int main(void) {
    CHECK(gm_init() == GM_OK);
    fused_ops_match_their_compositions();
    gated_units_have_gradients();
    a_rule_that_adds_is_given_the_sum_so_far();
    rules_of_many_inputs();
    a_long_chain_needs_no_stack();
    temporaries_share_memory();
    a_reader_keeps_its_value();
    a_plan_runs_again_with_other_inputs();
    a_plan_keeps_its_constants();
    a_scaled_launch_waits_for_what_it_reads();
    a_barrier_holds_for_all_that_comes_behind_it();
    what_runs_alone_ends_the_stage_before_it();
    parts_of_a_node_do_not_wait_for_each_other();
    a_part_waits_for_who_has_its_memory();
    a_profile_counts_what_ran();
    what_was_cancelled_says_so();
    what_was_computed_is_kept();
    an_error_leaves_the_graph_as_it_was();
    threads_may_share_lazy_arrays();
    return check_summary();
}
