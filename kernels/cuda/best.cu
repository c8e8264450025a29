/* best.cu - what rows of logits come to: parts of them, then a warp for each row, which moves its sequence on. NaN is
 * never the greatest. */
#include "best_rows.h"
#include "functions.cuh"

DEVICE double scaled_sum(const cuda_best &part, float top) {
    return part.top == top ? part.sum : part.sum * (double)vf_exp(part.top - top);
}
DEVICE cuda_best join_best(const cuda_best &a, const cuda_best &b) {
    const bool second = b.top > a.top || (b.top == a.top && b.at < a.at);
    const float top = second ? b.top : a.top;
    return {top, second ? b.at : a.at, scaled_sum(a, top) + scaled_sum(b, top)};
}
/* Elements of a part that a thread takes, in groups of four; what is beyond the row's end is -inf. */
DEVICE void load_part(const cuda_best_rows_args &a, int64_t row, int64_t begin, float (&x)[CUDA_BEST_EACH]) {
    const float *in = a.to.logits + row * a.to.vocab;
    UNROLL for (int v = 0; v < CUDA_BEST_EACH; v += 4) {
        const int64_t i = begin + ((int64_t)thread_index() + v / 4 * CUDA_THREADS) * 4;
        if (a.lines && i < a.to.vocab) {
            const pack<float, 4> four = *(const pack<float, 4> *)(in + i);
            UNROLL for (int j = 0; j < 4; j++)
                x[v + j] = four.at[j];
        } else {
            UNROLL for (int j = 0; j < 4; j++)
                x[v + j] = i + j < a.to.vocab ? in[i + j] : -INFINITY;
        }
    }
}
KERNEL(gm_best_parts, cuda_best_rows_args, CUDA_THREADS) {
    SHARED cuda_best tops[CUDA_THREADS / WARP];
    SHARED double sums[CUDA_THREADS / WARP];
    const int64_t row = block_index() / a.parts, part = block_index() % a.parts, begin = part * CUDA_BEST_PART;
    float x[CUDA_BEST_EACH];
    cuda_best found = {-INFINITY, UINT32_MAX, 0};
    load_part(a, row, begin, x);
    UNROLL for (int k = 0; k < CUDA_BEST_EACH; k++) {
        const int64_t i = begin + ((int64_t)thread_index() + k / 4 * CUDA_THREADS) * 4 + k % 4;
        if (x[k] > found.top) found = {x[k], (uint32_t)i, 0};
    }
    found = join_block(found, tops, [](const cuda_best &p, const cuda_best &q) {
        return q.top > p.top || (q.top == p.top && q.at < p.at) ? q : p;
    });
    UNROLL for (int k = 0; k < CUDA_BEST_EACH; k++) {
        const int64_t i = begin + ((int64_t)thread_index() + k / 4 * CUDA_THREADS) * 4 + k % 4;
        if (i < a.to.vocab) found.sum += x[k] == found.top ? 1.0 : (double)vf_exp(x[k] - found.top);
    }
    found.sum = join_block(found.sum, sums, [](double p, double q) { return p + q; });
    if (thread_index() == 0) a.partial[row * a.parts + part] = found;
}
KERNEL(gm_best_rows, cuda_best_rows_args, CUDA_THREADS) {
    const int64_t row = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    cuda_best found = {-INFINITY, UINT32_MAX, 0};
    for (int64_t p = thread_index() % WARP; p < a.parts && row < a.rows; p += WARP)
        found = join_best(found, a.partial[row * a.parts + p]);
    found = join_warp(found, [](const cuda_best &p, const cuda_best &q) { return join_best(p, q); });
    if (row >= a.rows || thread_index() % WARP > 0) return;
    const bool some = found.top > -INFINITY;
    const float log_sum = isinf(found.top) && found.sum == found.sum ? found.top : found.top + vf_log((float)found.sum);
    const int64_t place = a.to.positions ? (a.to.positions[row] & 1) * a.rows + row : row;
    a.to.best[place] = {some ? (int32_t)found.at : -1, found.top, log_sum};
    a.to.ids[row] = some ? found.at : 0;
    if (!a.to.positions) return;
    a.to.tokens[row] = some ? (int32_t)found.at : 0;
    a.to.positions[row]++;
}
