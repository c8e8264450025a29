/* reductions.cu - reductions over any axes, and the index of an extreme.
 * Of one output, element i of its `reduced` belongs to group i / GROUP; thread t of the T that work on it takes groups
 * t, t + T, ... in order, and the threads join by lane_xor, then by warps in order. T, and the parts into which a long
 * one is cut, follow from the shape alone. Sums of floats are float64, products have exponents of their own: what is
 * finite after every element in turn has a finite result, and nothing drifts. */
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
/* f(item, i) of the items that a thread takes of a line of floats that is aligned from `begin` on, in order: groups of
 * 16 bytes, four on their way at once, of which the last may be a part. */
template <int TYPE, class F>
DEVICE void each_item(const typename float_item<TYPE>::raw *in, int64_t begin, int64_t end, int thread, int team, F f) {
    typedef typename float_item<TYPE>::raw raw;
    constexpr int GROUP = group_of<floats_of<TYPE>>::N, AHEAD = 4;
    const int64_t groups = end / GROUP, first = begin / GROUP + thread;
    int64_t g = first;
    for (; g < groups; g += AHEAD * team) {
        pack<raw, GROUP> x[AHEAD];
        UNROLL for (int v = 0; v < AHEAD; v++)
            if (g + v * team < groups) x[v] = ((const pack<raw, GROUP> *)in)[g + v * team];
        UNROLL for (int v = 0; v < AHEAD; v++) {
            if (g + v * team >= groups) continue;
            UNROLL for (int j = 0; j < GROUP; j++)
                f(x[v].at[j], (g + v * team) * GROUP + j);
        }
    }
    if (first > groups || (groups - first) % team) return; /* the part is another thread's */
    for (int64_t i = groups * GROUP; i < end; i++) f(in[i], i);
}
/* Floats side by side and aligned: in the same order. */
template <class J, int TYPE>
DEVICE typename J::acc take_lines(const cuda_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                                  int team) {
    typedef typename float_item<TYPE>::raw raw;
    typename J::acc acc = J::start(a.op, a.in_type);
    each_item<TYPE>((const raw *)a.in + base, begin, end, thread, team,
                    [&](raw x, int64_t) { acc = J::take(acc, widen<TYPE>(x), a.op, a.in_type); });
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
/* The same, in the same order, of floats whose columns are aligned groups of 16 bytes: a thread takes a group's. */
template <class J, int TYPE> DEVICE void reduce_wide(const cuda_reduce_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    constexpr int GROUP = group_of<floats_of<TYPE>>::N, WIDTH = COLUMN_WIDTH * GROUP, AHEAD = 4;
    SHARED typename J::acc shared[COLUMN_LINES][WIDTH];
    const int x = thread_index() % COLUMN_WIDTH, line = thread_index() / COLUMN_WIDTH;
    const int64_t output = block_index() / a.parts * WIDTH, part = block_index() % a.parts;
    const int64_t begin = part * a.part, end = begin + a.part < a.reduced.count ? begin + a.part : a.reduced.count;
    const bool real = output + x * GROUP < a.kept.count;
    const raw *in = (const raw *)a.in + (real ? offset_of(a.kept, a.kept_steps, output + x * GROUP) : 0);
    typename J::acc acc[GROUP];
    UNROLL for (int j = 0; j < GROUP; j++)
        acc[j] = J::start(a.op, a.in_type);
    for (int64_t i = begin + line; i < end && real; i += COLUMN_LINES * AHEAD) {
        pack<raw, GROUP> items[AHEAD];
        UNROLL for (int v = 0; v < AHEAD; v++) {
            const int64_t k = i + v * COLUMN_LINES;
            if (k < end) items[v] = *(const pack<raw, GROUP> *)(in + k * a.reduced_steps.at[0]);
        }
        UNROLL for (int v = 0; v < AHEAD; v++) {
            if (i + v * COLUMN_LINES >= end) continue;
            UNROLL for (int j = 0; j < GROUP; j++)
                acc[j] = J::take(acc[j], widen<TYPE>(items[v].at[j]), a.op, a.in_type);
        }
    }
    UNROLL for (int j = 0; j < GROUP; j++)
        shared[line][x * GROUP + j] = acc[j];
    barrier();
    const int column = thread_index();
    if (column >= WIDTH || output + column >= a.kept.count) return;
    typename J::acc all = shared[0][column];
    for (int k = 1; k < COLUMN_LINES; k++) all = J::join(all, shared[k][column], a.op, a.in_type);
    put_part<J>(a, output + column, part, all);
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
#define FLOAT_REDUCTION(name, J, TYPE)                                                                                 \
    REDUCTION(name, J, floats_of<TYPE>)                                                                                \
    KERNEL(gm_reduce_wide_##name, cuda_reduce_args, CUDA_THREADS) { reduce_wide<J, TYPE>(a); }
#define REDUCTION_PARTS(name, J)                                                                                       \
    KERNEL(gm_reduce_parts_##name, cuda_reduce_args, CUDA_THREADS) { reduce_parts<J>(a); }
#define REDUCTIONS(name)                                                                                               \
    FLOAT_REDUCTION(name##_f16, join_##name, GM_T_F16)                                                                 \
    FLOAT_REDUCTION(name##_bf16, join_##name, GM_T_BF16)                                                               \
    FLOAT_REDUCTION(name##_f32, join_##name, GM_T_F32)                                                                 \
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
KERNEL(gm_reduce_rows_complex, cuda_reduce_args, CUDA_THREADS) { reduce_rows<join_complex, any_complex>(a); }
KERNEL_OF_THREE(gm_reduce_columns_complex, cuda_reduce_args, CUDA_THREADS) {
    reduce_columns<join_complex, any_complex>(a);
}
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
            found = take_best(a, offset_of(a.kept, a.kept_steps, output), thread_index() % WARP, a.length, WARP);
        found = join_warp(found, better);
        if (output < a.kept.count && thread_index() % WARP == 0) put_best(a, output, 0, found);
        return;
    }
    const int64_t output = block_index() / a.parts, part = block_index() % a.parts, begin = part * a.part;
    const int64_t end = begin + a.part < a.length ? begin + a.part : a.length;
    best found = take_best(a, offset_of(a.kept, a.kept_steps, output), begin + thread_index(), end, CUDA_THREADS);
    found = join_block(found, shared, better);
    if (thread_index() == 0) put_best(a, output, part, found);
}
/* Floats side by side: what a thread finds as one number, its key above how far it is from the greatest index; 0: none.
 * An element costs a comparison, and keys are made of what is found alone. */
template <int TYPE>
DEVICE uint64_t find_in_line(const cuda_arg_reduce_args &a, int64_t base, int64_t begin, int64_t end, int thread,
                             int team) {
    typedef typename float_item<TYPE>::raw raw;
    const raw *in = (const raw *)a.in + base;
    const uint32_t flip = a.max ? 0 : 0x80000000u;
    const bool lines = (uintptr_t)in % 16 == 0;
    const int64_t first = begin + (int64_t)thread * (lines ? group_of<floats_of<TYPE>>::N : 1);
    if (first >= end) return 0;
    float top = -INFINITY;
    uint32_t at = (uint32_t)first;
    const auto take = [&](raw item, int64_t i) {
        const float x = float_of_bits(bits_of_float(widen<TYPE>(item)) ^ flip); /* -x: NaN stays NaN */
        const bool more = x > top || (x != x && top == top);
        top = more ? x : top;
        at = more ? (uint32_t)i : at;
    };
    if (lines) {
        each_item<TYPE>(in, begin, end, thread, team, take);
    } else {
        for (int64_t i = first; i < end; i += team) take(in[i], i);
    }
    return (uint64_t)float_key(top, true) << 32 | (UINT32_MAX - at);
}
template <int TYPE> DEVICE void arg_lines(const cuda_arg_reduce_args &a) {
    SHARED uint64_t shared[CUDA_THREADS / WARP];
    const bool by_warps = a.part == 0;
    const int64_t warps = CUDA_THREADS / WARP;
    const int64_t output = by_warps ? block_index() * warps + thread_index() / WARP : block_index() / a.parts;
    const int64_t part = by_warps ? 0 : block_index() % a.parts, begin = part * a.part;
    const int64_t end = !by_warps && begin + a.part < a.length ? begin + a.part : a.length;
    const auto greater = [](uint64_t p, uint64_t q) { return p > q ? p : q; };
    uint64_t found = 0;
    if (output < a.kept.count)
        found = find_in_line<TYPE>(a, offset_of(a.kept, a.kept_steps, output), begin, end,
                                   by_warps ? thread_index() % WARP : thread_index(), by_warps ? WARP : CUDA_THREADS);
    found = by_warps ? join_warp(found, greater) : join_block(found, shared, greater);
    if (output < a.kept.count && thread_index() % (by_warps ? WARP : CUDA_THREADS) == 0)
        put_best(a, output, part, best{found >> 32, UINT32_MAX - (uint32_t)found});
}
KERNEL(gm_arg_lines_f16, cuda_arg_reduce_args, CUDA_THREADS) { arg_lines<GM_T_F16>(a); }
KERNEL(gm_arg_lines_bf16, cuda_arg_reduce_args, CUDA_THREADS) { arg_lines<GM_T_BF16>(a); }
KERNEL(gm_arg_lines_f32, cuda_arg_reduce_args, CUDA_THREADS) { arg_lines<GM_T_F32>(a); }
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
