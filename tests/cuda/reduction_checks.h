/* reduction_checks.h - checks of reductions over any axes, and of work on rows. */
#ifndef GOMLX_TESTS_REDUCTION_CHECKS_H
#define GOMLX_TESTS_REDUCTION_CHECKS_H
#include "device_check.h"

/* ---- reductions ---- */
static int reduced_type(int op, int type) {
    if (op == GM_R_ALL || op == GM_R_ANY)
        return GM_T_BOOL;
    if ((op == GM_R_SUM || op == GM_R_PROD) && type < GM_T_F16 && bytes_of(type) < 4)
        return GM_T_I32;
    return type;
}
/* Logarithms of one number differ by turns. */
static void compare_logarithms(const char *what, operand out, int64_t n, double ulps) {
    const double turn = 6.283185307179586;
    const float *want = floats_of(out.host);
    float *got = host_memory((size_t)n * 8 + 1);
    copy_bytes(got, out.device, (size_t)n * 8);
    for (int64_t i = 1; i < 2 * n; i += 2) {
        const double turns = rint(((double)got[i] - (double)want[i]) / turn);
        if (isfinite(turns))
            got[i] = (float)((double)got[i] - turns * turn);
    }
    compare(what, want, got, n, GM_T_C64, ulps, 0);
}
/* A shape whose last axes, or first ones, are reduced. */
static void reduce_case(int op, int type, shape_of_case s, int n_kept, bool first, values kind) {
    int64_t strides[DIMS], outputs = 1;
    char what[128];
    operand in = strided(&s, type, strides, false, kind);
    const int out_type = reduced_type(op, type), n_reduced = s.ndim - n_kept;
    const int64_t *kept = first ? s.shape + n_reduced : s.shape, *kept_steps = first ? strides + n_reduced : strides;
    const int64_t *reduced = first ? s.shape : s.shape + n_kept, *steps = first ? strides : strides + n_kept;
    for (int d = 0; d < n_kept; d++)
        outputs *= kept[d];
    operand out = operand_of((size_t)outputs * 8 + 8);
    gm_reduce_args h = {out.host, in.host,    (gm_reduce_op)op, type,    out_type, n_kept,
                        kept,     kept_steps, n_reduced,        reduced, steps},
                   d = h;
    d.out = out.device;
    d.in = in.device;
    RUN_BOTH(reduce, h, d, outputs, out, (size_t)(outputs * bytes_of(out_type)));
    const int64_t length = outputs ? s.count / outputs : 0;
    static const char *const names[] = {"sum", "prod", "max", "min", "all", "any", "logsumexp"};
    snprintf(what, sizeof what, "%s of %s, %lld of %lld elements", names[op], type_names[type], (long long)outputs,
             (long long)length);
    const bool sums = op == GM_R_SUM || op == GM_R_PROD || op == GM_R_LOGSUMEXP;
    /* Sums of both signs are wrong by their terms' last places: 4 is the size of a term. */
    const double ulps = !sums ? 0.25 : type == GM_T_F32 ? (op == GM_R_PROD ? 256 : 64) : type == GM_T_C64 ? 4096 : 1;
    const double floor = op == GM_R_SUM ? 4 * sqrt((double)length) : 0;
    if (op == GM_R_LOGSUMEXP && type == GM_T_C64)
        compare_logarithms(what, out, outputs, ulps);
    else
        compare_out(what, out, outputs, out_type, ulps, floor);
}
static void check_reduce(void) {
    for (int op = 0; op < GM_R_COUNT; op++)
        for (int c = 0; c < cases; c++, free_memory()) {
            int type = random_type(true);
            if (op == GM_R_LOGSUMEXP && type != GM_T_C64)
                type = random_float_type();
            shape_of_case s = random_shape(most_elements);
            const bool empty = s.count == 0 && op != GM_R_SUM && op != GM_R_PROD && op != GM_R_ALL && op != GM_R_ANY;
            if (empty || (type == GM_T_C64 && (op == GM_R_PROD)))
                continue;
            reduce_case(op, type, s, (int)below(s.ndim + 1), below(2),
                        op == GM_R_SUM || op == GM_R_PROD ? SMALL : PLAIN);
        }
    for (int op = 0; op < GM_R_COUNT; op++) /* long ones, which are cut into parts */
        for (int c = 0; c < 6; c++, free_memory()) {
            static const int64_t lengths[] = {1024, 1025, 4097, 12289, 70001, 140000};
            const int64_t width = op == GM_R_PROD ? 1 : 1 + c % 3 * 20;
            shape_of_case s = {2, {width, lengths[c]}, width * lengths[c]};
            const int type = op == GM_R_PROD ? GM_T_I32 : c % 2 ? GM_T_F32 : GM_T_BF16;
            if (op == GM_R_ALL || op == GM_R_ANY || s.count < 900000)
                reduce_case(op, type, s, 1, false, SMALL);
            free_memory();
            s = (shape_of_case){2, {lengths[c], width}, width * lengths[c]};
            reduce_case(op, type, s, 1, true, SMALL);
        }
}

static void check_arg_reduce(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        const int type = random_type(true);
        shape_of_case s = random_shape(c % 8 ? most_elements : 60000);
        int64_t strides[DIMS], outputs = 1;
        char what[96];
        if (s.count == 0 || s.ndim == 0)
            continue;
        if (c % 8 == 0)
            s = (shape_of_case){2, {3, 20011}, 60033};
        operand in = strided(&s, type, strides, false, SPECIAL);
        const bool first = below(2);
        const int64_t *kept = first ? s.shape + 1 : s.shape, *kept_steps = first ? strides + 1 : strides;
        const int64_t axis = first ? 0 : s.ndim - 1;
        for (int d = 0; d < s.ndim - 1; d++)
            outputs *= kept[d];
        operand out = operand_of((size_t)outputs * 4 + 8);
        gm_arg_reduce_args h = {(uint32_t *)out.host, in.host,       below(2),     type, s.ndim - 1, kept,
                                kept_steps,           s.shape[axis], strides[axis]},
                           d = h;
        d.out = (uint32_t *)out.device;
        d.in = in.device;
        RUN_BOTH(arg_reduce, h, d, outputs, out, (size_t)outputs * 4);
        snprintf(what, sizeof what, "arg%s of %s", h.max ? "max" : "min", type_names[type]);
        compare_out(what, out, outputs, GM_T_U32, 0, 0);
    }
}

/* Rows of logits, some of which are equal, no numbers or infinite; in every third case all of a row. What moves on are
 * tokens and positions, which RUN_BOTH sets to odd numbers before each run. */
static void check_best_rows(void) {
    static const int64_t sizes[] = {1, 3, 4, 130, 4096, 4097, 8192, 13001, 150016};
    static const float odd[] = {NAN, -INFINITY, INFINITY, 5.0f, 0.0f, -0.0f};
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int64_t vocab = sizes[below(9)], n = 1 + below(vocab > 9000 ? 3 : 20), total = n * vocab;
        const bool moves = c % 2;
        operand in = operand_of((size_t)total * 4), out = operand_of((size_t)n * 12);
        fill_random(in.host, total, GM_T_F32, PLAIN);
        for (int64_t i = 0; i < total; i++) {
            const bool whole = c % 3 == 2 && i / vocab == 0;
            if (whole || (c % 4 > 1 && below(vocab) < 3))
                ((float *)(void *)in.host)[i] = whole ? odd[c / 3 % 6] : odd[below(6)];
        }
        upload(in);
        memset(out.host, 0xa5, out.bytes);
        const size_t bytes = 2 * (size_t)n * sizeof(gm_row_best);
        gm_row_best *want = host_memory(bytes), *got = device_cuda.pinned(bytes);
        if (!got)
            die("pinned memory");
        memset(want, 0, bytes);
        memset(got, 0, bytes);
        int32_t *here = (int32_t *)(void *)out.host, *there = (int32_t *)(void *)out.device;
        gm_best_rows_args h = {want,  (uint32_t *)here,        (float *)(void *)in.host,
                               vocab, moves ? here + n : NULL, moves ? here + 2 * n : NULL},
                          d = {got,   (uint32_t *)there,        (float *)(void *)in.device,
                               vocab, moves ? there + n : NULL, moves ? there + 2 * n : NULL};
        RUN_BOTH(best_rows, h, d, n, out, out.bytes);
        compare_out(moves ? "ids, tokens, positions" : "ids", out, 3 * n, GM_T_I32, 0, 0);
        for (int64_t r = 0; r < 2 * n; r++) {
            compare("id", &want[r].id, &got[r].id, 1, GM_T_I32, 0, 0);
            compare("logit", &want[r].logit, &got[r].logit, 1, GM_T_F32, 0, 0);
            compare("log-sum", &want[r].logsumexp, &got[r].logsumexp, 1, GM_T_F32, 4, 1);
        }
        device_cuda.unpin(got);
    }
}

/* ---- rows ---- */
static const int64_t row_sizes[] = {1,   2,    3,    4,    5,    31,   32,    33,    64,     127,    255,   256,
                                    257, 1000, 1024, 1025, 4096, 8200, 12288, 40000, 100001, 150001, 400003};
#define ROW_SIZES (int)(sizeof row_sizes / sizeof *row_sizes)
static void check_softmax(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int type = random_float_type();
        const int64_t dim = row_sizes[c % ROW_SIZES], rows = 1 + below(dim < 500 ? 20 : 3),
                      stride = dim + (below(2) ? below(9) : 0);
        operand in = operand_of((size_t)(rows * stride) * 4), out = operand_of((size_t)(rows * dim) * 4);
        fill_random(in.host, rows * stride, type, PLAIN);
        upload(in);
        gm_softmax_args h = {out.host, in.host, type, dim, stride}, d = h;
        d.out = out.device;
        d.in = in.device;
        RUN_BOTH(softmax, h, d, rows, out, (size_t)(rows * dim * bytes_of(type)));
        compare_out(type_names[type], out, rows * dim, type, type == GM_T_F32 ? 32 : 1, 0);
        if (stride == dim) {
            RUN_IN_PLACE(softmax, d, in, rows, out, in, rows * dim * bytes_of(type));
            compare_out("in place", out, rows * dim, type, type == GM_T_F32 ? 32 : 1, 0);
        }
    }
}
static void norm_case(int c, bool layer) {
    const int type = random_float_type();
    const int64_t dim = row_sizes[c % ROW_SIZES], rows = 1 + below(dim < 500 ? 20 : 3),
                  stride = dim + (below(2) ? below(9) : 0);
    operand x = operand_of((size_t)(rows * stride) * 4), weight = operand_of((size_t)dim * 4);
    operand bias = operand_of((size_t)dim * 4), out = operand_of((size_t)(rows * dim) * 4);
    fill_random(x.host, rows * stride, type, PLAIN);
    fill_random(weight.host, dim, type, PLAIN);
    fill_random(bias.host, dim, type, PLAIN);
    upload(x);
    upload(weight);
    upload(bias);
    const bool has_weight = below(4) > 0, has_bias = below(2);
    const double ulps = type == GM_T_F32 ? 64 : 1;
    if (layer) {
        gm_layer_norm_args
            h = {out.host, x.host, has_weight ? weight.host : NULL, has_bias ? bias.host : NULL, type, stride,
                 dim,      1e-5f},
            d = h;
        d.out = out.device;
        d.x = x.device;
        d.weight = has_weight ? weight.device : NULL;
        d.bias = has_bias ? bias.device : NULL;
        RUN_BOTH(layer_norm, h, d, rows, out, (size_t)(rows * dim * bytes_of(type)));
        compare_out(type_names[type], out, rows * dim, type, ulps, 4);
        if (stride == dim) {
            RUN_IN_PLACE(layer_norm, d, x, rows, out, x, rows * dim * bytes_of(type));
            compare_out("in place", out, rows * dim, type, ulps, 4);
        }
    } else {
        gm_rms_norm_args h = {out.host, x.host, has_weight ? weight.host : NULL, type, stride, dim, 1e-5f}, d = h;
        d.out = out.device;
        d.x = x.device;
        d.weight = has_weight ? weight.device : NULL;
        RUN_BOTH(rms_norm, h, d, rows, out, (size_t)(rows * dim * bytes_of(type)));
        compare_out(type_names[type], out, rows * dim, type, ulps, 0);
        if (stride == dim) {
            RUN_IN_PLACE(rms_norm, d, x, rows, out, x, rows * dim * bytes_of(type));
            compare_out("in place", out, rows * dim, type, ulps, 0);
        }
    }
}
static void check_rms_norm(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory())
        norm_case(c, false);
}
static void check_layer_norm(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory())
        norm_case(c, true);
}
#endif
