/* scan.cu - cumulative sums, products, extremes and log-sums along one axis of contiguous arrays.
 * The axis is cut into chunks, by its length alone: first the totals of all chunks, then what comes before each, then
 * the chunks again; rows of floats, forwards, in one pass. Along the last axis a thread of a block takes
 * CUDA_SCAN_EACH elements in order; along another a thread is a column. Sums of floats are float64; joins.cuh says what
 * products are. */
#include "joins.cuh"

/* Which element comes i-th, in elements of a row. */
DEVICE int64_t scan_at(const cuda_scan_args &a, int64_t i) { return a.reverse ? a.length - 1 - i : i; }
/* What an exclusive scan has first, where that is not the start as it is stored. */
DEVICE void store_first(const cuda_scan_args &a, void *out, int64_t i) {
    const int bits = 8 * item_size(a.type);
    const bool top = a.op == GM_R_MIN;
    if (a.type == GM_T_C64)
        ((c64 *)out)[i] = c64(a.op == GM_R_SUM ? 0.0f : a.op == GM_R_PROD ? 1.0f : top ? INFINITY : -INFINITY);
    else if (!is_int_type(a.type)) store_float(out, i, top ? INFINITY : -INFINITY, a.type);
    else if (is_signed_type(a.type)) store_int(out, i, (top ? INT64_MAX : INT64_MIN) >> (64 - bits), a.type);
    else store_int(out, i, top ? -1 : 0, a.type);
}
template <class J>
DEVICE void store_scan(const cuda_scan_args &a, void *out, int64_t i, typename J::acc acc, bool first) {
    const bool sums = a.op == GM_R_SUM || a.op == GM_R_PROD;
    if (first && (!sums || a.type == GM_T_C64)) store_first(a, out, i);
    else J::store(out, i, acc, a.type, a.op, a.type);
}
/* What the threads before this one of a block have, joined; *total: of all of them. */
template <class J>
DEVICE typename J::acc before_thread(const cuda_scan_args &a, typename J::acc own, typename J::acc *shared,
                                     typename J::acc *total) {
    typedef typename J::acc acc;
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    acc through = own;
    UNROLL for (int by = 1; by < WARP; by *= 2) {
        const acc other = lane_up(through, by);
        if (lane >= by) through = J::join(other, through, a.op, a.type);
    }
    acc before = lane_up(through, 1);
    if (lane == 0) before = J::start(a.op, a.type);
    barrier();
    if (lane == WARP - 1) shared[warp] = through;
    barrier();
    acc warps = J::start(a.op, a.type), all = warps;
    for (int w = 0; w < thread_count() / WARP; w++) {
        if (w < warp) warps = J::join(warps, shared[w], a.op, a.type);
        all = J::join(all, shared[w], a.op, a.type);
    }
    *total = all;
    return J::join(warps, before, a.op, a.type);
}
/* Where item j of a chunk is in the block's memory: after each thread's stretch is a gap, so that no two threads' items
 * share a bank. */
DEVICE char *scan_room(int item, int j) { return block_memory() + j * item + j / CUDA_SCAN_EACH * CUDA_SCAN_GAP(item); }
template <class T> DEVICE void stage_in(const T *in, int count) {
    T x[CUDA_SCAN_EACH];
    UNROLL for (int e = 0; e < CUDA_SCAN_EACH; e++) {
        const int j = e * CUDA_THREADS + thread_index();
        if (j < count) x[e] = in[j];
    }
    UNROLL for (int e = 0; e < CUDA_SCAN_EACH; e++) {
        const int j = e * CUDA_THREADS + thread_index();
        if (j < count) *(T *)scan_room(sizeof(T), j) = x[e];
    }
}
template <class T> DEVICE void stage_out(T *out, int count) {
    UNROLL for (int e = 0; e < CUDA_SCAN_EACH; e++) {
        const int j = e * CUDA_THREADS + thread_index();
        if (j < count) out[j] = *(const T *)scan_room(sizeof(T), j);
    }
}
template <class J, class L> DEVICE void scan_rows(const cuda_scan_args &a) {
    typedef typename J::acc acc;
    SHARED acc shared[CUDA_THREADS / WARP];
    const int64_t which = a.totals ? block_index() : block_count() - 1 - block_index();
    const int64_t row = which / a.chunks, begin = which % a.chunks * CUDA_SCAN_CHUNK, left = a.length - begin;
    const int item = item_size(a.type), count = left < CUDA_SCAN_CHUNK ? (int)left : CUDA_SCAN_CHUNK;
    const int64_t base = row * a.length + (a.reverse ? left - count : begin);
    switch (item) {
    case 1: stage_in((const uint8_t *)a.in + base, count); break;
    case 2: stage_in((const uint16_t *)a.in + base, count); break;
    case 4: stage_in((const uint32_t *)a.in + base, count); break;
    default: stage_in((const uint64_t *)a.in + base, count);
    }
    barrier();
    const int first = thread_index() * CUDA_SCAN_EACH;
    const auto room = [=](int e) { return scan_room(item, a.reverse ? count - 1 - first - e : first + e); };
    acc own = J::start(a.op, a.type), total;
    UNROLL for (int e = 0; e < CUDA_SCAN_EACH; e++)
        if (first + e < count) own = J::take(own, L::load(room(e), 0, a.type), a.op, a.type);
    acc run = before_thread<J>(a, own, shared, &total);
    if (a.totals) {
        if (thread_index() == 0) ((acc *)a.carries)[which] = total;
        return;
    }
    if (a.carries) run = J::join(((const acc *)a.carries)[which], run, a.op, a.type);
    UNROLL for (int e = 0; e < CUDA_SCAN_EACH; e++) {
        if (first + e >= count) continue;
        const acc before = run;
        run = J::take(run, L::load(room(e), 0, a.type), a.op, a.type);
        store_scan<J>(a, room(e), 0, a.exclusive ? before : run, a.exclusive && begin + first + e == 0);
    }
    barrier();
    switch (item) {
    case 1: stage_out((uint8_t *)a.out + base, count); break;
    case 2: stage_out((uint16_t *)a.out + base, count); break;
    case 4: stage_out((uint32_t *)a.out + base, count); break;
    default: stage_out((uint64_t *)a.out + base, count);
    }
}
/* ---- rows of floats, forwards, in one pass: a block publishes the total of its chunk, and waits for those of all that
 * come before. Blocks begin in their order, as CUB's scans take it too: those that are waited for have begun. Totals
 * are joined in one order, whatever is there first: the chunks of a group, whose last one publishes theirs, then
 * groups. So no block waits for what another one makes of what it has waited for, but once. ---- */
template <class T> struct published { /* values of this type */
    static constexpr int PAIRS = (int)(sizeof(T) + 7) / 8;
    uint64_t *at;
    METHOD published operator+(int64_t i) const { return {at + i * 2 * PAIRS}; }
    METHOD void put(const T &value) const {
        uint32_t words[2 * PAIRS] = {};
        memcpy(words, &value, sizeof value);
        UNROLL for (int i = 0; i < PAIRS; i++)
            publish(at + 2 * i, words + 2 * i);
    }
    METHOD bool get(T *value) const {
        uint32_t words[2 * PAIRS];
        bool is_there = true;
        UNROLL for (int i = 0; i < PAIRS; i++)
            is_there = is_published(at + 2 * i, words + 2 * i) && is_there;
        memcpy(value, words, sizeof *value);
        return is_there;
    }
};
/* All of so many values joined, each lane of a warp some of them, by those that are asked for at once. */
template <class J>
DEVICE typename J::acc join_published(const cuda_scan_args &a, published<typename J::acc> values, int64_t count) {
    typedef typename J::acc acc;
    constexpr int AT_ONCE = 2;
    const int64_t lane = thread_index() % WARP, each = (count + WARP - 1) / WARP;
    const int64_t end = (lane + 1) * each < count ? (lane + 1) * each : count;
    acc all = J::start(a.op, a.type);
    for (int64_t i = lane * each; i < end; i += AT_ONCE) {
        acc value[AT_ONCE];
        bool are_there;
        do {
            are_there = true;
            UNROLL for (int k = 0; k < AT_ONCE; k++)
                if (i + k < end) are_there = (values + (i + k)).get(&value[k]) && are_there;
        } while (!are_there);
        UNROLL for (int k = 0; k < AT_ONCE; k++)
            if (i + k < end) all = J::join(all, value[k], a.op, a.type);
    }
    warp_barrier();
    UNROLL for (int by = 1; by < WARP; by *= 2) {
        const acc other = lane_xor(all, by);
        all = lane & by ? J::join(other, all, a.op, a.type) : J::join(all, other, a.op, a.type);
    }
    return all;
}
/* earlier: the groups before the chunk's own, and the chunks before it in that; for all threads, after a barrier. */
template <class J>
DEVICE void find_earlier(const cuda_scan_args &a, int64_t row, int64_t chunk, typename J::acc total,
                         typename J::acc *earlier) {
    typedef typename J::acc acc;
    const int64_t groups = (a.chunks + a.group - 1) / a.group, group = chunk / a.group, first = group * a.group;
    const published<acc> line = {(uint64_t *)a.carries}, totals = line + row * (a.chunks + groups);
    const published<acc> of_groups = totals + a.chunks;
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    if (warp > 1) return;
    if (warp == 0 && lane == 0) (totals + chunk).put(total);
    const acc before = warp ? join_published<J>(a, of_groups, group)
                            : join_published<J>(a, totals + first, chunk - first);
    if (lane != 0) return;
    if (warp == 0 && chunk + 1 == first + a.group) (of_groups + group).put(J::join(before, total, a.op, a.type));
    earlier[1 - warp] = before;
}
/* A chunk of a row, EACH elements to a thread: they come from the block's memory and go back to it by 16 bytes, after
 * which is a gap of as many. What is there beyond a row's end is anything, and comes after all that counts. */
template <int TYPE, int EACH> struct line_chunk {
    typedef typename float_item<TYPE>::raw raw;
    static constexpr int GROUP = 16 / (int)sizeof(raw), GROUPS = EACH / GROUP, LINE = EACH + GROUP;
    typedef pack<raw, GROUP> group;
    raw *room; /* of the block */
    const raw *in;
    raw *out;
    int count;
    bool lines; /* all is there, in groups */
    METHOD group *own() const { return (group *)(room + thread_index() * LINE); }
    METHOD group *staged(int v) const { /* the v-th that this thread reads and writes */
        const int g = v * CUDA_THREADS + thread_index();
        return (group *)(room + g / GROUPS * LINE + g % GROUPS * GROUP);
    }
    METHOD void fetch() const {
        if (lines) {
            UNROLL for (int v = 0; v < GROUPS; v++)
                copy_16(staged(v), (const group *)in + v * CUDA_THREADS + thread_index(), 16);
            commit_copies();
            wait_copies<0>();
        } else {
            for (int j = thread_index(); j < count; j += CUDA_THREADS) room[j / EACH * LINE + j % EACH] = in[j];
        }
        barrier();
    }
    METHOD void store() const {
        barrier();
        if (lines) {
            UNROLL for (int v = 0; v < GROUPS; v++)
                ((group *)out)[v * CUDA_THREADS + thread_index()] = *staged(v);
        } else {
            for (int j = thread_index(); j < count; j += CUDA_THREADS) out[j] = room[j / EACH * LINE + j % EACH];
        }
    }
};
template <class J, int TYPE, int EACH> DEVICE void scan_line(const cuda_scan_args &a) {
    typedef typename J::acc acc;
    typedef line_chunk<TYPE, EACH> line;
    constexpr int CHUNK = CUDA_THREADS * EACH, GROUP = line::GROUP;
    SHARED acc shared[CUDA_THREADS / WARP], earlier[2];
    const uint32_t which = (uint32_t)block_index(), chunks = (uint32_t)a.chunks; /* of a grid's blocks */
    const int64_t row = which / chunks, chunk = which % chunks, begin = chunk * CHUNK, left = a.length - begin;
    const int count = left < CHUNK ? (int)left : CHUNK;
    const int64_t at = row * a.length + begin;
    line x = {(typename line::raw *)block_memory(), (const typename line::raw *)a.in + at,
              (typename line::raw *)a.out + at, count};
    x.lines = count == CHUNK && ((uintptr_t)x.in | (uintptr_t)x.out) % 16 == 0;
    x.fetch();
    acc own = J::start(a.op, TYPE), total;
    UNROLL for (int v = 0; v < line::GROUPS; v++) {
        const typename line::group y = x.own()[v];
        UNROLL for (int e = 0; e < GROUP; e++)
            own = J::take(own, widen<TYPE>(y.at[e]), a.op, TYPE);
    }
    acc run = before_thread<J>(a, own, shared, &total);
    if (a.carries) {
        find_earlier<J>(a, row, chunk, total, earlier);
        barrier();
        run = J::join(J::join(earlier[0], earlier[1], a.op, TYPE), run, a.op, TYPE);
    }
    UNROLL for (int v = 0; v < line::GROUPS; v++) {
        typename line::group y = x.own()[v];
        UNROLL for (int e = 0; e < GROUP; e++) {
            const acc before = run;
            run = J::take(run, widen<TYPE>(y.at[e]), a.op, TYPE);
            J::store(y.at, e, a.exclusive ? before : run, TYPE, a.op, TYPE);
        }
        x.own()[v] = y;
    }
    if (a.exclusive && begin == 0 && thread_index() == 0) store_scan<J>(a, x.room, 0, J::start(a.op, TYPE), true);
    x.store();
}
template <class J, int TYPE> DEVICE void scan_lines(const cuda_scan_args &a) {
    if (a.chunk == CUDA_SCAN_CHUNK) scan_line<J, TYPE, CUDA_SCAN_EACH>(a);
    else scan_line<J, TYPE, CUDA_LINE_EACH>(a);
}
template <class J, class L> DEVICE void scan_columns(const cuda_scan_args &a) {
    typedef typename J::acc acc;
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), columns = a.rows * a.inner;
    if (i >= columns * a.chunks) return;
    const int64_t column = i % columns, chunk = i / columns, row = column / a.inner;
    const int64_t base = row * a.length * a.inner + column % a.inner;
    const int64_t begin = chunk * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    acc *carry = (acc *)a.carries + column * a.chunks + chunk;
    acc run = a.carries && !a.totals ? *carry : J::start(a.op, a.type);
    for (int64_t k = begin; k < end; k++) {
        const int64_t at = base + scan_at(a, k) * a.inner;
        const acc before = run;
        run = J::take(run, L::load(a.in, at, a.type), a.op, a.type);
        if (!a.totals) store_scan<J>(a, a.out, at, a.exclusive ? before : run, a.exclusive && k == 0);
    }
    if (a.totals) *carry = run;
}
/* The totals of the chunks of a line become what comes before each; a block for each line. */
template <class J> DEVICE void scan_carries(const cuda_scan_args &a) {
    typedef typename J::acc acc;
    SHARED acc shared[CUDA_THREADS / WARP];
    constexpr int EACH = 8;
    acc *line = (acc *)a.carries + block_index() * a.chunks, run = J::start(a.op, a.type);
    for (int64_t first = thread_index() * EACH; first - thread_index() * EACH < a.chunks;
         first += CUDA_THREADS * EACH) {
        acc x[EACH], own = J::start(a.op, a.type), total;
        UNROLL for (int e = 0; e < EACH; e++)
            x[e] = first + e < a.chunks ? line[first + e] : J::start(a.op, a.type);
        UNROLL for (int e = 0; e < EACH; e++)
            own = J::join(own, x[e], a.op, a.type);
        acc before = J::join(run, before_thread<J>(a, own, shared, &total), a.op, a.type);
        UNROLL for (int e = 0; e < EACH; e++) {
            if (first + e < a.chunks) line[first + e] = before;
            before = J::join(before, x[e], a.op, a.type);
        }
        run = J::join(run, total, a.op, a.type);
    }
}
#define SCANS(name, J, L)                                                                                              \
    KERNEL(gm_scan_rows_##name, cuda_scan_args, CUDA_THREADS) { scan_rows<J, L>(a); }                                  \
    KERNEL(gm_scan_columns_##name, cuda_scan_args, CUDA_THREADS) { scan_columns<J, L>(a); }                            \
    KERNEL(gm_scan_carries_##name, cuda_scan_args, CUDA_THREADS) { scan_carries<J>(a); }
#define FLOAT_SCANS(name, OF)                                                                                          \
    SCANS(name, join_##name, any_floats)                                                                               \
    OF(gm_scan_lines_##name##_f16, cuda_scan_args, CUDA_THREADS) { scan_lines<join_##name, GM_T_F16>(a); }             \
    OF(gm_scan_lines_##name##_bf16, cuda_scan_args, CUDA_THREADS) { scan_lines<join_##name, GM_T_BF16>(a); }           \
    OF(gm_scan_lines_##name##_f32, cuda_scan_args, CUDA_THREADS) { scan_lines<join_##name, GM_T_F32>(a); }
FLOAT_SCANS(sum, KERNEL_OF_SIX)
FLOAT_SCANS(prod, KERNEL_OF_THREE)
FLOAT_SCANS(max, KERNEL_OF_SIX)
FLOAT_SCANS(min, KERNEL_OF_SIX)
FLOAT_SCANS(logsumexp, KERNEL_OF_THREE)
SCANS(int, join_int, any_ints)
SCANS(complex, join_complex, any_complex)
