/* index.cu - elements chosen by index arrays. Where several indices of a scatter meet, they come in the order of i: the
 * positions were sorted before, stably, and one thread takes those of a place one after another. */
#include "functions.cuh"

#define NOWHERE INT64_MIN

DEVICE void tell_fault(gm_index_fault *fault, int64_t index) { /* several may: one is kept */
    fault->index = index;
    fault->raised = 1;
}
KERNEL(gm_positions, cuda_positions_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.shape.count) return;
    const int64_t x = load_int(a.index, offset_of(a.shape, a.steps, i), a.type);
    const int64_t v = x < 0 && a.type != GM_T_U64 ? x + a.size : x;
    const bool inside = (uint64_t)v < (uint64_t)a.size;
    if (!inside) tell_fault(a.fault, x);
    const int64_t before = a.first ? 0 : a.out[i];
    a.out[i] = inside && before != NOWHERE ? before + v * a.step : NOWHERE;
}
/* The position that an index gives. */
DEVICE int64_t position_of(const cuda_index_args &a, int64_t at) {
    if (a.size < 0) return ((const int64_t *)a.index)[at];
    const int64_t x = load_int(a.index, at, a.index_type);
    const int64_t v = x < 0 && a.index_type != GM_T_U32 && a.index_type != GM_T_U64 ? x + a.size : x;
    if ((uint64_t)v < (uint64_t)a.size) return v * a.step;
    tell_fault(a.fault, x);
    return NOWHERE;
}
struct lead_offsets { int64_t sparse, dense, index; };
DEVICE lead_offsets lead_of(const cuda_index_args &a, int64_t lead) {
    const cuda_strides *const steps[3] = {&a.sparse_steps, &a.dense_steps, &a.index_steps};
    const offsets<3> o = offsets_of<3>(a.lead, steps, lead);
    return {o.at[0], o.at[1], o.at[2]};
}
template <class T> DEVICE void take_items(const cuda_index_args &a) {
    const int64_t first = block_index() * CUDA_THREADS * CUDA_EACH + thread_index();
    const int64_t total = a.lead.count * a.count * a.run;
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t k = first + e * CUDA_THREADS;
        if (k >= total) continue;
        const int64_t row = k / a.run, r = k - row * a.run, lead = row / a.count, i = row - lead * a.count;
        const lead_offsets o = lead_of(a, lead);
        const int64_t at = position_of(a, o.index + i * a.index_step + r * a.index_run);
        T value = 0;
        if (at != NOWHERE) value = ((const T *)a.in)[o.sparse + at + r * a.sparse_run];
        ((T *)a.out)[o.dense + i * a.dense_step + r] = value;
    }
}
KERNEL(gm_take_1, cuda_index_args, CUDA_THREADS) { take_items<uint8_t>(a); }
KERNEL(gm_take_2, cuda_index_args, CUDA_THREADS) { take_items<uint16_t>(a); }
KERNEL(gm_take_4, cuda_index_args, CUDA_THREADS) { take_items<uint32_t>(a); }
KERNEL(gm_take_8, cuda_index_args, CUDA_THREADS) { take_items<uint64_t>(a); }

/* Keys of a scatter's lists: the position, or the limit. A list is of one lead, or of one column of it. */
KERNEL(gm_scatter_keys, cuda_index_args, CUDA_THREADS) {
    const int64_t k = block_index() * CUDA_THREADS + thread_index(), width = a.index_run ? a.run : 1;
    if (k >= a.lead.count * width * a.count) return;
    const int64_t list = k / a.count, i = k % a.count, r = list % width;
    const int64_t at = position_of(a, lead_of(a, list / width).index + i * a.index_step + r * a.index_run);
    a.keys[k] = at == NOWHERE ? a.limit : (uint64_t)at;
}
template <class T, class W> DEVICE T scatter_int(T x, T y, int mode) {
    switch (mode) {
    case GM_S_ADD: return (T)((W)x + (W)y);
    case GM_S_MULTIPLY: return (T)((W)x * (W)y);
    case GM_S_MAX: return x > y ? x : y;
    default: return x < y ? x : y;
    }
}
DEVICE float scatter_float(float x, float y, int mode) {
    switch (mode) {
    case GM_S_ADD: return x + y;
    case GM_S_MULTIPLY: return x * y;
    case GM_S_MAX: return x > y || x != x ? x : y;
    default: return x < y || x != x ? x : y;
    }
}
template <class T, class W> DEVICE void scatter_into(const cuda_index_args &a, int64_t to, int64_t from) {
    T *out = (T *)a.out + to;
    *out = scatter_int<T, W>(*out, ((const T *)a.in)[from], a.mode);
}
DEVICE void scatter_one(const cuda_index_args &a, int64_t to, int64_t from) {
    if (is_float_type(a.type)) {
        const float x = load_float(a.out, to, a.type), y = load_float(a.in, from, a.in_type);
        store_float(a.out, to, scatter_float(x, y, a.mode), a.type);
        return;
    }
    switch (a.type) {
    case GM_T_BOOL: {
        uint8_t *out = (uint8_t *)a.out + to;
        const uint8_t y = ((const uint8_t *)a.in)[from];
        *out = a.mode == GM_S_ADD || a.mode == GM_S_MAX ? *out | y : *out & y;
        break;
    }
    case GM_T_U8: scatter_into<uint8_t, uint32_t>(a, to, from); break;
    case GM_T_U16: scatter_into<uint16_t, uint32_t>(a, to, from); break;
    case GM_T_U32: scatter_into<uint32_t, uint32_t>(a, to, from); break;
    case GM_T_U64: scatter_into<uint64_t, uint64_t>(a, to, from); break;
    case GM_T_I8: scatter_into<int8_t, uint32_t>(a, to, from); break;
    case GM_T_I16: scatter_into<int16_t, uint32_t>(a, to, from); break;
    case GM_T_I32: scatter_into<int32_t, uint32_t>(a, to, from); break;
    case GM_T_I64: scatter_into<int64_t, uint64_t>(a, to, from); break;
    default: {
        c64 *out = (c64 *)a.out + to;
        const c64 x = *out, y = ((const c64 *)a.in)[from];
        *out = a.mode == GM_S_ADD        ? x + y
               : a.mode == GM_S_MULTIPLY ? x * y
               : a.mode == GM_S_MAX      ? (less_complex(x, y) ? y : x)
                                         : (less_complex(x, y) ? x : y);
    }
    }
}
DEVICE void scatter_last(const cuda_index_args &a, int64_t to, int64_t from) {
    switch (item_size(a.type)) {
    case 1: ((uint8_t *)a.out)[to] = ((const uint8_t *)a.in)[from]; break;
    case 2: ((uint16_t *)a.out)[to] = ((const uint16_t *)a.in)[from]; break;
    case 4: ((uint32_t *)a.out)[to] = ((const uint32_t *)a.in)[from]; break;
    default: ((uint64_t *)a.out)[to] = ((const uint64_t *)a.in)[from];
    }
}
/* A thread for each sorted place and element of a run: the first of a place's does them all. */
KERNEL(gm_scatter, cuda_index_args, CUDA_THREADS) {
    const int64_t k = block_index() * CUDA_THREADS + thread_index();
    const int64_t lists = a.lead.count * (a.index_run ? a.run : 1), across = a.index_run ? 1 : a.run;
    if (k >= lists * a.count * across) return;
    const int64_t place = k / across, list = place / a.count, first = place % a.count;
    const int64_t lead = a.index_run ? list / a.run : list, r = a.index_run ? list % a.run : k % across;
    const uint64_t *keys = a.keys + list * a.count;
    const uint32_t *order = a.order + list * a.count;
    const uint64_t at = keys[first];
    if (at >= a.limit || (first > 0 && keys[first - 1] == at)) return;
    const lead_offsets o = lead_of(a, lead);
    const int64_t to = o.sparse + (int64_t)at + r * a.sparse_run, from = o.dense + r * a.dense_run;
    int64_t last = first;
    for (int64_t i = first; i < a.count && keys[i] == at; i++) {
        if (a.mode != GM_S_UPDATE) scatter_one(a, to, from + order[i] * a.dense_step);
        last = i;
    }
    if (a.mode == GM_S_UPDATE) scatter_last(a, to, from + order[last] * a.dense_step);
}
