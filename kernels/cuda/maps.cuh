/* maps.cuh - functions applied to elements. A thread takes 16 bytes at a time where operands are side by side, else
 * elements a block's width apart. */
#ifndef GOMLX_CUDA_MAPS_CUH
#define GOMLX_CUDA_MAPS_CUH
#include "functions.cuh"

/* ---- what a thread reads and writes: N elements ---- */
/* Where they are: side by side, or a block's width apart; `whole` if none is beyond the end. */
template <int N> struct places {
    int64_t first, step, n;
    bool direct, whole;
    METHOD places(bool is_direct, int64_t count) : n(count), direct(is_direct) {
        const int64_t block = block_index() * thread_count() * N;
        first = block + (direct ? thread_index() * N : thread_index());
        step = direct ? 1 : thread_count();
        whole = first + (N - 1) * step < n;
    }
    METHOD int64_t at(int e) const { return first + e * step; }
};
template <class T, int N> DEVICE void read_line(T (&x)[N], const T *in, const places<N> &p) {
    if (p.whole) {
        const pack<T, N> items = *(const pack<T, N> *)(in + p.first);
        UNROLL for (int e = 0; e < N; e++)
            x[e] = items.at[e];
    } else {
        UNROLL for (int e = 0; e < N; e++)
            if (p.at(e) < p.n) x[e] = in[p.at(e)];
    }
}
template <class T, int N> DEVICE void write_line(T *out, const T (&y)[N], const places<N> &p) {
    if (p.direct && p.whole) {
        pack<T, N> items;
        UNROLL for (int e = 0; e < N; e++)
            items.at[e] = y[e];
        *(pack<T, N> *)(out + p.first) = items;
    } else {
        UNROLL for (int e = 0; e < N; e++)
            if (p.at(e) < p.n) out[p.at(e)] = y[e];
    }
}
/* The group of N that an operand has at p, of an array whose last dimension is of groups. */
template <class T, int N>
DEVICE void read_group(T (&x)[N], const T *in, const cuda_shape &shape, const cuda_strides &steps, const places<N> &p) {
    const T *from = in + offset_of(shape, steps, p.first / N);
    if (steps.at[shape.ndim - 1] == 0) {
        const T one = *from;
        UNROLL for (int e = 0; e < N; e++)
            x[e] = one;
    } else {
        const pack<T, N> items = *(const pack<T, N> *)from;
        UNROLL for (int e = 0; e < N; e++)
            x[e] = items.at[e];
    }
}
/* out[i] = f(in[i]), with one place for f's code. */
template <class OUT, class IN, int N, class F> DEVICE void map_unary(const cuda_unary_args &a, F f) {
    const places<N> p(a.direct || a.lines, a.lines ? a.shape.count * N : a.shape.count);
    IN x[N];
    OUT y[N];
    if (a.lines) {
        if (p.whole) read_group(x, (const IN *)a.in, a.shape, a.steps, p);
    } else if (a.direct) {
        read_line(x, (const IN *)a.in, p);
    } else {
        UNROLL for (int e = 0; e < N; e++)
            if (p.at(e) < p.n) x[e] = ((const IN *)a.in)[offset_of(a.shape, a.steps, p.at(e))];
    }
    UNROLL for (int e = 0; e < N; e++)
        y[e] = f(x[e]);
    write_line((OUT *)a.out, y, p);
}
template <class OUT, class IN, int N, class F> DEVICE void map_binary(const cuda_binary_args &a, F f) {
    const places<N> p(a.direct || a.lines, a.lines ? a.shape.count * N : a.shape.count);
    const IN *left = (const IN *)a.a, *right = (const IN *)a.b;
    IN x[N], y[N];
    OUT z[N];
    if (a.lines) {
        if (!p.whole) return;
        read_group(x, left, a.shape, a.a_steps, p);
        read_group(y, right, a.shape, a.b_steps, p);
    } else if (a.direct) {
        if (!a.a_one) read_line(x, left, p);
        if (!a.b_one) read_line(y, right, p);
        UNROLL for (int e = 0; e < N; e++) {
            if (a.a_one) x[e] = left[0];
            if (a.b_one) y[e] = right[0];
        }
    } else {
        const cuda_strides *const steps[2] = {&a.a_steps, &a.b_steps};
        UNROLL for (int e = 0; e < N; e++) {
            if (p.at(e) >= p.n) continue;
            const offsets<2> o = offsets_of<2>(a.shape, steps, p.at(e));
            x[e] = left[o.at[0]];
            y[e] = right[o.at[1]];
        }
    }
    UNROLL for (int e = 0; e < N; e++)
        z[e] = f(x[e], y[e]);
    write_line((OUT *)a.out, z, p);
}

/* Elements of a thread: 16 bytes'. Functions of many instructions, too, need as much in flight. */
template <int TYPE> struct float_each {
    static constexpr int N = CUDA_FLOAT_EACH(sizeof(typename float_item<TYPE>::raw));
};
/* An integer of type `type` that memory holds as RAW. */
template <class RAW> DEVICE int64_t whole_of(RAW x, int type) {
    const int unused = 64 - 8 * (int)sizeof(RAW);
    if (type == GM_T_BOOL) return x != 0;
    return is_signed_type(type) ? (int64_t)((uint64_t)x << unused) >> unused : (int64_t)(uint64_t)x;
}
template <class RAW> struct int_each { static constexpr int N = CUDA_INT_EACH(sizeof(RAW)); };
#endif
