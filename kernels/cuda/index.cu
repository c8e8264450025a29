/* index.cu - elements chosen by index arrays. Where several indices of a scatter meet, they come in the order of i: the
 * positions were sorted before, stably, and one thread takes those of a place one after another. */
#include "functions.cuh"
#include "order.cuh"

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
/* An index along the axis; where positions were made before, that position. */
DEVICE int64_t index_of(const cuda_index_args &a, int64_t at) {
    if (a.size < 0) return ((const int64_t *)a.index)[at];
    const int64_t x = load_int(a.index, at, a.index_type);
    const int64_t v = x < 0 && a.index_type != GM_T_U32 && a.index_type != GM_T_U64 ? x + a.size : x;
    if ((uint64_t)v < (uint64_t)a.size) return v;
    tell_fault(a.fault, x);
    return NOWHERE;
}
DEVICE int64_t position_of(const cuda_index_args &a, int64_t index) {
    return a.size < 0 || index == NOWHERE ? index : index * a.step;
}
/* Of numbers that are not negative; those of 32 bits take a third of the time. */
DEVICE int64_t quotient(int64_t a, int64_t b) {
    return ((uint64_t)a | (uint64_t)b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}
struct lead_offsets { int64_t sparse, dense, index; };
DEVICE lead_offsets lead_of(const cuda_index_args &a, int64_t lead) {
    const cuda_strides *const steps[3] = {&a.sparse_steps, &a.dense_steps, &a.index_steps};
    const offsets<3> o = offsets_of<3>(a.lead, steps, lead);
    return {o.at[0], o.at[1], o.at[2]};
}
/* All positions are read before the first element, all elements before one is written. */
template <class T> DEVICE void take_items(const cuda_index_args &a) {
    const int64_t first = block_index() * CUDA_THREADS * CUDA_EACH + thread_index();
    const int64_t total = a.lead.count * a.count * a.run;
    int64_t from[CUDA_EACH], to[CUDA_EACH];
    T value[CUDA_EACH];
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t k = first + e * CUDA_THREADS;
        if (k >= total) continue;
        const int64_t row = quotient(k, a.run), r = k - row * a.run, lead = quotient(row, a.count);
        const int64_t i = row - lead * a.count;
        const lead_offsets o = lead_of(a, lead);
        const int64_t at = position_of(a, index_of(a, o.index + i * a.index_step + r * a.index_run));
        from[e] = at == NOWHERE ? NOWHERE : o.sparse + at + r * a.sparse_run;
        to[e] = o.dense + i * a.dense_step + r;
    }
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        value[e] = T{};
        if (first + e * CUDA_THREADS < total && from[e] != NOWHERE) value[e] = ((const T *)a.in)[from[e]];
    }
    UNROLL for (int e = 0; e < CUDA_EACH; e++)
        if (first + e * CUDA_THREADS < total) ((T *)a.out)[to[e]] = value[e];
}
KERNEL(gm_take_1, cuda_index_args, CUDA_THREADS) { take_items<uint8_t>(a); }
KERNEL(gm_take_2, cuda_index_args, CUDA_THREADS) { take_items<uint16_t>(a); }
KERNEL(gm_take_4, cuda_index_args, CUDA_THREADS) { take_items<uint32_t>(a); }
KERNEL(gm_take_8, cuda_index_args, CUDA_THREADS) { take_items<uint64_t>(a); }
KERNEL(gm_take_16, cuda_index_args, CUDA_THREADS) { take_items<pack<uint32_t, 4>>(a); }

/* Long rows of groups of 16 bytes, of which a warp takes WARP * TAKE_AHEAD side by side: one position for all of them.
 * Warps side by side take the same part of different rows, and what is written does not stay: where rows are named more
 * than once, they are still in the card's cache. */
#define TAKE_AHEAD 4
KERNEL(gm_take_rows, cuda_index_args, CUDA_THREADS) {
    typedef pack<uint32_t, 4> group;
    const int64_t warp = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    const int64_t rows = a.lead.count * a.count, part = quotient(warp, rows), row = warp - part * rows;
    const int64_t first = part * (WARP * TAKE_AHEAD) + thread_index() % WARP;
    if (part * (WARP * TAKE_AHEAD) >= a.run) return;
    const int64_t lead = quotient(row, a.count), i = row - lead * a.count;
    const lead_offsets o = lead_of(a, lead);
    const int64_t at = position_of(a, index_of(a, o.index + i * a.index_step));
    const group *in = (const group *)a.in + o.sparse + (at == NOWHERE ? 0 : at);
    group *out = (group *)a.out + o.dense + i * a.dense_step, value[TAKE_AHEAD];
    UNROLL for (int v = 0; v < TAKE_AHEAD; v++) {
        value[v] = group{};
        if (first + v * WARP < a.run && at != NOWHERE) value[v] = in[first + v * WARP];
    }
    UNROLL for (int v = 0; v < TAKE_AHEAD; v++)
        if (first + v * WARP < a.run) store_past(out + first + v * WARP, value[v]);
}

/* Keys of a scatter's lists: the position, or the limit. A list is of one lead, or of one column of it. */
DEVICE uint64_t scatter_key(const cuda_index_args &a, int64_t i) {
    return a.wide ? ((const uint64_t *)a.keys)[i] : ((const uint32_t *)a.keys)[i];
}
KERNEL(gm_scatter_keys, cuda_index_args, CUDA_THREADS) {
    const int64_t k = block_index() * CUDA_THREADS + thread_index(), width = a.index_run ? a.run : 1;
    if (k >= a.lead.count * width * a.count) return;
    const int64_t list = quotient(k, a.count), i = k - list * a.count, lead = quotient(list, width);
    const int64_t at = index_of(a, lead_of(a, lead).index + i * a.index_step + (list - lead * width) * a.index_run);
    const uint64_t key = at == NOWHERE ? a.limit : (uint64_t)at;
    if (a.wide) ((uint64_t *)a.keys)[k] = key;
    else ((uint32_t *)a.keys)[k] = (uint32_t)key;
}
/* Where the elements of each key begin; those of no element were set to UINT32_MAX before. */
KERNEL(gm_scatter_starts, cuda_index_args, CUDA_THREADS) {
    const int64_t k = block_index() * CUDA_THREADS + thread_index();
    if (k >= a.lead.count * (a.index_run ? a.run : 1) * a.count) return;
    const int64_t list = quotient(k, a.count), i = k - list * a.count;
    const uint64_t key = scatter_key(a, k);
    if (key < a.limit && (i == 0 || scatter_key(a, k - 1) != key))
        a.starts[list * (int64_t)a.limit + (int64_t)key] = (uint32_t)i;
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
/* What comes to one place, in order: float32 from float32 holds its sum in a register, and reads ahead. */
#define SCATTER_AHEAD 8
DEVICE void scatter_floats(const cuda_index_args &a, int64_t list, int64_t first, uint64_t key, int64_t to,
                           int64_t from) {
    const uint32_t *order = a.order + list * a.count;
    float value = ((const float *)a.out)[to];
    for (int64_t i = first;; i += SCATTER_AHEAD) {
        float next[SCATTER_AHEAD];
        bool is_same[SCATTER_AHEAD];
        UNROLL for (int e = 0; e < SCATTER_AHEAD; e++) {
            is_same[e] = i + e < a.count && scatter_key(a, list * a.count + i + e) == key;
            next[e] = is_same[e] ? ((const float *)a.in)[from + order[i + e] * a.dense_step] : 0.0f;
        }
        UNROLL for (int e = 0; e < SCATTER_AHEAD; e++)
            if (is_same[e]) value = scatter_float(value, next[e], a.mode);
        if (!is_same[SCATTER_AHEAD - 1]) break;
    }
    ((float *)a.out)[to] = value;
}
/* A thread for each key, or each sorted place, and element of a run: the first of a place's does them all. */
KERNEL(gm_scatter, cuda_index_args, CUDA_THREADS) {
    const int64_t k = block_index() * CUDA_THREADS + thread_index();
    const int64_t lists = a.lead.count * (a.index_run ? a.run : 1), across = a.index_run ? 1 : a.run;
    const int64_t each = a.starts ? (int64_t)a.limit : a.count;
    if (k >= lists * each * across) return;
    const int64_t place = quotient(k, across), list = quotient(place, each), of_list = place - list * each;
    const int64_t lead = a.index_run ? quotient(list, a.run) : list;
    const int64_t r = a.index_run ? list - lead * a.run : k - place * across;
    const uint32_t *order = a.order + list * a.count;
    const int64_t first = a.starts ? a.starts[place] : of_list, base = list * a.count;
    if (first == UINT32_MAX) return;
    const uint64_t key = scatter_key(a, base + first);
    if (key >= a.limit || (!a.starts && first > 0 && scatter_key(a, base + first - 1) == key)) return;
    const lead_offsets o = lead_of(a, lead);
    const int64_t to = o.sparse + position_of(a, (int64_t)key) + r * a.sparse_run;
    const int64_t from = o.dense + r * a.dense_run;
    if (a.type == GM_T_F32 && a.in_type == GM_T_F32 && a.mode != GM_S_UPDATE) {
        scatter_floats(a, list, first, key, to, from);
        return;
    }
    int64_t last = first;
    for (int64_t i = first; i < a.count && scatter_key(a, base + i) == key; i++) {
        if (a.mode != GM_S_UPDATE) scatter_one(a, to, from + order[i] * a.dense_step);
        last = i;
    }
    if (a.mode == GM_S_UPDATE) scatter_last(a, to, from + order[last] * a.dense_step);
}

/* ---- sums of float32 to few places: each chunk is put in order by the bucket of places, where it is; then a block
 * sums the elements of a bucket, which it takes from chunk after chunk and puts in order by the place. What an index
 * out of range names is -0 to the first place, which changes nothing. ---- */
/* Places of this thread's elements; bit e of the result: there is such an element and its place is one. */
template <class T>
DEVICE uint32_t read_places_of(const cuda_index_args &a, int64_t chunk, uint32_t (&key)[CUDA_SORT_EACH]) {
    const int64_t first = sort_place(chunk, 0), step = WARP * a.index_step;
    const T *index = (const T *)a.index + first * a.index_step;
    const int left = (int)(a.count - first < CUDA_SORT_CHUNK ? a.count - first : CUDA_SORT_CHUNK);
    uint32_t inside = 0;
    T x[CUDA_SORT_EACH];
    UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++)
        x[e] = e * WARP < left ? index[e * step] : 0;
    UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++) {
        const T v = x[e] < 0 ? x[e] + (T)a.size : x[e];
        const bool is_place = (uint64_t)(int64_t)v < (uint64_t)a.size;
        key[e] = is_place ? (uint32_t)v : 0;
        if (e * WARP >= left) continue;
        if (is_place) inside |= 1u << e;
        else tell_fault(a.fault, (int64_t)x[e]);
    }
    return inside;
}
DEVICE uint32_t read_places(const cuda_index_args &a, int64_t chunk, uint32_t (&key)[CUDA_SORT_EACH]) {
    if (a.index_type == GM_T_I32) return read_places_of<int32_t>(a, chunk, key);
    if (a.index_type == GM_T_I64) return read_places_of<int64_t>(a, chunk, key);
    uint32_t inside = 0;
    UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++) {
        const int64_t i = sort_place(chunk, e);
        const int64_t at = i < a.count ? index_of(a, i * a.index_step) : NOWHERE;
        if (at != NOWHERE) inside |= 1u << e;
        key[e] = at != NOWHERE ? (uint32_t)at : 0;
    }
    return inside;
}
DEVICE int elements_of(const cuda_index_args &a, int64_t chunk) {
    const int64_t left = a.count - chunk * CUDA_SORT_CHUNK;
    return (int)(left < CUDA_SORT_CHUNK ? left : CUDA_SORT_CHUNK);
}
KERNEL_OF_TWO(gm_scatter_move, cuda_index_args, CUDA_SORT_THREADS) {
    constexpr int EACH = CUDA_SORT_EACH;
    SHARED uint64_t sums[SORT_WARPS];
    uint32_t *next = (uint32_t *)block_memory();
    float *values = (float *)(next + SORT_WARPS * CUDA_SORT_DIGITS);
    uint8_t *keys = (uint8_t *)(values + CUDA_SORT_CHUNK);
    uint32_t key[EACH];
    chunk_places at;
    const int64_t chunk = block_index();
    const int left = elements_of(a, chunk), d = thread_index();
    const uint32_t inside = read_places(a, chunk, key);
    UNROLL for (int e = 0; e < EACH; e++) /* what is beyond the end comes last */
        if (sort_place(chunk, e) >= a.count) key[e] = (uint32_t)(CUDA_SORT_DIGITS - 1) << a.shift;
    const uint64_t before = order_chunk([&](int e) { return key[e] >> a.shift; }, at, next, sums, 0);
    if (d < CUDA_SORT_DIGITS) a.begins[chunk * CUDA_SORT_DIGITS + d] = (uint16_t)before;
    UNROLL for (int e = 0; e < EACH; e++)
        keys[at[e]] = (uint8_t)(key[e] & ((1u << a.shift) - 1));
    const float *in = (const float *)a.in + sort_place(chunk, 0) * a.dense_step;
    UNROLL for (int half = 0; half < EACH; half += EACH / 2) {
        float value[EACH / 2];
        UNROLL for (int e = 0; e < EACH / 2; e++)
            value[e] = inside >> (half + e) & 1 ? in[(half + e) * WARP * a.dense_step] : -0.0f;
        UNROLL for (int e = 0; e < EACH / 2; e++)
            values[at[half + e]] = value[e];
        warp_barrier(); /* no more are on their way at once: two blocks share a processor's registers */
    }
    barrier();
    pack<float, 4> *out = (pack<float, 4> *)a.values + chunk * (CUDA_SORT_CHUNK / 4);
    uint32_t *out_keys = (uint32_t *)a.keys + chunk * (CUDA_SORT_CHUNK / 4);
    UNROLL for (int e = 0; e < EACH / 4; e++) { /* with what is beyond the end, for which there is room */
        const int i = e * CUDA_SORT_THREADS + thread_index();
        if (4 * i >= left) continue;
        out[i] = ((const pack<float, 4> *)values)[i];
        out_keys[i] = ((const uint32_t *)keys)[i];
    }
}

/* Elements of a bucket in CUDA_SORT_THREADS chunks one after another: where those of each chunk are among them, and in
 * the chunk. */
struct bucket_parts {
    uint32_t first[CUDA_SORT_THREADS + 1];
    uint16_t begin[CUDA_SORT_THREADS];
};
DEVICE uint32_t find_parts(const cuda_index_args &a, int64_t first_chunk, bucket_parts *parts, uint32_t *sums) {
    const int64_t bucket = block_index(), chunk = first_chunk + thread_index();
    const uint16_t *begins = a.begins + chunk * CUDA_SORT_DIGITS + bucket;
    uint32_t begin = 0, end = 0, all;
    if (chunk < a.chunks) {
        begin = begins[0];
        end = bucket + 1 < CUDA_SORT_DIGITS ? begins[1] : (uint32_t)elements_of(a, chunk);
    }
    parts->first[thread_index()] = sum_before(end - begin, sums, &all);
    parts->begin[thread_index()] = (uint16_t)begin;
    if (thread_index() == 0) parts->first[CUDA_SORT_THREADS] = all;
    barrier();
    return all;
}
/* Those that this thread puts in order of CUDA_SORT_CHUNK of them from the one numbered `done` on: values to the
 * block's memory, where they are its own, and their places in the bucket as digits, four to a register. */
DEVICE void take_parts(const cuda_index_args &a, int64_t first_chunk, const bucket_parts &parts, uint32_t done,
                       float *values, uint32_t (&digits)[CUDA_SORT_EACH / 4]) {
    constexpr int EACH = CUDA_SORT_EACH;
    const float *in = (const float *)a.values + first_chunk * CUDA_SORT_CHUNK;
    const uint8_t *in_keys = (const uint8_t *)a.keys + first_chunk * CUDA_SORT_CHUNK;
    const uint32_t count = parts.first[CUDA_SORT_THREADS], first = done + (uint32_t)sort_place(0, 0);
    float value[EACH];
    uint8_t key[EACH];
    int part = 0; /* the last one that begins at the element or before */
    for (int step = CUDA_SORT_THREADS / 2; step > 0; step /= 2)
        if (parts.first[part + step] <= first) part += step;
    UNROLL for (int e = 0; e < EACH; e++) {
        const uint32_t i = first + (uint32_t)(e * WARP);
        key[e] = CUDA_SORT_DIGITS - 1; /* what is beyond the end comes last */
        value[e] = 0;
        if (i >= count) continue;
        while (parts.first[part + 1] <= i) part++;
        const int from = part * CUDA_SORT_CHUNK + parts.begin[part] + (int)(i - parts.first[part]);
        key[e] = in_keys[from];
        value[e] = in[from];
    }
    UNROLL for (int e = 0; e < EACH; e++)
        values[sort_place(0, e)] = value[e];
    UNROLL for (int e = 0; e < EACH; e++)
        digits[e / 4] = (e % 4 ? digits[e / 4] : 0) | (uint32_t)key[e] << e % 4 * 8;
}
/* Memory: counts; elements in order by place, where masks were before; elements as they come. */
KERNEL_OF_TWO(gm_scatter_sums, cuda_index_args, CUDA_SORT_THREADS) {
    constexpr int EACH = CUDA_SORT_EACH, DIGITS = CUDA_SORT_DIGITS;
    SHARED bucket_parts parts;
    SHARED uint64_t sums[SORT_WARPS];
    SHARED uint32_t starts[DIGITS + 1];
    uint32_t *next = (uint32_t *)block_memory();
    float *ordered = (float *)(next + SORT_WARPS * DIGITS), *values = ordered + CUDA_SORT_CHUNK;
    chunk_places at;
    const int d = thread_index();
    const uint32_t place = ((uint32_t)block_index() << a.shift) + (uint32_t)d;
    const bool has_place = d < 1 << a.shift && place < a.limit;
    float *out = (float *)a.out + (int64_t)place * a.step;
    float sum = has_place ? *out : 0.0f;
    for (int64_t first = 0; first < a.chunks; first += CUDA_SORT_THREADS) {
        const uint32_t count = find_parts(a, first, &parts, (uint32_t *)sums);
        for (uint32_t done = 0; done < count; done += CUDA_SORT_CHUNK) {
            const uint32_t left = count - done < CUDA_SORT_CHUNK ? count - done : CUDA_SORT_CHUNK;
            uint32_t digits[EACH / 4];
            take_parts(a, first, parts, done, values, digits);
            const auto digit = [&](int e) { return digits[e / 4] >> e % 4 * 8 & (DIGITS - 1); };
            const uint64_t before = order_chunk(digit, at, next, sums, 0);
            if (d < DIGITS) starts[d] = (uint32_t)before;
            if (d == 0) starts[DIGITS] = left;
            UNROLL for (int e = 0; e < EACH; e++)
                ordered[at[e]] = values[sort_place(0, e)]; /* of what is beyond the end, too */
            barrier();
            if (has_place) {
                const uint32_t end = starts[d + 1] < left ? starts[d + 1] : left;
                for (uint32_t i = starts[d]; i < end; i++) sum += ordered[i];
            }
            barrier();
        }
        barrier(); /* nobody looks at the parts any more */
    }
    if (has_place) *out = sum;
}
