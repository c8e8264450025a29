/* product_checks.h - checks of products of matrices. */
#ifndef GOMLX_TESTS_PRODUCT_CHECKS_H
#define GOMLX_TESTS_PRODUCT_CHECKS_H
#include "device_check.h"

/* ---- products ---- */
static int64_t product_size(void) {
    static const int64_t sizes[] = {1, 2, 7, 8, 16, 24, 31, 33, 64, 65, 127, 128, 130, 136, 200};
    return sizes[below(15)];
}
static void check_product(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        static const int types[] = {GM_T_F16, GM_T_BF16, GM_T_F32, GM_T_C64};
        const int type = types[c % 4];
        const bool is_long = c % 8 == 2; /* a sum that is cut, but where something is added */
        const int64_t rows = product_size(), columns = product_size();
        const int64_t k = is_long     ? 512 + below(1500)
                          : below(20) ? product_size()
                                      : 0,
                      batch = is_long ? 1 : 1 + below(3);
        const bool turned_x = below(4) == 0, turned_w = below(2), has_add = type != GM_T_C64 && below(3) == 0;
        const bool one_w = below(3) == 0; /* the same matrix for the whole batch */
        operand x = operand_of((size_t)(batch * rows * k) * 8 + 8),
                w = operand_of((size_t)(batch * columns * k) * 8 + 8);
        operand add = operand_of((size_t)(batch * rows * columns) * 8),
                out = operand_of((size_t)(batch * rows * columns) * 8);
        fill_random(x.host, batch * rows * k, type, PLAIN);
        fill_random(w.host, batch * columns * k, type, PLAIN);
        fill_random(add.host, batch * rows * columns, type, PLAIN);
        upload(x);
        upload(w);
        upload(add);
        const int64_t out_step = rows * columns, x_step = rows * k, w_step = one_w ? 0 : columns * k, add_step = 0;
        gm_product_args h = {.out = out.host,
                             .x = x.host,
                             .w = w.host,
                             .add = has_add ? add.host : NULL,
                             .type = type,
                             .rows = rows,
                             .columns = columns,
                             .k = k,
                             .out_row = columns,
                             .out_column = 1,
                             .x_row = turned_x ? 1 : k,
                             .x_k = turned_x ? rows : 1,
                             .w_k = turned_w ? 1 : columns,
                             .w_column = turned_w ? k : 1,
                             .add_row = below(2) ? columns : 0,
                             .add_column = 1,
                             .ndim = 1,
                             .shape = &batch,
                             .out_strides = &out_step,
                             .x_strides = &x_step,
                             .w_strides = &w_step,
                             .add_strides = &add_step,
                             .alpha = has_add ? 0.5f : 1,
                             .beta = 2},
                        d = h;
        char what[96];
        d.out = out.device;
        d.x = x.device;
        d.w = w.device;
        d.add = has_add ? add.device : NULL;
        RUN_BOTH(product, h, d, batch, out, (size_t)(batch * rows * columns * bytes_of(type)));
        snprintf(what, sizeof what, "%s %lld x %lld x %lld%s", type_names[type], (long long)rows, (long long)columns,
                 (long long)k, turned_w ? ", w along k" : "");
        /* Terms are up to 16 and of both signs. */
        compare_out(what, out, batch * rows * columns, type,
                    type == GM_T_F32   ? 32
                    : type == GM_T_C64 ? 1e7
                                       : 2,
                    16 * sqrt((double)k + 1));
    }
}
static void check_gather_product(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        static const int types[] = {GM_T_F16, GM_T_BF16, GM_T_F32};
        const int type = types[c % 3];
        const int64_t rows = 1 + below(4), columns = product_size(), k = product_size(), items = 1 + below(6);
        operand x = operand_of((size_t)(3 * rows * k) * 4), w = operand_of((size_t)(4 * columns * k) * 4);
        operand xi = operand_of((size_t)items * 4), wi = operand_of((size_t)items * 4);
        operand out = operand_of((size_t)(items * rows * columns) * 4);
        fill_random(x.host, 3 * rows * k, type, PLAIN);
        fill_random(w.host, 4 * columns * k, type, PLAIN);
        for (int64_t i = 0; i < items; i++) {
            ((int32_t *)xi.host)[i] = (int32_t)below(5) - 1;
            ((int32_t *)wi.host)[i] = (int32_t)below(6) - 1;
        }
        upload(x);
        upload(w);
        upload(xi);
        upload(wi);
        gm_gather_product_args h = {{.out = out.host,
                                     .x = x.host,
                                     .w = w.host,
                                     .type = type,
                                     .rows = rows,
                                     .columns = columns,
                                     .k = k,
                                     .out_row = columns,
                                     .out_column = 1,
                                     .x_row = k,
                                     .x_k = 1,
                                     .w_k = 1,
                                     .w_column = k,
                                     .alpha = 1},
                                    (int32_t *)xi.host,
                                    (int32_t *)wi.host,
                                    3,
                                    4,
                                    rows * k,
                                    columns * k},
                               d = h;
        d.product.out = out.device;
        d.product.x = x.device;
        d.product.w = w.device;
        d.x_index = (int32_t *)xi.device;
        d.w_index = (int32_t *)wi.device;
        RUN_BOTH(gather_product, h, d, items, out, (size_t)(items * rows * columns * bytes_of(type)));
        compare_out(type_names[type], out, items * rows * columns, type, type == GM_T_F32 ? 32 : 2,
                    16 * sqrt((double)k));
    }
}
#endif
