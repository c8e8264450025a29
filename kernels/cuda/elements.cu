/* elements.cu - copies and casts, select, arange, pad. A thread takes 16 bytes at a time where operands are
 * side by side, else CUDA_EACH elements a block's width apart. */
#include "functions.cuh"

DEVICE int64_t first_element(int each) { return block_index() * thread_count() * each + thread_index(); }

/* Copies and casts side by side: 16 bytes twice, read before any is written. */
template <class OUT, class IN, class F> DEVICE void map_direct(OUT *out, const IN *in, int64_t n, F f) {
    constexpr int N = 16 / (sizeof(IN) > sizeof(OUT) ? sizeof(IN) : sizeof(OUT)), VECTORS = 2;
    pack<IN, N> x[VECTORS];
    const int64_t first = first_element(VECTORS);
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const int64_t at = first + v * thread_count();
        if ((at + 1) * N <= n) x[v] = ((const pack<IN, N> *)in)[at];
    }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const int64_t at = first + v * thread_count();
        if ((at + 1) * N <= n) {
            pack<OUT, N> y;
            UNROLL for (int i = 0; i < N; i++)
                y.at[i] = f(x[v].at[i]);
            ((pack<OUT, N> *)out)[at] = y;
        } else {
            for (int64_t i = at * N; i < n; i++) out[i] = f(in[i]);
        }
    }
}

/* ---- copies ---- */
template <class T> DEVICE void copy_items(const cuda_copy_args &a) {
    const auto same = [](T x) { return x; };
    if (a.direct) {
        map_direct((T *)a.out, (const T *)a.in, a.shape.count, same);
        return;
    }
    T x[CUDA_EACH];
    int64_t to[CUDA_EACH];
    const int64_t first = first_element(CUDA_EACH);
    const cuda_strides *const steps[2] = {&a.in_steps, &a.out_steps};
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t i = first + e * thread_count();
        if (i >= a.shape.count) continue;
        const offsets<2> o = offsets_of<2>(a.shape, steps, i);
        x[e] = ((const T *)a.in)[o.at[0]];
        to[e] = o.at[1];
    }
    UNROLL for (int e = 0; e < CUDA_EACH; e++)
        if (first + e * thread_count() < a.shape.count) ((T *)a.out)[to[e]] = x[e];
}
KERNEL(gm_copy_1, cuda_copy_args, CUDA_THREADS) { copy_items<uint8_t>(a); }
KERNEL(gm_copy_2, cuda_copy_args, CUDA_THREADS) { copy_items<uint16_t>(a); }
KERNEL(gm_copy_4, cuda_copy_args, CUDA_THREADS) { copy_items<uint32_t>(a); }
KERNEL(gm_copy_8, cuda_copy_args, CUDA_THREADS) { copy_items<uint64_t>(a); }
KERNEL(gm_copy_16, cuda_copy_args, CUDA_THREADS) { copy_items<pack<uint32_t, 4>>(a); }

/* Casts between floats that are side by side. */
template <int OUT, int IN> DEVICE void cast_floats(const cuda_copy_args &a) {
    typedef typename float_item<OUT>::raw out_t;
    typedef typename float_item<IN>::raw in_t;
    map_direct((out_t *)a.out, (const in_t *)a.in, a.shape.count, [](in_t x) { return narrow<OUT>(widen<IN>(x)); });
}
KERNEL(gm_cast_f32_f16, cuda_copy_args, CUDA_THREADS) { cast_floats<GM_T_F16, GM_T_F32>(a); }
KERNEL(gm_cast_f32_bf16, cuda_copy_args, CUDA_THREADS) { cast_floats<GM_T_BF16, GM_T_F32>(a); }
KERNEL(gm_cast_f16_f32, cuda_copy_args, CUDA_THREADS) { cast_floats<GM_T_F32, GM_T_F16>(a); }
KERNEL(gm_cast_bf16_f32, cuda_copy_args, CUDA_THREADS) { cast_floats<GM_T_F32, GM_T_BF16>(a); }
/* All others. */
DEVICE void convert_items(const cuda_copy_args &a, char *out, const char *in) {
    const cuda_strides *const steps[2] = {&a.in_steps, &a.out_steps};
    const int64_t end = first_element(CUDA_EACH) + CUDA_EACH * thread_count();
    for (int64_t i = first_element(CUDA_EACH); i < a.shape.count && i < end; i += thread_count()) {
        const offsets<2> o = offsets_of<2>(a.shape, steps, i);
        convert_element(out, o.at[1], a.out_type, in, o.at[0], a.in_type);
    }
}
KERNEL(gm_cast_any, cuda_copy_args, CUDA_THREADS) { convert_items(a, (char *)a.out, (const char *)a.in); }

/* A copy whose region begins where an array says. */
KERNEL(gm_copy_at, cuda_copy_at_args, CUDA_THREADS) {
    int64_t start = 0;
    for (int k = 0; k < a.n_starts; k++) {
        const int64_t at = load_int(a.start, k * a.start_step, a.start_type);
        start += (at < 0 ? 0 : at > a.limits[k] ? a.limits[k] : at) * a.steps[k];
    }
    const int64_t to = a.on_out ? start : 0, from = start - to;
    convert_items(a.copy, (char *)a.copy.out + to * item_size(a.copy.out_type),
                  (const char *)a.copy.in + from * item_size(a.copy.in_type));
}

/* Tiles of 32 x 32 through the block's memory: whole lines are read and written. */
#define TILE 32
#define TILE_ROWS (CUDA_THREADS / TILE)
template <class T> DEVICE void turn_items(const cuda_turn_args &a) {
    SHARED T tile[TILE][TILE + 1];
    const int64_t across = (a.columns + TILE - 1) / TILE
    , down = (a.rows + TILE - 1) / TILE;
    int64_t block = block_index();
    const int64_t column = block % across * TILE;
    block /= across;
    const int64_t row = block % down * TILE;
    block /= down;
    int64_t from = 0, to = 0;
    for (int d = a.ndim - 1; d >= 0; d--) {
        from += block % a.shape[d] * a.in_steps.at[d];
        to += block % a.shape[d] * a.out_steps.at[d];
        block /= a.shape[d];
    }
    const T *in = (const T *)a.in + from;
    T *out = (T *)a.out + to;
    const int x = thread_index() % TILE
    , y = thread_index() / TILE;
    UNROLL for (int j = 0; j < TILE; j += TILE_ROWS)
        if (row + x < a.rows && column + y + j < a.columns)
            tile[y + j][x] = in[(column + y + j) * a.in_column + row + x];
    barrier();
    UNROLL for (int j = 0; j < TILE; j += TILE_ROWS)
        if (row + y + j < a.rows && column + x < a.columns)
            out[(row + y + j) * a.out_row + column + x] = tile[x][y + j];
}
KERNEL(gm_turn_1, cuda_turn_args, CUDA_THREADS) { turn_items<uint8_t>(a); }
KERNEL(gm_turn_2, cuda_turn_args, CUDA_THREADS) { turn_items<uint16_t>(a); }
KERNEL(gm_turn_4, cuda_turn_args, CUDA_THREADS) { turn_items<uint32_t>(a); }
KERNEL(gm_turn_8, cuda_turn_args, CUDA_THREADS) { turn_items<uint64_t>(a); }

/* ---- select, arange, pad ---- */
template <class T> DEVICE void select_items(const cuda_select_args &a) {
    const T *x = (const T *)a.a, *y = (const T *)a.b;
    T *out = (T *)a.out;
    if (a.direct) {
        constexpr int N = 16 / sizeof(T);
        const int64_t at = first_element(1), n = a.shape.count;
        if ((at + 1) * N <= n) {
            const pack<uint8_t, N> cond = ((const pack<uint8_t, N> *)a.cond)[at];
            const pack<T, N> left = ((const pack<T, N> *)x)[at], right = ((const pack<T, N> *)y)[at];
            pack<T, N> z;
            UNROLL for (int i = 0; i < N; i++)
                z.at[i] = cond.at[i] ? left.at[i] : right.at[i];
            ((pack<T, N> *)out)[at] = z;
        } else {
            for (int64_t i = at * N; i < n; i++) out[i] = a.cond[i] ? x[i] : y[i];
        }
        return;
    }
    const int64_t first = first_element(CUDA_EACH);
    const cuda_strides *const steps[3] = {&a.cond_steps, &a.a_steps, &a.b_steps};
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t i = first + e * thread_count();
        if (i >= a.shape.count) continue;
        const offsets<3> o = offsets_of<3>(a.shape, steps, i);
        out[i] = a.cond[o.at[0]] ? x[o.at[1]] : y[o.at[2]];
    }
}
KERNEL(gm_select_1, cuda_select_args, CUDA_THREADS) { select_items<uint8_t>(a); }
KERNEL(gm_select_2, cuda_select_args, CUDA_THREADS) { select_items<uint16_t>(a); }
KERNEL(gm_select_4, cuda_select_args, CUDA_THREADS) { select_items<uint32_t>(a); }
KERNEL(gm_select_8, cuda_select_args, CUDA_THREADS) { select_items<uint64_t>(a); }

KERNEL(gm_arange, cuda_arange_args, CUDA_THREADS) {
    const int64_t first = first_element(CUDA_EACH);
    for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t i = first + e * thread_count();
        if (i >= a.count) return;
        if (is_int_type(a.type) && a.type != GM_T_BOOL) { /* exact above 2^53 too */
            const uint64_t start = (uint64_t)uint64_of_double(a.start), step = (uint64_t)uint64_of_double(a.step);
            store_int(a.out, i, (int64_t)(start + (uint64_t)i * step), a.type);
        } else {
            store_double(a.out, i, a.start + (double)i * a.step, a.type);
        }
    }
}

template <class T> DEVICE void pad_items(const cuda_pad_args &a) {
    const int64_t first = first_element(CUDA_EACH);
    const T value = *(const T *)a.value;
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t i = first + e * thread_count();
        if (i >= a.shape.count) continue;
        int64_t rest = i, from = 0;
        bool inside = true;
        for (int d = a.shape.ndim - 1; d >= 0; d--) {
            const int64_t next = rest / a.shape.shape[d], at = rest - next * a.shape.shape[d] - a.low[d];
            inside = inside && at >= 0 && at < a.in_shape[d];
            from += at * a.in_steps.at[d];
            rest = next;
        }
        ((T *)a.out)[i] = inside ? ((const T *)a.in)[from] : value;
    }
}
KERNEL(gm_pad_1, cuda_pad_args, CUDA_THREADS) { pad_items<uint8_t>(a); }
KERNEL(gm_pad_2, cuda_pad_args, CUDA_THREADS) { pad_items<uint16_t>(a); }
KERNEL(gm_pad_4, cuda_pad_args, CUDA_THREADS) { pad_items<uint32_t>(a); }
KERNEL(gm_pad_8, cuda_pad_args, CUDA_THREADS) { pad_items<uint64_t>(a); }
