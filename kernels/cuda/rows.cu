/* rows.cu - softmax and norms: work on rows, in float32.
 * A row is of groups of 16 bytes; group g belongs to thread g % T of the T that work on the row, a warp where it is
 * short, else a block, or, for softmax of long rows, a cluster of blocks. A thread keeps its first groups in registers,
 * of long rows others in the block's memory, and reads what is beyond them again. */
#include "functions.cuh"

DEVICE float add_floats(float x, float y) { return x + y; }
DEVICE float greater_float(float x, float y) { return y > x ? y : x; }
/* e^x of x <= 0, within 4 ulp, and 0 below 2^-126: a third of vf_exp's instructions, which would take as long as the
 * memory. What x * log2(e) loses to rounding is made good after. */
DEVICE float exp_below_one(float x) {
    const float HIGH = 0x1.715476p+0f, LOW = 0x1.4ae0cp-26f, LN2 = 0x1.62e43p-1f;
    x = x < -150.0f ? -150.0f : x;
    const float power = x * HIGH, y = power_of_two(power);
    return fmaf(y, LN2 * fmaf(x, LOW, fmaf(x, HIGH, -power)), y);
}

/* One row and those who work on it; EACH: elements that a thread keeps in registers; ALL_KEPT: there are no others,
 * which launchers see to. */
template <int TYPE, int EACH, bool ALL_KEPT = EACH != CUDA_ROW_LONG> struct row {
    typedef typename float_item<TYPE>::raw raw;
    static constexpr int GROUP = 16 / (int)sizeof(raw), KEPT = EACH / GROUP;
    static constexpr int AHEAD = (EACH == CUDA_ROW_LONG ? 16 : 8) / GROUP; /* of those beyond registers */
    static constexpr bool KEEPS_ALL = ALL_KEPT;
    typedef pack<raw, GROUP> group;
    const cuda_rows_args &a;
    const raw *in;
    float *memory, *shared; /* shared: one for each warp */
    int thread, team;
    int64_t groups;
    float beyond; /* what is beyond the row's end, where all is kept */
    float x[KEPT][GROUP];

    METHOD bool has(int64_t g, int j) const { return a.lines || g * GROUP + j < a.dim; }
    METHOD group fetch(const raw *from, int64_t g) const {
        if (a.lines) return ((const group *)from)[g];
        group items = {};
        UNROLL for (int j = 0; j < GROUP; j++)
            if (has(g, j)) items.at[j] = from[g * GROUP + j];
        return items;
    }
    METHOD void load(float (&to)[GROUP], const raw *from, int64_t g) const {
        const group items = fetch(from, g);
        UNROLL for (int j = 0; j < GROUP; j++)
            to[j] = widen<TYPE>(items.at[j]);
        if (!ALL_KEPT || a.lines) return;
        UNROLL for (int j = 0; j < GROUP; j++)
            if (!has(g, j)) to[j] = beyond;
    }
    METHOD void store(raw *to, int64_t g, const float (&from)[GROUP]) const {
        if (a.lines) {
            group items;
            UNROLL for (int j = 0; j < GROUP; j++)
                items.at[j] = narrow<TYPE>(from[j]);
            ((group *)to)[g] = items;
        } else {
            UNROLL for (int j = 0; j < GROUP; j++)
                if (has(g, j)) to[g * GROUP + j] = narrow<TYPE>(from[j]);
        }
    }
    METHOD void store_rounded(uint16_t *to, int64_t g, const float (&from)[GROUP]) const {
        pack<uint16_t, GROUP> items;
        UNROLL for (int j = 0; j < GROUP; j++)
            items.at[j] = narrow<GM_T_BF16>(from[j]);
        if (a.lines) {
            ((pack<uint16_t, GROUP> *)to)[g] = items;
            return;
        }
        UNROLL for (int j = 0; j < GROUP; j++)
            if (has(g, j)) to[g * GROUP + j] = items.at[j];
    }
    METHOD int64_t place(int64_t k) const { return thread + k * team; }
    METHOD float *room(int64_t k) const { return memory + ((k - KEPT) * thread_count() + thread_index()) * GROUP; }
    /* f(g, values) of this thread's groups beyond registers, in order; what f makes of those in memory is kept. */
    template <class F> METHOD void each_beyond(bool first_time, F f) const {
        if (ALL_KEPT) return;
        for (int64_t k = KEPT; place(k) < groups; k += AHEAD) {
            float y[AHEAD][GROUP];
            UNROLL for (int v = 0; v < AHEAD; v++) {
                const int64_t g = place(k + v);
                if (g >= groups) continue;
                if (first_time || g >= a.kept_groups) {
                    load(y[v], in, g);
                } else {
                    UNROLL for (int j = 0; j < GROUP; j++)
                        y[v][j] = room(k + v)[j];
                }
            }
            UNROLL for (int v = 0; v < AHEAD; v++) {
                const int64_t g = place(k + v);
                if (g >= groups) continue;
                f(g, y[v]);
                if (g < a.kept_groups) {
                    UNROLL for (int j = 0; j < GROUP; j++)
                        room(k + v)[j] = y[v][j];
                }
            }
        }
    }
    /* f(g, values) of all of this thread's groups. */
    template <class F> METHOD void each(F f) {
        UNROLL for (int k = 0; k < KEPT; k++)
            if (place(k) < groups) f(place(k), x[k]);
        each_beyond(false, f);
    }
    /* The same as they are read. */
    template <class F> METHOD void read(F f) {
        UNROLL for (int k = 0; k < KEPT; k++)
            if (place(k) < groups) load(x[k], in, place(k));
        UNROLL for (int k = 0; k < KEPT; k++)
            if (place(k) < groups) f(place(k), x[k]);
        each_beyond(true, f);
    }
    template <class F> METHOD float join(float y, F f) const {
        return team == WARP ? join_warp(y, f) : join_block(y, shared, f);
    }
    METHOD bool is_kept(int64_t g) const { return ALL_KEPT || g < a.kept_groups; }
};

template <bool BY_WARPS> DEVICE int64_t row_index() {
    return BY_WARPS ? block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP : block_index();
}
template <int TYPE, int EACH, bool BY_WARPS>
DEVICE row<TYPE, EACH> row_of(const cuda_rows_args &a, int64_t index, float *shared) {
    row<TYPE, EACH> r = {a,
                         (const typename float_item<TYPE>::raw *)a.x + index * a.stride,
                         (float *)block_memory(),
                         shared,
                         BY_WARPS ? thread_index() % WARP : thread_index(),
                         BY_WARPS ? WARP : thread_count()};
    r.groups = (a.dim + r.GROUP - 1) / r.GROUP;
    r.beyond = 0;
    return r;
}

/* join(y, f, i): f of what all who work on the row have for y, for the i-th time. Where registers are full of a long
 * row's elements vf_exp is the faster: more of exp_below_one are on their way at once, which spills. */
template <int TYPE, class R, class J> DEVICE void softmax_of(const cuda_rows_args &a, R &r, int64_t index, J join) {
    constexpr int GROUP = R::GROUP;
    const auto exponential = [](float x) { return R::KEEPS_ALL ? exp_below_one(x) : vf_exp(x); };
    float top = -INFINITY, sum = 0;
    r.beyond = -INFINITY;
    r.read([&](int64_t g, float (&x)[GROUP]) {
        UNROLL for (int j = 0; j < GROUP; j++)
            if (R::KEEPS_ALL || r.has(g, j)) top = greater_float(top, x[j]);
    });
    top = join(top, greater_float, 0);
    r.each([&](int64_t g, float (&x)[GROUP]) {
        UNROLL for (int j = 0; j < GROUP; j++) {
            x[j] = exponential(x[j] - top);
            if (R::KEEPS_ALL || r.has(g, j)) sum += x[j];
        }
    });
    sum = join(sum, add_floats, 1);
    const float scale = 1.0f / sum;
    typename float_item<TYPE>::raw *out = (typename float_item<TYPE>::raw *)a.out + index * a.dim;
    r.each([&](int64_t g, float (&x)[GROUP]) {
        float y[GROUP];
        UNROLL for (int j = 0; j < GROUP; j++)
            y[j] = (r.is_kept(g) ? x[j] : exponential(x[j] - top)) * scale;
        r.store(out, g, y);
    });
}
template <int TYPE, int EACH, bool BY_WARPS> DEVICE void softmax_row(const cuda_rows_args &a) {
    SHARED float shared[CUDA_ROW_THREADS / WARP];
    const int64_t index = row_index<BY_WARPS>();
    if (index >= a.rows) return; /* a whole warp, or nobody */
    row<TYPE, EACH> r = row_of<TYPE, EACH, BY_WARPS>(a, index, shared);
    softmax_of<TYPE>(a, r, index, [&](float y, float (*f)(float, float), int) { return r.join(y, f); });
}
/* The blocks of a cluster have a row together. A block's memory begins with what its warps join, and what it has joined
 * for the others. */
template <int TYPE> DEVICE void softmax_cluster(const cuda_rows_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    float *shared = (float *)block_memory(), *joined = shared + CUDA_ROW_THREADS / WARP;
    const int blocks = cluster_size();
    const int64_t index = block_index() / blocks;
    cuda_rows_args rows = a;
    rows.lines = true; /* which the launcher sees to */
    row<TYPE, CUDA_ROW_CLUSTER, false> r = {rows,
                                            (const raw *)a.x + index * a.stride,
                                            shared + CUDA_ROW_JOINED,
                                            shared,
                                            cluster_rank() * thread_count() + thread_index(),
                                            blocks * thread_count()};
    r.groups = (a.dim + r.GROUP - 1) / r.GROUP;
    softmax_of<TYPE>(a, r, index, [&](float y, float (*f)(float, float), int i) {
        y = join_block(y, shared, f);
        if (thread_index() == 0) joined[i] = y;
        cluster_barrier();
        float all = cluster_read(joined + i, 0);
        for (int rank = 1; rank < blocks; rank++) all = f(all, cluster_read(joined + i, rank));
        return all;
    });
    cluster_barrier(); /* nobody's memory goes while another block reads it */
}
#if HAS_WGMMA
#define SOFTMAX_CLUSTER(TYPE) softmax_cluster<TYPE>(a)
#else
#define SOFTMAX_CLUSTER(TYPE) (void)a
#endif
KERNEL_OF_TWO(gm_softmax_cluster_f16, cuda_rows_args, CUDA_ROW_THREADS) { SOFTMAX_CLUSTER(GM_T_F16); }
KERNEL_OF_TWO(gm_softmax_cluster_bf16, cuda_rows_args, CUDA_ROW_THREADS) { SOFTMAX_CLUSTER(GM_T_BF16); }
KERNEL_OF_TWO(gm_softmax_cluster_f32, cuda_rows_args, CUDA_ROW_THREADS) { SOFTMAX_CLUSTER(GM_T_F32); }

template <int TYPE, int EACH, bool BY_WARPS, bool CENTERED> DEVICE void norm_row(const cuda_rows_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    SHARED float shared[CUDA_ROW_THREADS / WARP];
    const int64_t index = row_index<BY_WARPS>();
    if (index >= a.rows) return;
    row<TYPE, EACH> r = row_of<TYPE, EACH, BY_WARPS>(a, index, shared);
    constexpr int GROUP = row<TYPE, EACH>::GROUP;
    float mean = 0, squares = 0;
    const auto add = [&](int64_t g, float (&x)[GROUP]) {
        UNROLL for (int j = 0; j < GROUP; j++)
            if (r.has(g, j)) mean += x[j];
    };
    const auto add_squares = [&](int64_t g, float (&x)[GROUP]) {
        UNROLL for (int j = 0; j < GROUP; j++)
            if (r.has(g, j)) squares = fmaf(x[j] - mean, x[j] - mean, squares);
    };
    if (CENTERED) {
        r.read(add);
        mean = r.join(mean, add_floats) / (float)a.dim;
        r.each(add_squares);
    } else {
        r.read(add_squares);
    }
    squares = r.join(squares, add_floats);
    const float scale = 1.0f / sqrtf(squares / (float)a.dim + a.eps);
    const raw *weight = (const raw *)a.weight, *bias = CENTERED ? (const raw *)a.bias : nullptr;
    raw *out = (raw *)a.out + index * a.dim;
    typedef typename row<TYPE, EACH>::group group;
    const auto finish = [&](int64_t g, const float (&x)[GROUP], const group &w, const group &b) {
        float y[GROUP];
        UNROLL for (int j = 0; j < GROUP; j++) {
            y[j] = (x[j] - mean) * scale;
            if (weight && bias) y[j] = fmaf(y[j], widen<TYPE>(w.at[j]), widen<TYPE>(b.at[j]));
            else if (weight) y[j] *= widen<TYPE>(w.at[j]);
            else if (bias) y[j] += widen<TYPE>(b.at[j]);
        }
        if (TYPE == GM_T_F32 && !CENTERED && a.rounds) r.store_rounded((uint16_t *)a.out + index * a.dim, g, y);
        else r.store(out, g, y);
    };
    constexpr int KEPT = row<TYPE, EACH>::KEPT;
    constexpr int AHEAD = row<TYPE, EACH>::KEEPS_ALL ? 2 : 1; /* groups of weights on their way at once */
    UNROLL for (int first = 0; first < KEPT; first += AHEAD) {
        group w[AHEAD] = {}, b[AHEAD] = {};
        UNROLL for (int v = 0; v < AHEAD; v++) {
            if (r.place(first + v) >= r.groups) continue;
            if (weight) w[v] = r.fetch(weight, r.place(first + v));
            if (bias) b[v] = r.fetch(bias, r.place(first + v));
        }
        UNROLL for (int v = 0; v < AHEAD; v++)
            if (r.place(first + v) < r.groups) finish(r.place(first + v), r.x[first + v], w[v], b[v]);
    }
    r.each_beyond(false, [&](int64_t g, float (&x)[GROUP]) {
        finish(g, x, weight ? r.fetch(weight, g) : group{}, bias ? r.fetch(bias, g) : group{});
    });
}
template <int TYPE, int EACH, bool BY_WARPS> DEVICE void rms_norm_row(const cuda_rows_args &a) {
    norm_row<TYPE, EACH, BY_WARPS, false>(a);
}
template <int TYPE, int EACH, bool BY_WARPS> DEVICE void layer_norm_row(const cuda_rows_args &a) {
    norm_row<TYPE, EACH, BY_WARPS, true>(a);
}
#define ROWS_OF(name, TYPE, RUN, KERNEL_OF_BLOCK)                                                                      \
    KERNEL(gm_##name##_short, cuda_rows_args, CUDA_THREADS) { RUN<TYPE, CUDA_ROW_SHORT, true>(a); }                    \
    KERNEL_OF_BLOCK(gm_##name, cuda_rows_args, CUDA_ROW_THREADS) {                                                     \
        RUN<TYPE, CUDA_ROW_EACH(sizeof(float_item<TYPE>::raw)), false>(a);                                             \
    }                                                                                                                  \
    KERNEL(gm_##name##_long, cuda_rows_args, CUDA_ROW_THREADS) { RUN<TYPE, CUDA_ROW_LONG, false>(a); }
#define ROWS(name, KERNEL_OF_BLOCK) /* that of float32, of which a thread has half as many elements */                 \
    ROWS_OF(name##_f16, GM_T_F16, name##_row, KERNEL)                                                                  \
    ROWS_OF(name##_bf16, GM_T_BF16, name##_row, KERNEL)                                                                \
    ROWS_OF(name##_f32, GM_T_F32, name##_row, KERNEL_OF_BLOCK)
ROWS(softmax, KERNEL_OF_THREE)
ROWS(rms_norm, KERNEL)
ROWS(layer_norm, KERNEL)
