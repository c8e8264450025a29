/* index.cu - elements chosen by index arrays. Where several indices of a scatter meet, they come in the order of i: the
 * positions were sorted before, stably, and one thread takes those of a place one after another. Sums of many float32
 * to few places are exact, and so have no order. */
#include "exact.cuh"
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

/* ---- sums of many float32 to few places: a block sums a segment of the elements to a part of the places, which its
 * memory holds, and to several copies of them where they are few. It holds whole numbers of a unit, of which most
 * elements are some: those of SUMS_EXPONENTS exponents, which a sample says; where places are few, of the units after
 * it too. All others add to the cells of exact.cuh at once, which takes long where many meet. So nothing is rounded
 * before all is joined, and the order of what is added does not matter. ---- */
#define SUMS_EXPONENTS 7 /* an element is less than 2^30 units */
/* Four elements at the least are a carry, so that after so many batches no more than SUMS_CARRIES are new, each thread
 * may have one on its way, and so many were left before: 16 bits hold all. */
#define SUMS_BATCHES 24
#define SUMS_CARRIES (SUMS_BATCHES * CUDA_SUMS_BATCH / 4)
#define SUMS_LEFT (INT16_MAX - SUMS_CARRIES - CUDA_SUMS_THREADS - 1)
constexpr int SUMS_EACH = CUDA_SUMS_BATCH / CUDA_SUMS_THREADS;
struct block_sums {
    block_words low;     /* [width], of which [units][copies][places] are used; in two's complement */
    block_words carries; /* [width / 2]: of two sums, how often each passed 2^31 upwards, less how often downwards, but
                          * for those that went to the cells; the second in steps of 2^16 */
    int exponent;        /* of the first unit */
    int across;          /* sums from one unit to the next */
};
/* How elements are read, one from another, and the place that an index means; `check` tells of one without a place. */
template <class T> struct lines_of { /* a.lines: side by side, indices of T */
    typedef T raw;
    static METHOD T index(const cuda_index_args &a, int64_t i) { return ((const T *)a.index)[i]; }
    static METHOD float value(const cuda_index_args &a, int64_t i) { return ((const float *)a.in)[i]; }
    static METHOD T place(const cuda_index_args &a, T x) { return x < 0 ? x + (T)a.size : x; }
    static METHOD void check(const cuda_index_args &a, T x) {
        if (place(a, x) < 0 || place(a, x) >= (T)a.size) tell_fault(a.fault, (int64_t)x);
    }
};
struct all_others {
    typedef int32_t raw;
    static METHOD int32_t index(const cuda_index_args &a, int64_t i) {
        const int64_t index = index_of(a, i * a.index_step);
        return index == NOWHERE ? -1 : (int32_t)index;
    }
    static METHOD float value(const cuda_index_args &a, int64_t i) { return ((const float *)a.in)[i * a.dense_step]; }
    static METHOD int32_t place(const cuda_index_args &, int32_t x) { return x; }
    static METHOD void check(const cuda_index_args &, int32_t) {}
};
/* A thread's elements of a batch, which are read while the batch before is added: from `first` on, of `count`. What is
 * not there is -0. */
template <class R> struct sums_batch {
    typename R::raw index[SUMS_EACH];
    float value[SUMS_EACH];
    METHOD void load(const cuda_index_args &a, int64_t first, int count) {
        UNROLL for (int e = 0; e < SUMS_EACH; e++) {
            const int by = e * CUDA_SUMS_THREADS;
            index[e] = by < count ? R::index(a, first + by) : 0;
            value[e] = by < count ? R::value(a, first + by) : -0.0f;
        }
    }
};
/* Counts samples of each exponent, and finds the first unit, with which most of them are some of a unit's. */
DEVICE int first_unit(const cuda_index_args &a) {
    SHARED uint32_t counts[256];
    SHARED uint32_t best;
    const int t = thread_index(), exponents = a.units * SUMS_EXPONENTS;
    if (t < 256) counts[t] = 0;
    if (t == 0) best = 0;
    barrier();
    const float sample = ((const float *)a.in)[a.count / CUDA_SUMS_THREADS * t * a.dense_step];
    count_up(&counts[bits_of_float(sample) >> 23 & 255]);
    barrier();
    if (t > 0 && t <= SUM_LAST + SUMS_EXPONENTS - exponents) {
        uint32_t count = 0;
        for (int e = 0; e < exponents; e++) count += counts[t + e];
        raise_to(&best, count << 8 | (uint32_t)t); /* of equals the largest: its sums pass 2^31 last */
    }
    barrier();
    return (int)(best & 255);
}
DEVICE void add_to_cell(const cuda_index_args &a, int place, sum_part part) {
    add_number(&a.cells[part.cell * a.size + place], part.value);
}
DEVICE void add_units(const cuda_index_args &a, int place, int64_t units, int exponent) {
    const sum_parts parts = sum_parts_of(units, exponent);
    add_to_cell(a, place, parts.low);
    add_to_cell(a, place, parts.high);
}
DEVICE int carries_of(uint32_t pair, int which) {
    const int first = (int16_t)pair;
    return which ? (int16_t)((pair - (uint32_t)first) >> 16) : first;
}
/* Carries go to the cells, of sums that have many. */
DEVICE void leave_carries(const cuda_index_args &a, const block_sums &b, const uint32_t *low, int first, int places) {
    barrier();
    for (int at = thread_index(); at < a.units * b.across; at += CUDA_SUMS_THREADS) {
        const int carries = carries_of(low[a.width + at / 2], at % 2), unit = at / b.across;
        if (carries >= -SUMS_LEFT && carries <= SUMS_LEFT) continue;
        add_to(b.carries, at / 2, 0 - (uint32_t)carries * (at % 2 ? 1u << 16 : 1u));
        add_units(a, first + at % b.across % places, carries * ((int64_t)1 << 32), b.exponent + unit * SUMS_EXPONENTS);
    }
    barrier();
}
/* at: where the block has the place's sum of the first unit. WIDE: there are others. */
template <bool WIDE> DEVICE void add_to_sum(const cuda_index_args &a, const block_sums &b, int at, int place, float x) {
    const uint32_t bits = bits_of_float(x), above = (bits & 0x7fffffff) - ((uint32_t)b.exponent << 23);
    if (above < (WIDE ? CUDA_SUMS_UNITS : 1) * SUMS_EXPONENTS << 23) {
        const uint32_t unit = WIDE ? (above >> 23) / SUMS_EXPONENTS : 0, by = (above >> 23) - unit * SUMS_EXPONENTS;
        const uint32_t size = (bits & 0x7fffff | 0x800000) << by, units = bits >> 31 ? 0 - size : size;
        at += (int)unit * b.across;
        const uint32_t before = add_to(b.low, at, units), after = before + units;
        if (((before ^ after) & (units ^ after)) >> 31)
            add_to(b.carries, at / 2, (bits >> 31 ? 0 - 1u : 1u) << at % 2 * 16);
    } else if (bits << 1) {
        add_to_cell(a, place, sum_part_of(x));
    }
}
template <class R, bool WIDE>
DEVICE void sum_segment(const cuda_index_args &a, const block_sums &b, const uint32_t *low, int first, int places) {
    const int64_t begin = block_index() / a.parts * a.segment;
    const int copy = thread_index() % a.copies * places - first;
    int64_t at = begin + thread_index();
    int left = (int)(a.segment < a.count - begin ? a.segment : a.count - begin);
    sums_batch<R> next;
    next.load(a, at, left - thread_index());
    for (int batch = 1; left > 0; batch++) {
        const sums_batch<R> those = next;
        at += CUDA_SUMS_BATCH, left -= CUDA_SUMS_BATCH;
        next.load(a, at, left - thread_index());
        UNROLL for (int e = 0; e < SUMS_EACH; e++) {
            const typename R::raw place = R::place(a, those.index[e]);
            if (place >= (typename R::raw)first && place < (typename R::raw)(first + places))
                add_to_sum<WIDE>(a, b, (int)place + copy, (int)place, those.value[e]);
            else R::check(a, those.index[e]);
        }
        if (batch % SUMS_BATCHES == 0) leave_carries(a, b, low, first, places);
    }
}
template <bool WIDE>
DEVICE void sum_lines(const cuda_index_args &a, const block_sums &b, const uint32_t *low, int first, int places) {
    if (a.index_type == GM_T_I32) sum_segment<lines_of<int32_t>, WIDE>(a, b, low, first, places);
    else if (a.index_type == GM_T_U32) sum_segment<lines_of<uint32_t>, WIDE>(a, b, low, first, places);
    else sum_segment<lines_of<int64_t>, WIDE>(a, b, low, first, places);
}
/* What the block has of a place, from `at` on. */
DEVICE int64_t sum_of_copies(const cuda_index_args &a, const uint32_t *low, int at, int places) {
    int64_t sum = 0;
    for (int c = 0; c < a.copies; c++, at += places)
        sum += carries_of(low[a.width + at / 2], at % 2) * ((int64_t)1 << 32) + (int32_t)low[at];
    return sum;
}
/* Stores what the block has, and adds what is of other units than the first to the cells. */
DEVICE void store_sums(const cuda_index_args &a, const block_sums &b, const uint32_t *low, int first, int places) {
    int64_t *sums = a.sums + block_index() / a.parts * a.size + first;
    for (int i = thread_index(); i < places * a.units; i += CUDA_SUMS_THREADS) {
        const int unit = i / places, place = i - unit * places;
        const int64_t sum = sum_of_copies(a, low, unit * b.across + place, places);
        if (unit == 0) sums[place] = sum;
        else if (sum) add_units(a, first + place, sum, b.exponent + unit * SUMS_EXPONENTS);
    }
}
KERNEL(gm_scatter_sums, cuda_index_args, CUDA_SUMS_THREADS) {
    uint32_t *const low = (uint32_t *)block_memory();
    const int first = (int)(block_index() % a.parts) * a.places;
    const int rest = (int)a.size - first, places = rest < a.places ? rest : a.places;
    const block_sums b = {words_at(low), words_at(low + a.width), first_unit(a), a.copies * places};
    for (int i = thread_index(); i < a.width + a.width / 2; i += CUDA_SUMS_THREADS) low[i] = 0;
    if (block_index() == 0 && thread_index() == 0) a.cells[CUDA_SUM_CELLS * a.size] = b.exponent;
    barrier();
    if (!a.lines) sum_segment<all_others, false>(a, b, low, first, places);
    else if (a.units > 1) sum_lines<true>(a, b, low, first, places);
    else sum_lines<false>(a, b, low, first, places);
    barrier();
    store_sums(a, b, low, first, places);
}
/* What was there, the segments' sums and the cells; a thread for each place reads ahead. */
KERNEL(gm_scatter_join, cuda_index_args, CUDA_THREADS) {
    constexpr int AHEAD = 16;
    const int64_t place = block_index() * CUDA_THREADS + thread_index();
    if (place >= a.size) return;
    int64_t units = 0, cell[CUDA_SUM_CELLS];
    for (int64_t first = 0; first < a.segments; first += AHEAD) {
        int64_t next[AHEAD];
        UNROLL for (int e = 0; e < AHEAD; e++)
            next[e] = first + e < a.segments ? a.sums[(first + e) * a.size + place] : 0;
        UNROLL for (int e = 0; e < AHEAD; e++)
            units += next[e];
    }
    UNROLL for (int i = 0; i < CUDA_SUM_CELLS; i++)
        cell[i] = a.cells[i * a.size + place];
    float *out = (float *)a.out + place * a.step;
    *out = rounded_sum(cell, units, (int)a.cells[CUDA_SUM_CELLS * a.size], *out);
}
