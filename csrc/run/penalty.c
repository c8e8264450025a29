/* penalty.c - what depends on the ids so far: penalties, dry, bad words.
 *  (1) A tally counts history[begin, n_history): at most penalty_last_n ids, and none of the prompt where the prompt
 *      does not count. */
#include <float.h>
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/grow.h"
#include "base/memory.h"
#include "run/sample.h"

static bool repeats(const gm_sampling *o) { return o->repetition_penalty != 1; }
static bool counts(const gm_sampling *o) { return o->frequency_penalty != 0 || o->presence_penalty != 0; }

gm_status penalty_reserve(gm_sampler *s) {
    const gm_sampling *o = &s->options;
    size_t vocab = (size_t)s->vocab;
    if (o->penalty_last_n != 0 && repeats(o) &&
        !(s->repeated.counts = memory_zeroed(vocab * sizeof *s->repeated.counts)))
        return GM_ENOMEM;
    if (o->penalty_last_n != 0 && counts(o) && !(s->counted.counts = memory_zeroed(vocab * sizeof *s->counted.counts)))
        return GM_ENOMEM;
    if (s->repeated.counts || s->counted.counts) {
        s->seen = memory_array(vocab, sizeof *s->seen);
        s->is_seen = memory_zeroed(vocab);
        if (!s->seen || !s->is_seen)
            return GM_ENOMEM;
    }
    if (o->dry_multiplier == 0)
        return GM_OK;
    s->dry_lengths = memory_zeroed(vocab * sizeof *s->dry_lengths);
    s->dry_breaks = memory_zeroed(vocab);
    if (!s->dry_lengths || !s->dry_breaks)
        return GM_ENOMEM;
    const int32_t *ids = o->dry_breakers.ids;
    for (size_t i = 0; i < o->dry_breakers.n; ids += o->dry_breakers.lengths[i++])
        if (o->dry_breakers.lengths[i] == 1)
            s->dry_breaks[*ids] = 1;
    return GM_OK;
}

static void tally_saw(gm_sampler *s, sample_tally *tally, int64_t first, bool skip) {
    if (!tally->counts)
        return;
    if (skip) {
        tally->begin = s->n_history;
        return;
    }
    for (int64_t i = first; i < s->n_history; i++) {
        const int32_t id = s->history[i];
        tally->counts[id]++;
        if (!s->is_seen[id])
            s->seen[s->n_seen++] = id;
        s->is_seen[id] = 1;
    }
    int64_t window = s->options.penalty_last_n;
    while (window > 0 && s->n_history - tally->begin > window)
        tally->counts[s->history[tally->begin++]]--;
}

void penalty_accept(gm_sampler *s, int64_t first, bool prompt) {
    tally_saw(s, &s->repeated, first, prompt && !s->options.repetition_of_prompt);
    tally_saw(s, &s->counted, first, prompt && !s->options.counts_of_prompt);
}

/* Repetition (Keskar et al., 2019, as in transformers): a logit of an id that was seen is divided by the penalty, or
 * multiplied where it is negative. Frequency and presence (OpenAI): minus so much for each time, and once. */
void penalty_apply(gm_sampler *s) {
    const gm_sampling *o = &s->options;
    candidates_take(&s->candidates);
    for (int32_t i = 0; i < s->n_seen; i++) {
        const int32_t id = s->seen[i], count = s->counted.counts ? s->counted.counts[id] : 0;
        float *logit = candidates_at(&s->candidates, id);
        if (!logit)
            continue;
        if (s->repeated.counts && s->repeated.counts[id])
            *logit = *logit > 0 ? *logit / o->repetition_penalty : *logit * o->repetition_penalty;
        if (count)
            *logit -= (float)count * o->frequency_penalty + o->presence_penalty;
    }
    candidates_changed(&s->candidates);
}

/* ---- what is forbidden ---- */
void penalty_forbid(gm_sampler *s, int32_t id) {
    float *logit = candidates_at(&s->candidates, id);
    if (logit)
        *logit = -INFINITY;
}

void penalty_ban(gm_sampler *s) {
    const gm_sampling *o = &s->options;
    for (size_t i = 0; i < o->n_suppressed; i++)
        penalty_forbid(s, o->suppressed[i]);
    const int32_t *word = o->bad_words.ids;
    for (size_t i = 0; i < o->bad_words.n; word += o->bad_words.lengths[i++]) {
        int64_t before = (int64_t)o->bad_words.lengths[i] - 1;
        if (before == 0 || (before <= s->n_history &&
                            memcmp(word, s->history + s->n_history - before, (size_t)before * sizeof *word) == 0))
            penalty_forbid(s, word[before]);
    }
}

/* ---- dry ---- */

/* How many ids come after the last breaker among the last n. */
static int64_t since_breaker(const gm_sampler *s, int64_t n) {
    const gm_sequences *breakers = &s->options.dry_breakers;
    for (int64_t after = 0; after < n; after++) {
        int64_t end = s->n_history - after;
        if (s->dry_breaks[s->history[end - 1]])
            return after;
        const int32_t *ids = breakers->ids;
        for (size_t i = 0; i < breakers->n; ids += breakers->lengths[i++]) {
            int64_t length = (int64_t)breakers->lengths[i];
            if (length > 1 && length <= end &&
                memcmp(ids, s->history + end - length, (size_t)length * sizeof *ids) == 0)
                return after;
        }
    }
    return n;
}

/* "Don't repeat yourself" (p-e-w, 2024, as in llama.cpp): where the last ids, back to a breaker, occurred before
 * already, the id that followed then is made less likely by multiplier * base^(length - allowed_length), length being
 * how many ids agree. */
gm_status penalty_dry(gm_sampler *s) {
    const gm_sampling *o = &s->options;
    int64_t n = s->n_history;
    if (o->dry_last_n > 0 && o->dry_last_n < n)
        n = o->dry_last_n;
    int64_t most = since_breaker(s, n);
    if (most < o->dry_allowed_length)
        return GM_OK;
    GM_TRY(grow_array(&s->matches, 0, &s->matches_capacity, (size_t)n, sizeof *s->matches));
    /* Ids counted from the end: match[i] is how many from i on agree with those from 0 on (the Z function). */
    const int32_t *last = s->history + s->n_history - 1;
    int32_t *match = s->matches;
    for (int64_t i = 1, left = 0, right = 0; i < n; i++) {
        int64_t length = 0;
        if (i < right)
            length = match[i - left] < right - i ? match[i - left] : right - i;
        while (i + length < n && last[-length] == last[-i - length])
            length++;
        match[i] = (int32_t)length;
        if (i + length > right) {
            left = i;
            right = i + length;
        }
    }
    for (int64_t i = 1; i < n; i++) {
        int32_t length = match[i] < most ? match[i] : (int32_t)most, *longest = &s->dry_lengths[last[1 - i]];
        *longest = length > *longest ? length : *longest;
    }
    candidates_take(&s->candidates);
    for (int64_t i = 1; i < n; i++) { /* each id once, as its length is 0 afterwards */
        const int32_t id = last[1 - i], length = s->dry_lengths[id];
        float *logit = length >= o->dry_allowed_length && !s->dry_breaks[id] ? candidates_at(&s->candidates, id) : NULL;
        if (logit)
            *logit -= fminf(o->dry_multiplier * powf(o->dry_base, (float)(length - o->dry_allowed_length)), 1e30f);
        s->dry_lengths[id] = 0;
    }
    candidates_changed(&s->candidates);
    return GM_OK;
}
