/* order_checks.h - checks of running sums, orders, random numbers and indices. */
#ifndef GOMLX_TESTS_ORDER_CHECKS_H
#define GOMLX_TESTS_ORDER_CHECKS_H
#include "device_check.h"

/* ---- orders and running sums ---- */
static void scan_case(int op, int type, int64_t rows, int64_t length, int64_t inner, bool reverse) {
    const int64_t n = rows * length * inner;
    const bool exclusive = below(2);
    char what[128];
    operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
    fill_random(in.host, n, type, op == GM_R_PROD ? POSITIVE : PLAIN);
    if (op == GM_R_PROD && is_float(type)) /* products stay within the type */
        for (int64_t i = 0; i < n; i++)
            put_float(in.host, i, (float)(0.97 + 0.06 * unit()), type);
    upload(in);
    gm_scan_args h = {out.host, in.host, op, type, reverse, exclusive, length, inner, NULL}, d = h;
    d.out = out.device;
    d.in = in.device;
    RUN_BOTH(scan, h, d, rows, out, (size_t)(n * bytes_of(type)));
    snprintf(what, sizeof what, "%d of %s, %lld x %lld x %lld%s%s", op, type_names[type], (long long)rows,
             (long long)length, (long long)inner, reverse ? ", reversed" : "", exclusive ? ", exclusive" : "");
    const bool extremes = op == GM_R_MAX || op == GM_R_MIN;
    const double ulps = extremes ? 0.25 : type == GM_T_C64 ? 1e6 : type == GM_T_F32 ? (op == GM_R_PROD ? 8192 : 64) : 2;
    const double floor = op == GM_R_SUM ? 4 * sqrt((double)length) : op == GM_R_LOGSUMEXP ? 4 : 0;
    compare_out(what, out, n, type, ulps, floor);
    RUN_IN_PLACE(scan, d, in, rows, out, in, n * bytes_of(type));
    compare_out("in place", out, n, type, ulps, floor);
}
static void check_scan(void) {
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 300, 1025, 4096, 4097, 9000};
    static const int ops[] = {GM_R_SUM, GM_R_PROD, GM_R_MAX, GM_R_MIN, GM_R_LOGSUMEXP};
    for (int op = 0; op < 5; op++)
        for (int c = 0; c < cases; c++, free_memory()) {
            const int64_t length = lengths[below(10)], inner = below(2) ? 1 : 1 + below(40);
            const int type = ops[op] == GM_R_LOGSUMEXP ? random_float_type() : random_type(ops[op] != GM_R_PROD);
            if (length * inner < 40000)
                scan_case(ops[op], type, 1 + below(3), length, inner, below(2));
        }
    static const int types[] = {GM_T_F32, GM_T_F16}; /* sums of one word and values of two, of more than two groups */
    for (int k = 0; k < 2; k++, free_memory())
        scan_case(k ? GM_R_LOGSUMEXP : GM_R_SUM, types[k], 2, 66 * 4096 + 5, 1, false);
}

static void check_sort(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        const int64_t lengths[] = {1, 2, 3, 31, 64, 65, 1000, 2048, 2049, 4096, 5001, 12289};
        const int64_t length = lengths[c % 12], rows = 1 + below(3), n = rows * length;
        const bool bytes = c == 11; /* which have one pass: in place it reads what it writes */
        const int type = bytes ? GM_T_U8 : random_type(true);
        const bool indices = !bytes && below(2);
        char what[96];
        operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
        fill_random(in.host, n, type, SPECIAL);
        upload(in);
        gm_sort_args h = {out.host, in.host, host_memory((size_t)n * 16), type, indices, length}, d = h;
        d.out = out.device;
        d.in = in.device;
        const int out_type = indices ? GM_T_U32 : type;
        RUN_BOTH(sort, h, d, rows, out, (size_t)(n * bytes_of(out_type)));
        snprintf(what, sizeof what, "%s of %s, rows of %lld", indices ? "indices" : "values", type_names[type],
                 (long long)length);
        compare_out(what, out, n, out_type, 0, 0);
        if (!indices) {
            RUN_IN_PLACE(sort, d, in, rows, out, in, n * bytes_of(type));
            compare_out("in place", out, n, type, 0, 0);
        }
    }
}
static void check_partition(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int64_t lengths[] = {1, 2, 3, 31, 65, 1000, 2048, 2049, 5001};
        const int64_t length = lengths[c % 9], rows = 1 + below(3), n = rows * length;
        int type = random_type(false);
        if (bytes_of(type) == 8)
            type = GM_T_F32;
        const bool indices = below(2);
        operand in = operand_of((size_t)n * 8), out = operand_of((size_t)n * 8);
        fill_random(in.host, n, type, SPECIAL);
        upload(in);
        gm_partition_args h = {out.host, in.host, type, indices, length, below(length)}, d = h;
        d.out = out.device;
        d.in = in.device;
        const int out_type = indices ? GM_T_U32 : type;
        RUN_BOTH(partition, h, d, rows, out, (size_t)(n * bytes_of(out_type)));
        compare_out(type_names[type], out, n, out_type, 0, 0);
    }
}
static void check_topk(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t lengths[] = {1, 3, 65, 1000, 2049, 5001};
        const int64_t length = lengths[c % 6], rows = 1 + below(3), most = length < 1024 ? length : 1024,
                      k = 1 + below(most);
        const int type = random_float_type();
        operand in = operand_of((size_t)(rows * length) * 4), out = operand_of((size_t)(rows * k) * 4);
        fill_random(in.host, rows * length, type, SPECIAL);
        upload(in);
        gm_topk_args h = {out.host, in.host, type, length, k}, d = h;
        d.out = out.device;
        d.in = in.device;
        RUN_BOTH(topk, h, d, rows, out, (size_t)(rows * k * bytes_of(type)));
        compare_out(type_names[type], out, rows * k, type, 0.25, 0); /* of equal zeros either */
    }
}
static void check_search(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t length = below(400), n = 1 + below(500);
        const int type = random_type(true);
        operand in = operand_of((size_t)length * 8 + 8), sorted = operand_of((size_t)length * 8 + 8);
        operand values = operand_of((size_t)n * 8), out = operand_of((size_t)n * 4);
        fill_random(in.host, length, type, SPECIAL);
        fill_random(values.host, n, type, SPECIAL);
        gm_sort_args order = {sorted.host, in.host, host_memory((size_t)length * 16 + 16), type, false, length};
        if (length)
            contracts_cpu.sort(&host_recorder, &order, 1);
        upload(sorted);
        upload(values);
        gm_search_args h = {(uint32_t *)out.host, sorted.host, values.host, type, below(2), length}, d = h;
        d.out = (uint32_t *)out.device;
        d.sorted = sorted.device;
        d.values = values.device;
        RUN_BOTH(search, h, d, n, out, (size_t)n * 4);
        compare_out(type_names[type], out, n, GM_T_U32, 0, 0);
    }
}
static void check_word_order(void) {
    for (int c = 0; c < 12; c++, free_memory()) {
        const int64_t lengths[] = {1, 7, 2048, 2049, 6000, 100};
        const int64_t n = lengths[c % 6], lines = 1 + below(3);
        operand in = operand_of((size_t)(lines * n) * 4), out = operand_of((size_t)(lines * n) * 4);
        for (int64_t i = 0; i < lines * n; i++)
            ((uint32_t *)in.host)[i] = (uint32_t)(c % 2 ? next_random() : next_random() % 50);
        upload(in);
        gm_word_order_args h = {(uint32_t *)out.host, (uint32_t *)in.host, NULL, n}, d = h;
        d.out = (uint32_t *)out.device;
        d.in = (uint32_t *)in.device;
        RUN_BOTH(word_order, h, d, lines, out, (size_t)(lines * n) * 4);
        compare_out("words", out, lines * n, GM_T_U32, 0, 0);
    }
}
static void check_threefry(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t keys = 1 + below(3), words = 1 + below(700);
        const gm_random_kind kind = (gm_random_kind)(c % 4);
        const int type = kind == GM_RANDOM_BITS ? GM_T_U32 : random_float_type();
        operand key = operand_of((size_t)keys * 8), out = operand_of((size_t)(keys * words) * 4);
        fill_random(key.host, 2 * keys, GM_T_U32, PLAIN);
        upload(key);
        gm_threefry_args h = {out.host, (uint32_t *)key.host, kind, type, words, 2.5f, -0.75f}, d = h;
        d.out = out.device;
        d.keys = (uint32_t *)key.device;
        RUN_BOTH(threefry, h, d, keys * ((words + 1) / 2), out, (size_t)(keys * words * bytes_of(type)));
        compare_out(type_names[type], out, keys * words, type, 0.25, 0);
    }
}

/* ---- indices ---- */
static gm_index_fault *fault_words(void) { /* of the host and the device */
    static gm_index_fault *words;
    if (!words)
        words = device_cuda.pinned(2 * sizeof *words);
    if (!words)
        die("pinned memory");
    memset(words, 0, 2 * sizeof *words);
    return words;
}
static void check_faults(const char *what, const gm_index_fault *words) {
    wait_for_device();
    if (words[0].raised == words[1].raised)
        passed++;
    else
        failed++, printf("  FAILED %s: a fault is %d, not %d\n", what, words[1].raised, words[0].raised);
}
static void random_indices(operand o, int64_t n, int type, int64_t size, bool may_fail) {
    for (int64_t i = 0; i < n; i++) {
        const bool is_signed = type == GM_T_I32 || type == GM_T_I64;
        int64_t x = may_fail && below(40) == 0 ? size + 3 : below(size);
        if (is_signed && below(3) == 0)
            x -= size;
        memcpy(o.host + i * bytes_of(type), &x, (size_t)bytes_of(type));
    }
    upload(o);
}
static void check_positions(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const shape_of_case s = random_shape(most_elements);
        gm_index_fault *words = fault_words();
        gm_positions_index h_index[2], d_index[2];
        int64_t strides[2][DIMS];
        operand out = operand_of((size_t)s.count * 8 + 8);
        for (int k = 0; k < 2; k++) {
            const int type = below(2) ? GM_T_I32 : GM_T_I64;
            const int64_t size = 1 + below(50);
            operand in = strided(&s, type, strides[k], false, PLAIN);
            for (size_t i = 0; i < in.bytes / (size_t)bytes_of(type); i++) {
                const int64_t x = below(20) == 0 && c % 2 ? 60 : below(2 * size) - size;
                memcpy(in.host - in.before + i * (size_t)bytes_of(type), &x, (size_t)bytes_of(type));
            }
            upload(in);
            h_index[k] = (gm_positions_index){in.host, type, size, k ? 1 : 100, strides[k], &words[0]};
            d_index[k] = h_index[k];
            d_index[k].data = in.device;
            d_index[k].fault = &words[1];
        }
        gm_positions_args h = {(int64_t *)out.host, 2, s.ndim, h_index, s.shape}, d = h;
        d.out = (int64_t *)out.device;
        d.indices = d_index;
        RUN_BOTH(positions, h, d, s.count, out, (size_t)s.count * 8);
        compare_out("positions", out, s.count, GM_T_I64, 0, 0);
        check_faults("positions", words);
    }
}
/* Rows of `run` of [lead, size, run] by an index of `count` for each lead; by_element: an index for each element. */
static void check_take(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        static const int index_types[] = {GM_T_I32, GM_T_U32, GM_T_I64, GM_T_U64};
        const int type = random_type(true), index_type = index_types[below(4)];
        const int64_t lead = 1 + below(3), size = 1 + below(40), run = c % 4 == 3 ? 500 + below(900) : 1 + below(70);
        const int64_t count = 1 + below(60);
        const bool by_element = below(3) == 0, shared_index = below(2);
        gm_index_fault *words = fault_words();
        const int64_t index_lead = shared_index ? 0 : by_element ? count * run : count;
        const int64_t sparse = size * run, dense = count * run, n = lead * count * run;
        operand in = operand_of((size_t)(lead * size * run) * 8), out = operand_of((size_t)n * 8);
        operand index = operand_of((size_t)(lead * count * run) * 8);
        fill_random(in.host, lead * size * run, type, PLAIN);
        upload(in);
        random_indices(index, lead * count * run, index_type, size, c % 3 == 0);
        gm_take_args h = {.out = out.host,
                          .in = in.host,
                          .index = index.host,
                          .type = type,
                          .in_type = type,
                          .index_type = index_type,
                          .size = size,
                          .step = run,
                          .fault = &words[0],
                          .ndim = 1,
                          .shape = &lead,
                          .sparse_strides = &sparse,
                          .dense_strides = &dense,
                          .index_strides = &index_lead,
                          .count = count,
                          .dense_step = run,
                          .index_step = by_element ? run : 1,
                          .run = run,
                          .sparse_run = 1,
                          .dense_run = 1,
                          .index_run = by_element},
                     d = h;
        d.out = out.device;
        d.in = in.device;
        d.index = index.device;
        d.fault = &words[1];
        RUN_BOTH(take, h, d, lead * count, out, (size_t)(n * bytes_of(type)));
        compare_out(type_names[type], out, n, type, 0, 0);
        check_faults("take", words);
    }
}
static void check_scatter(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        static const int index_types[] = {GM_T_I32, GM_T_U32, GM_T_I64, GM_T_U64};
        const int type = random_type(true), index_type = index_types[below(4)], mode = (int)below(GM_S_COUNT);
        const int in_type = type == GM_T_F32 && mode != GM_S_UPDATE && below(3) == 0 ? GM_T_BF16 : type;
        const int64_t lead = 1 + below(3), size = 1 + below(40), run = c % 5 ? 1 + below(40) : 1;
        const int64_t count = c % 6 ? 1 + below(60) : 2500;
        const bool by_element = below(3) == 0, shared_index = below(2);
        gm_index_fault *words = fault_words();
        const int64_t index_lead = shared_index ? 0 : by_element ? count * run : count;
        const int64_t sparse = size * run, dense = count * run, n = lead * size * run;
        operand in = operand_of((size_t)(lead * count * run) * 8), out = operand_of((size_t)n * 8);
        operand index = operand_of((size_t)(lead * count * run) * 8);
        char *before = host_memory((size_t)n * 8), *got = host_memory((size_t)n * 8), what[96];
        fill_random(in.host, lead * count * run, in_type, PLAIN);
        fill_random(before, n, type, PLAIN);
        memcpy(out.host, before, (size_t)n * 8);
        upload(in);
        upload(out);
        random_indices(index, lead * count * run, index_type, size, c % 3 == 0);
        gm_scatter_args h = {.out = out.host,
                             .in = in.host,
                             .index = index.host,
                             .type = type,
                             .in_type = in_type,
                             .index_type = index_type,
                             .mode = mode,
                             .size = size,
                             .step = run,
                             .fault = &words[0],
                             .ndim = 1,
                             .shape = &lead,
                             .sparse_strides = &sparse,
                             .dense_strides = &dense,
                             .index_strides = &index_lead,
                             .count = count,
                             .dense_step = run,
                             .index_step = by_element ? run : 1,
                             .run = run,
                             .sparse_run = 1,
                             .dense_run = 1,
                             .index_run = by_element,
                             .span = size * run},
                        d = h;
        d.out = out.device;
        d.in = in.device;
        d.index = index.device;
        d.fault = &words[1];
        contracts_cpu.scatter(&host_recorder, &h, lead * run);
        if (!device_cuda.contracts->scatter(&device_recorder, &d, lead * run))
            failed++;
        copy_bytes(got, out.device, (size_t)(n * bytes_of(type)));
        snprintf(what, sizeof what, "%s of %s by %s, %lld to %lld",
                 (const char *[]){"update", "add", "multiply", "max", "min"}[mode], type_names[type],
                 by_element ? "elements" : "rows", (long long)count, (long long)size);
        compare(what, out.host, got, n, type, type == GM_T_C64 ? 64 : 0, 0);
        check_faults("scatter", words);
    }
}

/* Sums of many float32, which have no order: of eighths, which the processor sums exactly too; then of others, as sums
 * of doubles say, to half a unit of the result. Runs give the same bits. */
static void exact_values(operand o, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        ((float *)o.host)[i] = ((float)below(49) - 24) / 8;
}
static void compare_sums(const gm_scatter_args *h, const float *before, const float *got) {
    double *sum = (double *)host_memory((size_t)h->size * 8), *size = (double *)host_memory((size_t)h->size * 8);
    int64_t others = 0;
    for (int64_t p = 0; p < h->size; p++)
        sum[p] = (double)before[p], size[p] = fabs(sum[p]);
    for (int64_t i = 0; i < h->count; i++) {
        int64_t at = 0;
        memcpy(&at, (const char *)h->index + i * h->index_step * bytes_of(h->index_type),
               (size_t)bytes_of(h->index_type));
        if (h->index_type == GM_T_I32)
            at = (int32_t)at;
        at += at < 0 ? h->size : 0;
        const double x = (double)((const float *)h->in)[i * h->dense_step];
        sum[at] += x, size[at] += fabs(x);
    }
    for (int64_t p = 0; p < h->size; p++) { /* sums of doubles are rounded, to 2^-53 of what was added, a few times */
        const float next = nextafterf(fabsf(got[p]), INFINITY);
        others += !(fabs((double)got[p] - sum[p]) <= ((double)next - fabs((double)got[p])) / 2 + size[p] * 0x1p-45);
    }
    if (others) {
        failed++;
        printf("  FAILED many sums: %lld of %lld are not the nearest float32\n", (long long)others, (long long)h->size);
    } else {
        passed++;
    }
}
/* Places of which all is -0, and others with a NaN or infinities. */
static void special_sums(float *out, float *in, const int64_t *index, int64_t count, int64_t size) {
    for (int64_t i = 0; i < 100; i++)
        out[i] = -0.0f;
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = index[i] + (index[i] < 0 ? size : 0);
        if (place < 100)
            in[i] = -0.0f;
        else if (place < 200)
            in[i] = below(2) ? INFINITY : 1;
        else if (place < 300)
            in[i] = below(2) ? NAN : 1;
    }
}
typedef struct { operand in, out, index; } sums_operands;
static sums_operands operands_of_sums(int64_t elements, int64_t size) {
    return (sums_operands){operand_of((size_t)elements * 4), operand_of((size_t)size * 4),
                           operand_of((size_t)elements * 8)};
}
static gm_scatter_args sums_arguments(const sums_operands *o, int index_type, int64_t count, int64_t size, int64_t step,
                                      gm_index_fault *fault) {
    static const int64_t none = 0;
    return (gm_scatter_args){.out = o->out.host,
                             .in = o->in.host,
                             .index = o->index.host,
                             .type = GM_T_F32,
                             .in_type = GM_T_F32,
                             .index_type = index_type,
                             .mode = GM_S_ADD,
                             .size = size,
                             .step = 1,
                             .fault = fault,
                             .ndim = 0,
                             .shape = &none,
                             .count = count,
                             .dense_step = step,
                             .index_step = step,
                             .run = 1,
                             .sparse_run = 1,
                             .dense_run = 1,
                             .span = size};
}
/* Uploads what there is, and what the device makes of it. */
static void device_sums(const sums_operands *o, const gm_scatter_args *h, gm_index_fault *fault, char *got) {
    gm_scatter_args d = *h;
    d.out = o->out.device;
    d.in = o->in.device;
    d.index = o->index.device;
    d.fault = fault;
    upload(o->in);
    upload(o->out);
    upload(o->index);
    if (!device_cuda.contracts->scatter(&device_recorder, &d, 1))
        failed++;
    copy_bytes(got, d.out, (size_t)h->size * 4);
}
/* Of exponents from `low` to `high`. */
static float any_float(int low, int high) {
    const uint32_t bits = (uint32_t)(low + below(high - low + 1)) << 23 | (uint32_t)below(1 << 23) |
                          (uint32_t)below(2) << 31;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
/* To each place a number, a small one, and pairs that cancel, of any exponents: what is left is the sum of the first
 * two and what was there. */
static void check_wide_sums(int64_t size, int low, int high) {
    const int64_t pairs = (((int64_t)1 << 18) - 2 * size) / 2, count = 2 * (size + pairs);
    gm_index_fault *words = fault_words();
    const sums_operands o = operands_of_sums(count, size);
    float *in = (float *)o.in.host, *small = in + size, *out = (float *)o.out.host;
    int32_t *index = (int32_t *)o.index.host;
    double *sum = (double *)host_memory((size_t)size * 8);
    char *got = host_memory((size_t)size * 4);
    for (int64_t p = 0; p < size; p++) {
        index[p] = index[size + p] = (int32_t)p;
        in[p] = any_float(low, high);
        out[p] = ldexpf(in[p], (int)below(56) - 28);
        small[p] = 0;
        if (isinf(out[p]))
            out[p] = 0;
        if (p % 3 == 0) { /* just between two numbers, or, for the small one, not */
            out[p] = ldexpf(1 + (float)below(1 << 20) * 0x1p-20f, (int)below(200) - 100);
            in[p] = ldexpf(below(2) ? 1 : -1, ilogbf(out[p]) - 24);
            small[p] = p % 6 ? ldexpf(below(2) ? 1 : -1, -140) : 0;
        }
        sum[p] = (double)out[p] + (double)in[p];
        if (small[p] != 0)
            sum[p] = nextafter(sum[p], small[p] > 0 ? INFINITY : -INFINITY);
    }
    for (int64_t i = 2 * size; i < count; i += 2) {
        index[i] = index[i + 1] = (int32_t)below(size);
        in[i] = any_float(low, high);
        in[i + 1] = -in[i];
    }
    const gm_scatter_args h = sums_arguments(&o, GM_T_I32, count, size, 1, &words[0]);
    device_sums(&o, &h, &words[1], got);
    for (int64_t p = 0; p < size; p++)
        out[p] = (float)sum[p];
    compare("many sums, wide", o.out.host, got, size, GM_T_F32, 0, 0);
}
/* More elements than the cells hold, to two of many places, all of one sign and nearly the largest of the unit: blocks'
 * sums overflow most often. */
static void check_large_sums(void) {
    const int64_t count = ((int64_t)1 << 24) + 5000, size = 40000;
    gm_index_fault *words = fault_words();
    const sums_operands o = operands_of_sums(count, size);
    char *got = host_memory((size_t)size * 4);
    double sum[2] = {0};
    memset(o.out.host, 0, (size_t)size * 4);
    for (int64_t i = 0; i < count; i++) {
        const float x = i % 16 ? 127 : 1;
        ((float *)o.in.host)[i] = i % 2 ? x : -x;
        ((int32_t *)o.index.host)[i] = 777 + (int32_t)(i % 2);
        sum[i % 2] += (double)((float *)o.in.host)[i];
    }
    const gm_scatter_args h = sums_arguments(&o, GM_T_I32, count, size, 1, &words[0]);
    device_sums(&o, &h, &words[1], got);
    for (int i = 0; i < 2; i++)
        ((float *)o.out.host)[777 + i] = (float)sum[i];
    compare("many sums, large", o.out.host, got, size, GM_T_F32, 0, 0);
}
static void check_scatter_sums(void) {
    static const int64_t sizes[] = {1, 200, 256, 1000, 65536, 65536, 40000};
    static const int types[] = {GM_T_I32, GM_T_I64, GM_T_U32, GM_T_I32, GM_T_I64, GM_T_I32, GM_T_U16};
    for (int c = 0; c < 7; c++, free_memory()) {
        const int64_t count = ((int64_t)1 << 18) + below(9000), size = sizes[c];
        const int64_t step = c == 1 ? 3 : 1, all = count * step; /* from element to element */
        const int index_type = types[c];
        gm_index_fault *words = fault_words();
        const sums_operands o = operands_of_sums(all, size);
        char *got = host_memory((size_t)size * 4), *again = host_memory((size_t)size * 4);
        float *before = (float *)host_memory((size_t)size * 4);
        exact_values(o.in, all);
        exact_values(o.out, size);
        random_indices(o.index, all, index_type, size, c == 3);
        if (c == 5)
            for (int64_t i = 0; i < count; i++)
                if (below(8))
                    ((int32_t *)o.index.host)[i] = 700 + (int32_t)below(i < count / 2 ? 3 : 300);
        if (c == 4)
            special_sums((float *)o.out.host, (float *)o.in.host, (const int64_t *)o.index.host, count, size);
        const gm_scatter_args h = sums_arguments(&o, index_type, count, size, step, &words[0]);
        device_sums(&o, &h, &words[1], got);
        contracts_cpu.scatter(&host_recorder, &h, 1);
        compare("many sums", o.out.host, got, size, GM_T_F32, 0, 0);
        check_faults("scatter", words);
        if (c == 3 || c == 4)
            continue;
        fill_random(o.in.host, all, GM_T_F32, PLAIN);
        fill_random(o.out.host, size, GM_T_F32, PLAIN);
        memcpy(before, o.out.host, (size_t)size * 4);
        for (int run = 0; run < (repeats > 2 ? repeats : 2); run++) {
            device_sums(&o, &h, &words[1], run ? again : got);
            if (run && memcmp(got, again, (size_t)size * 4) != 0) {
                failed++;
                printf("  FAILED many sums: two runs differ\n");
            }
        }
        compare_sums(&h, before, (const float *)got);
    }
    check_wide_sums(60000, 0, 254);
    check_wide_sums(300, 0, 254);
    check_wide_sums(300, 0, 8);
    check_wide_sums(300, 240, 254);
    free_memory();
    check_large_sums();
    free_memory();
}
#endif
