/* launch_fft.c - Fourier transforms, with what they need. */
#include "cpu/launch.h"

/* ---- Fourier transforms ---- */
/* Factors for passes: fours first, then what is left; false where a prime above 13 is left. */
static bool factorise(int64_t n, gm_fft_plan *plan) {
    static const int32_t radices[] = {4, 2, 3, 5, 7, 11, 13};
    plan->n = n;
    plan->n_factors = 0;
    for (size_t i = 0; i < sizeof radices / sizeof *radices; i++)
        for (; n % radices[i] == 0; n /= radices[i]) plan->factors[plan->n_factors++] = radices[i];
    return n == 1;
}

static bool make_roots(gm_recorder *r, gm_fft_plan *plan) {
    double *roots = r->workspace(r, (size_t)plan->n * 2 * sizeof *roots);
    const gm_fft_roots_args a = {.roots = roots, .n = plan->n};
    plan->roots = roots;
    if (!roots || !LAUNCH(r, fft_roots, &a, plan->n, 2048, 0)) return false;
    r->fence(r);
    return true;
}

/* What lines of an awkward length share. */
static bool make_chirp(gm_recorder *r, gm_fft_args *a) {
    double *chirp = r->workspace(r, (size_t)a->n * 2 * sizeof *chirp);
    double *spectrum = chirp ? r->workspace(r, (size_t)a->plan.n * 2 * sizeof *spectrum) : NULL;
    double *rest = spectrum ? r->workspace(r, (size_t)a->plan.n * 2 * sizeof *rest) : NULL;
    const gm_fft_chirp_args args = {.chirp = chirp, .spectrum = spectrum, .work = rest, .n = a->n, .plan = a->plan};
    if (!rest || !LAUNCH(r, fft_chirp, &args, 1, 1, 0)) return false;
    a->chirp = chirp;
    a->spectrum = spectrum;
    r->fence(r);
    return true;
}

bool cpu_fft(gm_recorder *r, const gm_fft_args *a, int64_t n) {
    gm_fft_args lines = *a;
    const bool smooth = factorise(a->n, &lines.plan);
    if (!smooth) {
        int64_t m = 1;
        while (m < 2 * a->n - 1) m *= 2;
        factorise(m, &lines.plan);
    }
    if (!make_roots(r, &lines.plan) || (!smooth && !make_chirp(r, &lines))) return false;
    if (!smooth || a->n > GM_FFT_STACK) {
        lines.work = r->workspace(r, (size_t)(n * GM_FFT_WORK(a->n, lines.plan.n)) * sizeof *lines.work);
        if (!lines.work) return false;
    }
    return LAUNCH(r, fft, &lines, n, 1 + 2048 / a->n, 0);
}
