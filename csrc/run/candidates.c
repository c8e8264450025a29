/* candidates.c - see candidates.h. Which candidates stay is found by selection: a sample says between which two keys
 * the cut is likely to be, a pass over all candidates adds up what is above and puts what is between side by side, and
 * so on with those, until they are few enough to be sorted. */
#include "run/candidates.h"
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/team.h"
#include "core/graph.h"

enum { FEW = 256 };             /* that are sorted; also the size of a sample */
#define WORTH_THREADS (1 << 16) /* candidates */

/* ---- memory ---- */
gm_status candidates_reserve(gm_candidate_list *c, int64_t vocab) {
    if (c->memory)
        return GM_OK;
    const size_t blocks = (size_t)((vocab + GM_DRAW_BLOCK - 1) / GM_DRAW_BLOCK), items = blocks * GM_DRAW_BLOCK;
    const size_t bytes = blocks * (sizeof *c->measured + sizeof *c->chosen + GM_DRAW_RUNS * sizeof *c->runs +
                                   2 * sizeof(int32_t)) +
                         2 * items * (sizeof(float) + sizeof(int32_t));
    c->memory = memory_new(bytes);
    if (!c->memory)
        return GM_ENOMEM;
    c->vocab = vocab;
    c->measured = c->memory;
    c->chosen = (gm_draw_chosen *)(c->measured + blocks);
    c->runs = (float *)(c->chosen + blocks);
    c->own.logits = c->runs + blocks * GM_DRAW_RUNS;
    c->part.logits = c->own.logits + items;
    c->own.ids = (int32_t *)(c->part.logits + items);
    c->part.ids = c->own.ids + items;
    c->own.counts = c->part.ids + items;
    c->part.counts = c->own.counts + blocks;
    return GM_OK;
}

void candidates_free(gm_candidate_list *c) {
    memory_free(c->memory);
    memset(c, 0, sizeof *c);
}

void candidates_begin(gm_candidate_list *c, const float *logits) {
    gm_error unused;
    c->n = c->vocab;
    c->blocks = (c->vocab + GM_DRAW_BLOCK - 1) / GM_DRAW_BLOCK;
    for (int64_t b = 0; b < c->blocks; b++)
        c->own.counts[b] = b + 1 < c->blocks ? GM_DRAW_BLOCK : (int32_t)(c->vocab - b * GM_DRAW_BLOCK);
    c->in = (gm_candidates){logits, NULL, c->own.counts, 0, 1};
    c->is_measured = false;
    gm_status status = c->threads > 1 && c->n >= WORTH_THREADS ? run_lock(0) : GM_AGAIN;
    c->locked = status == GM_OK;
    if (status == GM_ESTATE)
        gm_take_error(&unused); /* an evaluation of this very thread is under way: without the team, then */
}

void candidates_end(gm_candidate_list *c) {
    if (c->locked)
        run_unlock();
    c->locked = false;
}

/* ---- passes ---- */
typedef struct {
    gm_kernel kernel;
    const void *args;
    _Atomic int64_t next;
    int64_t blocks;
} pass;

static void work(void *context, int thread, int n_threads) {
    pass *p = context;
    (void)thread, (void)n_threads;
    for (;;) {
        const int64_t b = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (b >= p->blocks)
            return;
        p->kernel(p->args, b, b + 1);
    }
}

static void over_blocks(const gm_candidate_list *c, gm_kernel kernel, const void *args, int64_t blocks) {
    if (!c->locked || blocks * GM_DRAW_BLOCK < WORTH_THREADS) {
        kernel(args, 0, blocks);
        return;
    }
    pass p = {.kernel = kernel, .args = args, .blocks = blocks};
    work(&p, 0, team_start(c->threads, work, &p));
    team_join();
}

static void measure(gm_candidate_list *c, gm_draw_measurement what, float centre) {
    const gm_draw_measure_args a = {c->in, what, c->best, centre, c->measured, c->runs};
    over_blocks(c, engine_host_loops().draw_measure, &a, c->blocks);
}

/* What fits into one block is moved there. Returns how many there are. */
static int64_t close_up(candidate_columns *columns, int64_t *blocks) {
    int64_t n = 0, at = 0;
    for (int64_t b = 0; b < *blocks; b++)
        n += columns->counts[b];
    if (n > GM_DRAW_BLOCK)
        return n;
    for (int64_t b = 0; b < *blocks; at += columns->counts[b++]) {
        const size_t count = (size_t)columns->counts[b];
        memmove(columns->logits + at, columns->logits + b * GM_DRAW_BLOCK, count * sizeof *columns->logits);
        memmove(columns->ids + at, columns->ids + b * GM_DRAW_BLOCK, count * sizeof *columns->ids);
    }
    columns->counts[0] = (int32_t)n;
    *blocks = 1;
    return n;
}

/* The chosen ones become all that there are. */
static void keep(gm_candidate_list *c, gm_draw_choose_args a) {
    a.in = c->in;
    a.logits = c->own.logits;
    a.ids = c->own.ids;
    a.counts = c->own.counts;
    a.out = NULL;
    over_blocks(c, engine_host_loops().draw_choose, &a, c->blocks);
    c->n = close_up(&c->own, &c->blocks);
    c->in = (gm_candidates){c->own.logits, c->own.ids, c->own.counts, 0, 1};
}

/* ---- logits ---- */
int64_t candidates_allow(gm_candidate_list *c, const uint32_t *allowed) {
    for (int64_t b = 0; b < c->blocks; b++) {
        const int64_t first = b * GM_DRAW_BLOCK, end = first + c->own.counts[b];
        int64_t at = first;
        for (int64_t i = first; i < end; i += 32) {
            uint32_t bits = allowed[i / 32];
            if (end - i < 32)
                bits &= (UINT32_C(1) << (end - i)) - 1;
            for (; bits; bits &= bits - 1, at++) {
                const int64_t id = i + __builtin_ctz(bits);
                c->own.logits[at] = c->in.logits[id];
                c->own.ids[at] = (int32_t)id;
            }
        }
        c->own.counts[b] = (int32_t)(at - first);
    }
    c->n = close_up(&c->own, &c->blocks);
    c->in = (gm_candidates){c->own.logits, c->own.ids, c->own.counts, 0, 1};
    c->is_measured = false;
    return c->n;
}

/* Of a temperature so small that the best overflows, only what is below the best is divided: the same distribution. */
void candidates_divide(gm_candidate_list *c, float temperature) {
    const float best = candidates_best(c), shift = isinf(best / temperature) && !isinf(best) ? best : 0;
    if (c->in.shift != 0 || c->in.divisor != 1)
        candidates_take(c);
    c->in.shift = shift;
    c->in.divisor = temperature;
    c->best = (best - shift) / temperature;
}

void candidates_take(gm_candidate_list *c) {
    if (c->in.shift != 0 || c->in.divisor != 1) {
        keep(c, (gm_draw_choose_args){.low = -INFINITY, .high = INFINITY, .last_id = INT32_MAX});
    } else if (c->in.logits != c->own.logits) {
        memcpy(c->own.logits, c->in.logits, (size_t)c->n * sizeof *c->own.logits);
        c->in.logits = c->own.logits;
    }
}

float *candidates_at(gm_candidate_list *c, int32_t id) {
    if (!c->in.ids)
        return &c->own.logits[id];
    const int64_t block = c->blocks > 1 ? id / GM_DRAW_BLOCK : 0, first = block * GM_DRAW_BLOCK;
    int64_t low = first, high = first + c->own.counts[block];
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (c->own.ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < first + c->own.counts[block] && c->own.ids[low] == id ? &c->own.logits[low] : NULL;
}

void candidates_changed(gm_candidate_list *c) { c->is_measured = false; }

/* ---- what they amount to ---- */
float candidates_best(gm_candidate_list *c) {
    if (c->is_measured)
        return c->best;
    measure(c, GM_DRAW_BEST, 0);
    c->best = -INFINITY;
    for (int64_t b = 0; b < c->blocks; b++)
        c->best = c->measured[b].best > c->best ? c->measured[b].best : c->best;
    c->is_measured = true;
    return c->best;
}

static float logit_at(const gm_candidates *in, int64_t i) {
    return ((in->logits[i] >= -INFINITY ? in->logits[i] : -INFINITY) - in->shift) / in->divisor;
}
static int32_t id_at(const gm_candidates *in, int64_t i) { return in->ids ? in->ids[i] : (int32_t)i; }

/* Only its own block is looked through. */
int32_t candidates_first_best(gm_candidate_list *c) {
    int64_t block = 0;
    measure(c, GM_DRAW_BEST, 0);
    for (int64_t b = 1; b < c->blocks; b++)
        block = c->measured[b].best > c->measured[block].best ? b : block;
    const float best = c->measured[block].best;
    for (int64_t i = block * GM_DRAW_BLOCK; best > -INFINITY && i < block * GM_DRAW_BLOCK + c->in.counts[block]; i++)
        if (logit_at(&c->in, i) == best)
            return id_at(&c->in, i);
    return -1;
}

double candidates_weigh(gm_candidate_list *c, double *surprise) {
    double total = 0, sum = 0;
    if (surprise)
        *surprise = 0;
    if (!(candidates_best(c) > -INFINITY))
        return 0;
    measure(c, GM_DRAW_WEIGHTS, 0);
    for (int64_t b = 0; b < c->blocks; b++) {
        sum += c->measured[b].sum;
        for (int r = 0; r < GM_DRAW_RUNS; r++)
            total += (double)c->runs[b * GM_DRAW_RUNS + r];
    }
    if (surprise)
        *surprise = sum;
    return total;
}

double candidates_deviation(gm_candidate_list *c) {
    double sum = 0, squares = 0, count = 0;
    measure(c, GM_DRAW_MOMENT, 0);
    for (int64_t b = 0; b < c->blocks; b++) {
        sum += c->measured[b].sum;
        count += c->measured[b].count;
    }
    measure(c, GM_DRAW_SQUARES, (float)(sum / count));
    for (int64_t b = 0; b < c->blocks; b++)
        squares += c->measured[b].sum;
    return sqrt(squares / count);
}

/* The first index with which the sum is more than mass, else the last that has more than 0; *before: the sum before it.
 */
static int64_t place_of(const float *parts, int64_t n, double mass, double *before) {
    double sum = 0;
    int64_t last = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!(parts[i] > 0))
            continue;
        last = i;
        *before = sum;
        sum += (double)parts[i];
        if (sum > mass)
            break;
    }
    return last;
}

static void weigh_some(const gm_candidate_list *c, const float *logits, int64_t n, float *out) {
    const gm_draw_weigh_args a = {{.logits = logits, .shift = c->in.shift, .divisor = c->in.divisor}, c->best, out};
    engine_host_loops().draw_weigh(&a, 0, n);
}

int32_t candidates_reach(gm_candidate_list *c, double mass, float *weight) {
    float weights[GM_DRAW_RUN];
    double before = 0, unused;
    const int64_t run = place_of(c->runs, c->blocks * GM_DRAW_RUNS, mass, &before), first = run * GM_DRAW_RUN;
    const int64_t left = first / GM_DRAW_BLOCK * GM_DRAW_BLOCK + c->in.counts[first / GM_DRAW_BLOCK] - first;
    const int64_t n = left < GM_DRAW_RUN ? left : GM_DRAW_RUN;
    weigh_some(c, c->in.logits + first, n, weights);
    const int64_t i = place_of(weights, n, mass - before, &unused);
    *weight = weights[i];
    return id_at(&c->in, first + i);
}

void candidates_spread(gm_candidate_list *c, double total, float *out) {
    float weights[GM_DRAW_BLOCK];
    memset(out, 0, (size_t)c->vocab * sizeof *out);
    for (int64_t b = 0; b < c->blocks; b++) {
        const int64_t first = b * GM_DRAW_BLOCK;
        weigh_some(c, c->in.logits + first, c->in.counts[b], weights);
        for (int32_t i = 0; i < c->in.counts[b]; i++)
            out[id_at(&c->in, first + i)] = (float)((double)weights[i] / total);
    }
}

/* ---- the cut: which key and id is the last that stays ---- */
typedef struct {
    float key, weight;
    int32_t id;
} item;

static bool precedes(const item *a, const item *b) { return a->key > b->key || (a->key == b->key && a->id < b->id); }

/* Shell's, with Ciura's steps. */
static void sort_items(item *items, int64_t n) {
    static const int64_t steps[] = {132, 57, 23, 10, 4, 1};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++)
        for (int64_t i = steps[s]; i < n; i++) {
            const item one = items[i];
            int64_t at = i;
            for (; at >= steps[s] && precedes(&one, &items[at - steps[s]]); at -= steps[s])
                items[at] = items[at - steps[s]];
            items[at] = one;
        }
}

/* At most FEW items, evenly spread over the candidates. */
static int64_t pick(const gm_candidate_list *c, const gm_draw_choose_args *a, int64_t n, item *items) {
    float raw[FEW], weights[FEW];
    const int64_t m = n < FEW ? n : FEW;
    for (int64_t k = 0, b = 0, first = 0; k < m; k++) {
        const int64_t wanted = (2 * k + 1) * n / (2 * m);
        while (wanted >= first + a->in.counts[b])
            first += a->in.counts[b++];
        const int64_t i = b * GM_DRAW_BLOCK + wanted - first;
        const float logit = logit_at(&a->in, i);
        raw[k] = logit;
        items[k] = (item){a->typical ? -fabsf(logit - a->best - a->centre - a->centre_rest) : logit, 1,
                          id_at(&a->in, i)};
    }
    if (a->counted)
        return m;
    const gm_draw_weigh_args weigh = {{.logits = raw, .divisor = 1}, c->best, weights};
    engine_host_loops().draw_weigh(&weigh, 0, m);
    for (int64_t k = 0; k < m; k++)
        items[k].weight = weights[k];
    return m;
}

/* Narrows [a->low, a->high] to keys between which the cut is likely to be: all that is below it has `tail`. Counted
 * from the least key, as a sample may well miss the few that have most. Where too many are equal for it to gain
 * anything, the most likely key alone. */
static void guess(const gm_candidate_list *c, gm_draw_choose_args *a, int64_t n, double tail) {
    item items[FEW];
    const int64_t m = pick(c, a, n, items);
    const double scale = (double)n / (double)m;
    double sum = 0;
    int64_t at = m;
    sort_items(items, m);
    while (at > 0 && sum + (double)items[at - 1].weight * scale <= tail)
        sum += (double)items[--at].weight * scale;
    const int64_t margin = 3 + (int64_t)(2.5 * sqrt((double)(at < m - at ? at : m - at)));
    const float low = a->low, high = a->high;
    if (at + margin < m)
        a->low = items[at + margin].key;
    if (at - 1 - margin >= 0)
        a->high = items[at - 1 - margin].key;
    if (a->low == low && a->high == high)
        a->low = a->high = items[at > 0 ? at - 1 : 0].key;
}

/* Puts those in [a->low, a->high] into c->part; *n is how many. */
static gm_draw_chosen narrow(gm_candidate_list *c, const gm_draw_choose_args *a, int64_t *blocks, int64_t *n) {
    gm_draw_chosen sum = {0, 0};
    over_blocks(c, engine_host_loops().draw_choose, a, *blocks);
    for (int64_t b = 0; b < *blocks; b++) {
        sum.mass += c->chosen[b].mass;
        sum.above += c->chosen[b].above;
    }
    *n = close_up(&c->part, blocks);
    return sum;
}

/* The last of those at hand that stays, in order: with it the sum reaches mass. */
static void cut_few(const gm_candidate_list *c, gm_draw_choose_args *a, int64_t n, double mass) {
    item items[FEW];
    double sum = 0;
    const int64_t m = pick(c, a, n, items);
    sort_items(items, m);
    if (m == 0) /* all have less than that, by a rounding */
        return;
    int64_t at = 0;
    while (at < m - 1 && (sum += (double)items[at].weight) < mass)
        at++;
    a->low = items[at].key;
    a->last_id = items[at].id;
}

/* The same of any number with equal keys: they are in the order of their ids. */
static void cut_ties(gm_candidate_list *c, gm_draw_choose_args *a, int64_t blocks, double mass) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = b * GM_DRAW_BLOCK; i < b * GM_DRAW_BLOCK + a->in.counts[b]; i++) {
            float weight = 1;
            if (!a->counted) {
                const gm_draw_weigh_args weigh = {{.logits = a->in.logits + i, .divisor = 1}, c->best, &weight};
                engine_host_loops().draw_weigh(&weigh, 0, 1);
            }
            a->last_id = id_at(&a->in, i);
            if ((sum += (double)weight) >= mass)
                return;
        }
}

/* Keeps as few as have `mass` together, out of total. */
static void keep_best(gm_candidate_list *c, gm_draw_choose_args a, double total, double mass) {
    float low = -INFINITY, high = INFINITY; /* the cut is in here */
    double above = 0;                       /* of keys above high */
    int64_t n = c->n, blocks = c->blocks;
    a.in = c->in;
    a.best = c->best;
    a.logits = c->part.logits;
    a.ids = c->part.ids;
    a.counts = c->part.counts;
    a.out = c->chosen;
    a.last_id = INT32_MAX;
    double inside = total;
    for (bool missed = false; missed || (n > FEW && low < high);) {
        a.low = low;
        a.high = high;
        if (missed) { /* from the beginning, between what is known by now */
            a.in = c->in;
            n = c->n;
            blocks = c->blocks;
            above = 0;
        } else {
            guess(c, &a, n, inside - (mass - above));
        }
        gm_draw_chosen sum = narrow(c, &a, &blocks, &n);
        a.in = (gm_candidates){c->part.logits, c->part.ids, c->part.counts, 0, 1};
        sum.above += above;
        const bool over = sum.above >= mass && a.high < high, under = sum.above + sum.mass < mass && a.low > low;
        missed = over || under;
        if (over) {
            low = nextafterf(a.high, INFINITY);
        } else if (under) {
            high = nextafterf(a.low, -INFINITY);
        } else {
            low = a.low;
            high = a.high;
            above = sum.above;
            inside = sum.mass;
        }
    }
    a.low = low;
    a.high = INFINITY;
    if (n <= FEW)
        cut_few(c, &a, n, mass - above);
    else
        cut_ties(c, &a, blocks, mass - above);
    keep(c, a);
}

void candidates_keep_count(gm_candidate_list *c, int64_t count) {
    if (count < c->n)
        keep_best(c, (gm_draw_choose_args){.counted = true}, (double)c->n, (double)count);
}

void candidates_keep_mass(gm_candidate_list *c, double total, double mass) {
    keep_best(c, (gm_draw_choose_args){.counted = false}, total, mass);
}

void candidates_keep_typical(gm_candidate_list *c, double centre, double total, double mass) {
    const float head = (float)centre;
    keep_best(c, (gm_draw_choose_args){.typical = true, .centre = head, .centre_rest = (float)(centre - (double)head)},
              total, mass);
    c->is_measured = false;
}

/* The least float that is not below: logits compare with it as with the number. */
static float float_from(double least) {
    const float near = (float)least;
    return (double)near < least ? nextafterf(near, INFINITY) : near;
}

void candidates_keep_from(gm_candidate_list *c, double least) {
    const float low = float_from(least);
    if (candidates_best(c) >= low && low > -INFINITY)
        keep(c, (gm_draw_choose_args){.low = low, .high = INFINITY, .last_id = INT32_MAX});
}

void candidates_drop_from(gm_candidate_list *c, double least) {
    int64_t blocks, n;
    candidates_take(c);
    blocks = c->blocks;
    const gm_draw_choose_args a = {
        .in = c->in,
        .counted = true,
        .low = float_from(least),
        .high = INFINITY,
        .last_id = INT32_MAX,
        .logits = c->part.logits,
        .ids = c->part.ids,
        .counts = c->part.counts,
        .out = c->chosen,
    };
    narrow(c, &a, &blocks, &n);
    item last = {INFINITY, 0, -1};
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = b * GM_DRAW_BLOCK; i < b * GM_DRAW_BLOCK + c->part.counts[b]; i++) {
            const item one = {c->part.logits[i], 0, c->part.ids[i]};
            if (last.id < 0 || precedes(&last, &one))
                last = one;
            *candidates_at(c, one.id) = -INFINITY;
        }
    if (last.id >= 0)
        *candidates_at(c, last.id) = last.key;
    candidates_changed(c);
}
