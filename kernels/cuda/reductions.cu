/* reductions.cu - reductions over any axes, and the index of an extreme.
 * Of one output, element i of its `reduced` belongs to group i / GROUP; thread t of the T that work on it takes groups
 * t, t + T, ... in order, and the threads join by lane_xor, then by warps in order. T, and the parts into which a long
 * one is cut, follow from the shape alone. Sums and products of floats are float64: what is finite after every element
 * in turn has a finite result, and nothing drifts. */
#include "joins.cuh"

#define COLUMN_AHEAD 8 /* elements of a column that a thread reads at once */
/* Elements of a group: 16 bytes of floats. */
template <class L> struct group_of { static constexpr int N = 4; };
template <int TYPE> struct group_of<floats_of<TYPE>> {
    static constexpr int N = 16 / (int)sizeof(typename float_item<TYPE>::raw);
};
#define COLUMN_WIDTH 32
#define COLUMN_LINES (CUDA_THREADS / COLUMN_WIDTH)

/* ---- rows: threads side by side read elements side by side ---- */
/* What one thread of `team` takes of the elements from begin to end. */
template <class J, class L>
DEVICE typename J::acc take_groups(const cuda_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                                   int team) {
    constexpr int GROUP = group_of<L>::N;
    typename J::acc acc = J::start(a.op, a.in_type);
    for (int64_t g = begin / GROUP + thread; g * GROUP < end; g += team) {
        const int64_t first = g * GROUP;
        decltype(L::load(a.in, 0, 0)) x[GROUP];
        UNROLL for (int j = 0; j < GROUP; j++)
            if (first + j < end)
                x[j] = L::load(a.in,
                               base + (a.contiguous ? first + j : offset_of(a.reduced, a.reduced_steps, first + j)),
                               a.in_type);
        UNROLL for (int j = 0; j < GROUP; j++)
            if (first + j < end) acc = J::take(acc, x[j], a.op, a.in_type);
    }
    return acc;
}
/* Floats side by side and aligned: whole groups at once, in the same order. */
template <class J, int TYPE>
DEVICE typename J::acc take_lines(const cuda_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                                  int team) {
    typedef typename float_item<TYPE>::raw raw;
    constexpr int GROUP = group_of<floats_of<TYPE>>::N, AHEAD = 4; /* groups in flight */
    const raw *in = (const raw *)a.in + base;
    typename J::acc acc = J::start(a.op, a.in_type);
    int64_t g = begin / GROUP + thread;
    for (; (g + (AHEAD - 1) * team + 1) * GROUP <= end; g += AHEAD * team) {
        pack<raw, GROUP> x[AHEAD];
        UNROLL for (int v = 0; v < AHEAD; v++)
            x[v] = ((const pack<raw, GROUP> *)in)[g + v * team];
        UNROLL for (int v = 0; v < AHEAD; v++) UNROLL
            for (int j = 0; j < GROUP; j++) acc = J::take(acc, widen<TYPE>(x[v].at[j]), a.op, a.in_type);
    }
    for (; g * GROUP < end; g += team)
        for (int64_t i = g * GROUP; i < (g + 1) * GROUP && i < end; i++)
            acc = J::take(acc, widen<TYPE>(in[i]), a.op, a.in_type);
    return acc;
}
template <class J, class L> struct row_reader {
    static METHOD typename J::acc take(const cuda_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                                       int team) {
        return take_groups<J, L>(a, base, begin, end, thread, team);
    }
};
template <class J, int TYPE> struct row_reader<J, floats_of<TYPE>> {
    static METHOD typename J::acc take(const cuda_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                                       int team) {
        const uintptr_t at = (uintptr_t)a.in + (uintptr_t)base * sizeof(typename float_item<TYPE>::raw);
        if (a.contiguous && at % 16 == 0) return take_lines<J, TYPE>(a, base, begin, end, thread, team);
        return take_groups<J, floats_of<TYPE>>(a, base, begin, end, thread, team);
    }
};
/* The result of an output's part goes to its place. */
template <class J> DEVICE void put_part(const cuda_reduce_args &a, int64_t output, int64_t part, typename J::acc acc) {
    if (a.parts == 1) J::store(a.out, output, acc, a.out_type, a.op, a.in_type);
    else ((typename J::acc *)a.partial)[output * a.parts + part] = acc;
}
/* Short outputs: a warp each; others: a block for each part. */
template <class J, class L> DEVICE void reduce_rows(const cuda_reduce_args &a) {
    SHARED typename J::acc shared[CUDA_THREADS / WARP];
    const int op = a.op, type = a.in_type;
    const auto join = [=](typename J::acc x, typename J::acc y) { return J::join(x, y, op, type); };
    if (a.part == 0) {
        const int64_t output = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
        const bool real = output < a.kept.count;
        typename J::acc acc = J::start(op, type);
        if (real)
            acc = row_reader<J, L>::take(a, offset_of(a.kept, a.kept_steps, output), 0, a.reduced.count,
                                         thread_index() % WARP, WARP);
        acc = join_warp(acc, join);
        if (real && thread_index() % WARP == 0) put_part<J>(a, output, 0, acc);
        return;
    }
    const int64_t output = block_index() / a.parts, part = block_index() % a.parts;
    const int64_t begin = part * a.part, end = begin + a.part < a.reduced.count ? begin + a.part : a.reduced.count;
    typename J::acc acc = row_reader<J, L>::take(a, offset_of(a.kept, a.kept_steps, output), begin, end, thread_index(),
                                                 CUDA_THREADS);
    acc = join_block(acc, shared, join);
    if (thread_index() == 0) put_part<J>(a, output, part, acc);
}
/* ---- columns: threads side by side are outputs side by side; COLUMN_LINES of them share an output ---- */
template <class J, class L> DEVICE void reduce_columns(const cuda_reduce_args &a) {
    SHARED typename J::acc shared[COLUMN_LINES][COLUMN_WIDTH];
    const int x = thread_index() % COLUMN_WIDTH, line = thread_index() / COLUMN_WIDTH;
    const int64_t output = block_index() / a.parts * COLUMN_WIDTH + x, part = block_index() % a.parts;
    const int64_t begin = part * a.part, end = begin + a.part < a.reduced.count ? begin + a.part : a.reduced.count;
    const bool real = output < a.kept.count;
    typename J::acc acc = J::start(a.op, a.in_type);
    const int64_t base = real ? offset_of(a.kept, a.kept_steps, output) : 0, step = a.reduced_steps.at[0];
    const bool even = a.reduced.ndim == 1;
    for (int64_t i = begin + line; i < end && real; i += COLUMN_LINES * COLUMN_AHEAD) {
        decltype(L::load(a.in, 0, 0)) item[COLUMN_AHEAD];
        UNROLL for (int j = 0; j < COLUMN_AHEAD; j++) {
            const int64_t k = i + j * COLUMN_LINES;
            if (k < end)
                item[j] = L::load(a.in, base + (even ? k * step : offset_of(a.reduced, a.reduced_steps, k)), a.in_type);
        }
        UNROLL for (int j = 0; j < COLUMN_AHEAD; j++)
            if (i + j * COLUMN_LINES < end) acc = J::take(acc, item[j], a.op, a.in_type);
    }
    shared[line][x] = acc;
    barrier();
    if (line > 0 || !real) return;
    for (int k = 1; k < COLUMN_LINES; k++) acc = J::join(acc, shared[k][x], a.op, a.in_type);
    put_part<J>(a, output, part, acc);
}
/* A warp joins the parts of an output, or, where they are many, a block. */
template <class J> DEVICE void reduce_parts(const cuda_reduce_args &a) {
    SHARED typename J::acc shared[CUDA_THREADS / WARP];
    const int op = a.op, type = a.in_type;
    const auto join = [=](typename J::acc x, typename J::acc y) { return J::join(x, y, op, type); };
    const bool many = a.parts >= CUDA_MANY_PARTS;
    const int64_t output = many ? block_index() : block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    const int thread = many ? thread_index() : thread_index() % WARP, team = many ? CUDA_THREADS : WARP;
    typename J::acc acc = J::start(op, type);
    if (output < a.kept.count)
        for (int64_t p = thread; p < a.parts; p += team)
            acc = J::join(acc, ((const typename J::acc *)a.partial)[output * a.parts + p], op, type);
    acc = many ? join_block(acc, shared, join) : join_warp(acc, join);
    if (output < a.kept.count && thread == 0) J::store(a.out, output, acc, a.out_type, a.op, a.in_type);
}
#define REDUCTION(name, J, L)                                                                                          \
    KERNEL(gm_reduce_rows_##name, cuda_reduce_args, CUDA_THREADS) { reduce_rows<J, L>(a); }                            \
    KERNEL(gm_reduce_columns_##name, cuda_reduce_args, CUDA_THREADS) { reduce_columns<J, L>(a); }
#define REDUCTION_PARTS(name, J)                                                                                       \
    KERNEL(gm_reduce_parts_##name, cuda_reduce_args, CUDA_THREADS) { reduce_parts<J>(a); }
#define REDUCTIONS(name)                                                                                               \
    REDUCTION(name##_f16, join_##name, floats_of<GM_T_F16>)                                                            \
    REDUCTION(name##_bf16, join_##name, floats_of<GM_T_BF16>)                                                          \
    REDUCTION(name##_f32, join_##name, floats_of<GM_T_F32>)                                                            \
    REDUCTION_PARTS(name, join_##name)
REDUCTIONS(sum)
REDUCTIONS(prod)
REDUCTIONS(max)
REDUCTIONS(min)
REDUCTIONS(logsumexp)
REDUCTION(int, join_int, any_ints)
REDUCTION_PARTS(int, join_int)
REDUCTION(truth, join_truth, any_truths)
REDUCTION_PARTS(truth, join_truth)
REDUCTION(complex, join_complex, any_complex)
REDUCTION_PARTS(complex, join_complex)

/* ---- the index of an extreme: the greatest key, of equals the first ---- */
struct best { uint64_t key, index; };
/* Of floats as whole numbers in the same order, with one zero; NaN, first in every order, is the greatest key. */
DEVICE uint32_t float_key(float x, bool max) {
    const uint32_t bits = bits_of_float(x + 0.0f), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return x != x ? UINT32_MAX : max ? key : ~key;
}
DEVICE uint64_t extreme_key(const void *p, int64_t i, int type, bool max) {
    if (is_float_type(type)) return float_key(load_float(p, i, type), max);
    if (type == GM_T_C64) {
        const c64 z = ((const c64 *)p)[i];
        return nan_complex(z) ? UINT64_MAX : (uint64_t)float_key(z.re, max) << 32 | float_key(z.im, max);
    }
    const uint64_t x = (uint64_t)load_int(p, i, type), key = is_signed_type(type) ? x ^ 1ull << 63 : x;
    return max ? key : ~key;
}
DEVICE best better(best a, best b) { return b.key > a.key || (b.key == a.key && b.index < a.index) ? b : a; }
#define ARG_AHEAD 4
DEVICE best take_best(const cuda_arg_reduce_args &a, int64_t base, int64_t begin, int64_t end, int64_t step) {
    best found = {0, UINT64_MAX};
    for (int64_t i = begin; i < end; i += step * ARG_AHEAD) {
        uint64_t key[ARG_AHEAD];
        UNROLL for (int j = 0; j < ARG_AHEAD; j++)
            if (i + j * step < end) key[j] = extreme_key(a.in, base + (i + j * step) * a.stride, a.type, a.max);
        UNROLL for (int j = 0; j < ARG_AHEAD; j++)
            if (i + j * step < end) found = better(found, best{key[j], (uint64_t)(i + j * step)});
    }
    return found;
}
/* Floats side by side, where the first of them is aligned: groups of 16 bytes. An element is found by one comparison.
 */
template <int TYPE>
DEVICE best take_best_lines(const cuda_arg_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                            int team) {
    typedef typename float_item<TYPE>::raw raw;
    constexpr int GROUP = group_of<floats_of<TYPE>>::N;
    const raw *in = (const raw *)a.in + base;
    const uint32_t flip = a.max ? 0 : 0x80000000u;
    float top = 0;
    uint32_t at = 0;
    bool any = false;
    const auto take = [&](raw item, int64_t i) {
        const float x = float_of_bits(bits_of_float(widen<TYPE>(item)) ^ flip); /* -x: NaN stays NaN */
        if (any && !(x > top || (x != x && top == top))) return;
        top = x;
        at = (uint32_t)i;
        any = true;
    };
    int64_t g = begin / GROUP + thread;
    for (; (g + (ARG_AHEAD - 1) * team + 1) * GROUP <= end; g += ARG_AHEAD * team) {
        pack<raw, GROUP> x[ARG_AHEAD];
        UNROLL for (int v = 0; v < ARG_AHEAD; v++)
            x[v] = ((const pack<raw, GROUP> *)in)[g + v * team];
        UNROLL for (int v = 0; v < ARG_AHEAD; v++) UNROLL
            for (int j = 0; j < GROUP; j++) take(x[v].at[j], (g + v * team) * GROUP + j);
    }
    for (; g * GROUP < end; g += team)
        for (int64_t i = g * GROUP; i < (g + 1) * GROUP && i < end; i++) take(in[i], i);
    return any ? best{float_key(top, true), at} : best{0, UINT64_MAX};
}
/* What a thread of `team` finds from begin on, which is a multiple of a group, to end. */
DEVICE best take_best_row(const cuda_arg_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                          int team) {
    if (a.stride == 1 && is_float_type(a.type) && ((uintptr_t)a.in + (uintptr_t)base * item_size(a.type)) % 16 == 0) {
        if (a.type == GM_T_F32) return take_best_lines<GM_T_F32>(a, base, begin, end, thread, team);
        if (a.type == GM_T_F16) return take_best_lines<GM_T_F16>(a, base, begin, end, thread, team);
        return take_best_lines<GM_T_BF16>(a, base, begin, end, thread, team);
    }
    return take_best(a, base, begin + thread, end, team);
}
DEVICE void put_best(const cuda_arg_reduce_args &a, int64_t output, int64_t part, best found) {
    if (a.parts == 1) a.out[output] = (uint32_t)found.index;
    else ((best *)a.partial)[output * a.parts + part] = found;
}
KERNEL(gm_arg_rows, cuda_arg_reduce_args, CUDA_THREADS) {
    SHARED best shared[CUDA_THREADS / WARP];
    if (a.part == 0) {
        const int64_t output = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
        best found = {0, UINT64_MAX};
        if (output < a.kept.count)
            found = take_best_row(a, offset_of(a.kept, a.kept_steps, output), 0, a.length, thread_index() % WARP, WARP);
        found = join_warp(found, better);
        if (output < a.kept.count && thread_index() % WARP == 0) put_best(a, output, 0, found);
        return;
    }
    const int64_t output = block_index() / a.parts, part = block_index() % a.parts, begin = part * a.part;
    const int64_t end = begin + a.part < a.length ? begin + a.part : a.length;
    best found = take_best_row(a, offset_of(a.kept, a.kept_steps, output), begin, end, thread_index(), CUDA_THREADS);
    found = join_block(found, shared, better);
    if (thread_index() == 0) put_best(a, output, part, found);
}
KERNEL(gm_arg_columns, cuda_arg_reduce_args, CUDA_THREADS) {
    SHARED best shared[COLUMN_LINES][COLUMN_WIDTH];
    const int x = thread_index() % COLUMN_WIDTH, line = thread_index() / COLUMN_WIDTH;
    const int64_t output = block_index() / a.parts * COLUMN_WIDTH + x, part = block_index() % a.parts;
    const int64_t begin = part * a.part, end = begin + a.part < a.length ? begin + a.part : a.length;
    best found = {0, UINT64_MAX};
    if (output < a.kept.count)
        found = take_best(a, offset_of(a.kept, a.kept_steps, output), begin + line, end, COLUMN_LINES);
    shared[line][x] = found;
    barrier();
    if (line > 0 || output >= a.kept.count) return;
    for (int k = 1; k < COLUMN_LINES; k++) found = better(found, shared[k][x]);
    put_best(a, output, part, found);
}
KERNEL(gm_arg_parts, cuda_arg_reduce_args, CUDA_THREADS) {
    const int64_t output = block_index() * CUDA_THREADS + thread_index();
    if (output >= a.kept.count) return;
    best found = {0, UINT64_MAX};
    for (int64_t p = 0; p < a.parts; p++) found = better(found, ((const best *)a.partial)[output * a.parts + p]);
    a.out[output] = (uint32_t)found.index;
}
