/* product.cu - products of matrices. Each element of a result is summed along k in one order, whatever the other rows,
 * columns and matrices are: by tiles of k of the tensor cores for float16 and bfloat16, one after another for float32.
 * A launcher may cut k (launch_products.c). */
#include "functions.cuh"
#include "units.cuh"

/* ---- float16 and bfloat16: a block makes 128 x 128 of out, each of 8 warps 64 x 32 of it, by steps of 32 along k ----
 */
#define MMA_TILE 128
#define MMA_K 32
#define MMA_STAGES 3
#define MMA_LINE_K (MMA_K + 8)    /* items of a line along k in the block's memory: no two rows share banks */
#define MMA_LINE_N (MMA_TILE + 8) /* of a line along columns */
#define MMA_STAGE (MMA_TILE * MMA_LINE_K * 2) /* bytes of one operand in one stage, either way */

struct product_place {
    const uint16_t *x, *w;
    int64_t out, add, row, column;
};
/* Which matrix, rows and columns a block is for. Blocks side by side share the columns of w: z is the matrix. */
DEVICE product_place product_start(const cuda_product_args &a, int tile_rows, int tile_columns, int item) {
    const int64_t down = (a.rows + tile_rows - 1) / tile_rows, across = (a.columns + tile_columns - 1) / tile_columns;
    const int64_t block = block_index() % (down * across), matrix = block_index() / (down * across);
    /* Bands of 8 tiles of rows, so that what is in flight at once reads few lines of both operands. */
    const int64_t band = block / (8 * across), in_band = down - band * 8 < 8 ? down - band * 8 : 8;
    const int64_t at = block - band * 8 * across;
    product_place p;
    p.row = (band * 8 + at % in_band) * tile_rows;
    p.column = at / in_band * tile_columns;
    const cuda_strides *const steps[4] = {&a.out_steps, &a.x_steps, &a.w_steps, &a.add_steps};
    const offsets<4> o = offsets_of<4>(a.batch, steps, matrix);
    int64_t from_x = o.at[1], from_w = o.at[2];
    if (a.x_index) {
        const int64_t i = a.x_index[matrix];
        from_x = (i < 0 ? 0 : i >= a.x_matrices ? a.x_matrices - 1 : i) * a.x_matrix;
    }
    if (a.w_index) {
        const int64_t i = a.w_index[matrix];
        from_w = (i < 0 ? 0 : i >= a.w_matrices ? a.w_matrices - 1 : i) * a.w_matrix;
    }
    p.out = o.at[0];
    p.add = o.at[3];
    p.x = (const uint16_t *)((const char *)a.x + from_x * item);
    p.w = (const uint16_t *)((const char *)a.w + from_w * item);
    return p;
}
DEVICE int64_t tail(int64_t left) { return left < 0 ? 0 : left > 8 ? 8 : left; }
/* Lines [line0, +128) of an operand, whose items along k are side by side, to [128][MMA_LINE_K]. */
DEVICE void load_along_k(uint16_t *to, const uint16_t *from, int64_t line_step, int64_t line0, int64_t lines,
                         int64_t k0, int64_t k) {
    UNROLL for (int i = 0; i < MMA_TILE * MMA_K / 8 / CUDA_THREADS; i++) {
        const int chunk = i * CUDA_THREADS + thread_index(), line = chunk / (MMA_K / 8), part = chunk % (MMA_K / 8) * 8;
        const bool inside = line0 + line < lines;
        const int64_t left = inside ? tail(k - k0 - part) : 0;
        copy_16(to + line * MMA_LINE_K + part, left ? from + (line0 + line) * line_step + k0 + part : from,
                (int)left * 2);
    }
}
/* Rows [k0, +32) of w, whose columns are side by side, to [32][MMA_LINE_N]. */
DEVICE void load_along_columns(uint16_t *to, const uint16_t *from, int64_t k_step, int64_t column0, int64_t columns,
                               int64_t k0, int64_t k) {
    UNROLL for (int i = 0; i < MMA_TILE * MMA_K / 8 / CUDA_THREADS; i++) {
        const int chunk = i * CUDA_THREADS + thread_index(), line = chunk / (MMA_TILE / 8);
        const int part = chunk % (MMA_TILE / 8) * 8;
        const int64_t left = k0 + line < k ? tail(columns - column0 - part) : 0;
        copy_16(to + line * MMA_LINE_N + part, left ? from + (k0 + line) * k_step + column0 + part : from,
                (int)left * 2);
    }
}
/* What is stored of one element. */
DEVICE float product_value(const cuda_product_args &a, float sum, int64_t add_at) {
    return a.add ? a.alpha * sum + a.beta * load_float(a.add, add_at, a.type) : sum;
}
/* One step along k of a warp: 64 rows x 32 columns. */
template <int TYPE>
DEVICE void multiply_step(float (&sum)[4][4][4], const uint16_t *x, const uint16_t *w, bool w_along_k, int warp_row,
                          int warp_column) {
    const int lane = thread_index() % WARP;
    UNROLL for (int k = 0; k < MMA_K; k += 16) {
        uint32_t rows[4][4], columns[4][2];
        UNROLL for (int m = 0; m < 4; m++)
            load_matrices(rows[m], x + (warp_row + m * 16 + lane % 16) * MMA_LINE_K + k + lane / 16 * 8);
        UNROLL for (int n = 0; n < 4; n += 2) {
            uint32_t four[4];
            if (w_along_k) {
                const int line = warp_column + n * 8 + lane / 16 * 8 + lane % 8;
                load_matrices(four, w + line * MMA_LINE_K + k + lane / 8 % 2 * 8);
            } else {
                const int line = k + lane % 16;
                load_matrices_turned(four, w + line * MMA_LINE_N + warp_column + n * 8 + lane / 16 * 8);
            }
            columns[n][0] = four[0];
            columns[n][1] = four[1];
            columns[n + 1][0] = four[2];
            columns[n + 1][1] = four[3];
        }
        UNROLL for (int m = 0; m < 4; m++) UNROLL
            for (int n = 0; n < 4; n++) {
                if (TYPE == GM_T_F16) mma_f16(sum[m][n], rows[m], columns[n]);
                else mma_bf16(sum[m][n], rows[m], columns[n]);
            }
    }
}
/* The sums of a block, of a thread its own; load(x, w, k) brings a stage of both operands. */
template <int TYPE, class LOAD>
DEVICE void sum_halves(float (&sum)[4][4][4], int64_t k, bool w_along_k, LOAD load_stage) {
    uint16_t *x = (uint16_t *)block_memory(), *w = x + MMA_STAGES * MMA_STAGE / 2;
    const int warp = thread_index() / WARP, warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int64_t steps = (k + MMA_K - 1) / MMA_K;
    const auto load = [&](int64_t step) {
        const int64_t stage = step % MMA_STAGES * (MMA_STAGE / 2);
        if (step < steps) load_stage(x + stage, w + stage, step * MMA_K);
        commit_copies();
    };
    UNROLL for (int m = 0; m < 4; m++) UNROLL
        for (int n = 0; n < 4; n++) UNROLL
            for (int i = 0; i < 4; i++) sum[m][n][i] = 0;
    UNROLL for (int s = 0; s < MMA_STAGES - 1; s++)
        load(s);
    for (int64_t step = 0; step < steps; step++) {
        wait_copies<MMA_STAGES - 2>();
        barrier(); /* the stage is there for all, and the one before it has been read by all */
        load(step + MMA_STAGES - 1);
        const int64_t stage = step % MMA_STAGES * (MMA_STAGE / 2);
        multiply_step<TYPE>(sum, x + stage, w + stage, w_along_k, warp_row, warp_column);
    }
    wait_copies<0>();
}
template <int TYPE> DEVICE void product_halves(const cuda_product_args &a) {
    const product_place p = product_start(a, MMA_TILE, MMA_TILE, 2);
    const bool w_along_k = a.w_k == 1;
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    float sum[4][4][4];
    sum_halves<TYPE>(sum, a.k, w_along_k, [&](uint16_t *x, uint16_t *w, int64_t k) {
        load_along_k(x, p.x, a.x_row, p.row, a.rows, k, a.k);
        if (w_along_k) load_along_k(w, p.w, a.w_column, p.column, a.columns, k, a.k);
        else load_along_columns(w, p.w, a.w_k, p.column, a.columns, k, a.k);
    });
    uint16_t *out = (uint16_t *)a.out + p.out;
    UNROLL for (int m = 0; m < 4; m++) UNROLL
        for (int n = 0; n < 4; n++) UNROLL
            for (int i = 0; i < 4; i++) {
                const int64_t row = p.row + warp_row + m * 16 + lane / 4 + i / 2 * 8;
                const int64_t column = p.column + warp_column + n * 8 + lane % 4 * 2 + i % 2;
                if (row >= a.rows || column >= a.columns) continue;
                const int64_t add_at = p.add + row * a.add_row + column * a.add_column;
                out[row * a.out_row + column * a.out_column] = narrow<TYPE>(product_value(a, sum[m][n][i], add_at));
            }
}
KERNEL_OF_TWO(gm_product_f16, cuda_product_args, CUDA_THREADS) { product_halves<GM_T_F16>(a); }
KERNEL_OF_TWO(gm_product_bf16, cuda_product_args, CUDA_THREADS) { product_halves<GM_T_BF16>(a); }

/* ---- the same on sm_90a: a block makes 128 rows and 128 or 256 columns, each of two groups of four warps 64 rows, by
 * steps of 64 along k, of which each is added by its four sixteens in order ---- */
#define WGMMA_ROWS 128
#define WGMMA_K 64
#define WGMMA_STAGES 4
#if HAS_WGMMA
/* LINES lines of an operand times sixty-four of k after sixty-four of k, either way: a thread copies PIECES pieces of
 * 16 bytes of each, as far from one another in memory and in the block's whatever the thread is. */
template <int LINES, bool ALONG_K> struct wgmma_loader {
    static constexpr int PIECES = LINES * WGMMA_K / 8 / CUDA_THREADS;
    static constexpr int ROW_PIECES = ALONG_K ? WGMMA_K / 8 : LINES / 8; /* side by side */
    static constexpr int APART = CUDA_THREADS / ROW_PIECES;              /* rows from a piece to the next; times 8 */
    const uint16_t *matrix, *next;                                       /* next: the first piece of the step to come */
    int64_t piece_step, k_step, left;                                    /* left: of k, from that piece on */
    uint32_t inside;                                                     /* along k: bit i is of piece i's line */
    int to, bytes;                                                       /* bytes: along lines, of a piece */

    METHOD wgmma_loader(const uint16_t *from, int64_t line_step, int64_t step_of_k, int64_t line0, int64_t lines,
                        int64_t k)
        : matrix(from), inside(0), bytes(0) {
        const int row = thread_index() / ROW_PIECES, part = thread_index() % ROW_PIECES;
        to = part / 8 * (128 * WGMMA_K) + row * 128 + ((part % 8 ^ row % 8) << 4);
        if (ALONG_K) {
            next = from + (line0 + row) * line_step + part * 8;
            piece_step = APART * line_step;
            k_step = WGMMA_K;
            left = k - part * 8;
            UNROLL for (int i = 0; i < PIECES; i++)
                inside |= (uint32_t)(line0 + row + i * APART < lines) << i;
        } else {
            next = from + row * step_of_k + line0 + part * 8;
            piece_step = APART * step_of_k;
            k_step = WGMMA_K * step_of_k;
            left = k - row;
            bytes = 2 * (int)tail(lines - line0 - part * 8);
        }
    }
    METHOD void load(char *stage) {
        const int along = ALONG_K ? 2 * (int)tail(left) : 0;
        UNROLL for (int i = 0; i < PIECES; i++) {
            const int count = ALONG_K ? (inside >> i & 1 ? along : 0) : (i * APART < left ? bytes : 0);
            copy_16(stage + to + i * APART * 128, count ? next + i * piece_step : matrix, count);
        }
        next += k_step;
        left -= WGMMA_K;
    }
};
/* What a thread has of a block's sums, two side by side at once where they may be. */
template <int TYPE, int N>
DEVICE void store_wgmma(const cuda_product_args &a, const product_place &p, const float (&sum)[N]) {
    typedef pack<uint16_t, 2> pair;
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    uint16_t *out = (uint16_t *)a.out + p.out;
    const bool pairs = a.out_column == 1 && a.out_row % 2 == 0 && (uintptr_t)out % 4 == 0;
    UNROLL for (int i = 0; i < N; i += 2) {
        const int64_t row = p.row + warp * 16 + lane / 4 + i / 2 % 2 * 8;
        const int64_t column = p.column + i / 4 * 8 + lane % 4 * 2;
        if (row >= a.rows || column >= a.columns) continue;
        const int64_t add_at = p.add + row * a.add_row + column * a.add_column;
        uint16_t *to = out + row * a.out_row + column * a.out_column;
        const bool both = column + 1 < a.columns;
        const uint16_t first = narrow<TYPE>(product_value(a, sum[i], add_at));
        const uint16_t second = both ? narrow<TYPE>(product_value(a, sum[i + 1], add_at + a.add_column)) : 0;
        if (pairs && both) {
            *(pair *)to = {{first, second}};
        } else {
            to[0] = first;
            if (both) to[a.out_column] = second;
        }
    }
}
/* The sums of a block, of a thread its own. */
template <int TYPE, int COLUMNS, bool X_ALONG_K, bool W_ALONG_K>
DEVICE void sum_wgmma(float (&sum)[COLUMNS / 2], wgmma_loader<WGMMA_ROWS, X_ALONG_K> &from_x,
                      wgmma_loader<COLUMNS, W_ALONG_K> &from_w, int64_t k) {
    constexpr int X_STAGE = WGMMA_ROWS * WGMMA_K * 2, STAGE = X_STAGE + COLUMNS * WGMMA_K * 2;
    constexpr int X_NEXT = X_ALONG_K ? 32 : 2048, W_NEXT = W_ALONG_K ? 32 : 2048; /* bytes to the next sixteen of k */
    char *room = block_memory();
    room += (1024 - (uintptr_t)room % 1024) % 1024;
    const int group = thread_index() / 128, steps = (int)((k + WGMMA_K - 1) / WGMMA_K);
    const auto load = [&](int step) {
        char *stage = room + step % WGMMA_STAGES * STAGE;
        if (step < steps) {
            from_x.load(stage);
            from_w.load(stage + X_STAGE);
        }
        commit_copies();
    };
    UNROLL for (int i = 0; i < COLUMNS / 2; i++)
        sum[i] = 0;
    for (int s = 0; s < WGMMA_STAGES - 2; s++) load(s);
    for (int step = 0; step < steps; step++) {
        wait_copies<WGMMA_STAGES - 3>();
        show_copies();
        barrier(); /* this stage is there for all; nobody uses the one before the last any more */
        const char *x = room + step % WGMMA_STAGES * STAGE, *w = x + X_STAGE;
        wgmma_begin();
        UNROLL for (int i = 0; i < WGMMA_K / 16; i++) {
            const block_matrix rows = matrix_at(x + group * 64 * 128 + i * X_NEXT, 128 * WGMMA_K);
            const block_matrix columns = matrix_at(w + i * W_NEXT, 128 * WGMMA_K);
            if (TYPE == GM_T_F16) wgmma_f16<X_ALONG_K, W_ALONG_K>(sum, rows, columns);
            else wgmma_bf16<X_ALONG_K, W_ALONG_K>(sum, rows, columns);
        }
        wgmma_commit();
        load(step + WGMMA_STAGES - 2); /* while this step and the one before are multiplied */
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    wait_copies<0>();
}
template <int TYPE, int COLUMNS, bool X_ALONG_K, bool W_ALONG_K> DEVICE void product_wgmma(const cuda_product_args &a) {
    const product_place p = product_start(a, WGMMA_ROWS, COLUMNS, 2);
    wgmma_loader<WGMMA_ROWS, X_ALONG_K> from_x(p.x, a.x_row, a.x_k, p.row, a.rows, a.k);
    wgmma_loader<COLUMNS, W_ALONG_K> from_w(p.w, a.w_column, a.w_k, p.column, a.columns, a.k);
    float sum[COLUMNS / 2];
    sum_wgmma<TYPE, COLUMNS, X_ALONG_K, W_ALONG_K>(sum, from_x, from_w, a.k);
    store_wgmma<TYPE>(a, p, sum);
}
#define PRODUCT_WGMMA(TYPE, COLUMNS, X, W) product_wgmma<TYPE, COLUMNS, X, W>(a)
#else
#define PRODUCT_WGMMA(TYPE, COLUMNS, X, W) (void)a
#endif
#define PRODUCT_WGMMAS(type, TYPE)                                                                                     \
    KERNEL(gm_product_##type##_128_kk, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 128, true, true); }      \
    KERNEL(gm_product_##type##_128_kl, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 128, true, false); }     \
    KERNEL(gm_product_##type##_128_lk, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 128, false, true); }     \
    KERNEL(gm_product_##type##_128_ll, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 128, false, false); }    \
    KERNEL(gm_product_##type##_256_kk, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 256, true, true); }      \
    KERNEL(gm_product_##type##_256_kl, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 256, true, false); }     \
    KERNEL(gm_product_##type##_256_lk, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 256, false, true); }     \
    KERNEL(gm_product_##type##_256_ll, cuda_product_args, CUDA_THREADS) { PRODUCT_WGMMA(TYPE, 256, false, false); }
PRODUCT_WGMMAS(f16, GM_T_F16)
PRODUCT_WGMMAS(bf16, GM_T_BF16)

/* ---- float32: a block makes 128 x 128 of out, a thread 8 x 8 of it, by steps of 16 along k; fused multiply-adds, one
 * k after another. While one step is computed, the next one is on its way to registers. ---- */
#define SIMT_TILE 128
#define SIMT_K 16
#define SIMT_LINE (SIMT_TILE + 4)
#define SIMT_PARTS (SIMT_TILE * SIMT_K / 4 / CUDA_THREADS) /* fours of an operand that a thread reads in a step */
typedef pack<float, 4> four;
typedef enum { ALONG_K, ALONG_LINES, ANYHOW } lie; /* what is side by side, four at a time, and aligned */

/* Part i of what a thread reads of 128 lines times 16 of k: which line and k it begins at. */
template <lie HOW> struct simt_part {
    int line, k;
    METHOD simt_part(int i) {
        const int at = i * CUDA_THREADS + thread_index();
        line = HOW == ALONG_LINES ? at % (SIMT_TILE / 4) * 4 : at / (SIMT_K / 4);
        k = HOW == ALONG_LINES ? at / (SIMT_TILE / 4) : at % (SIMT_K / 4) * 4;
    }
};
/* Reads an operand step by step; the second part is as far from the first whatever the thread is. */
template <lie HOW> struct simt_reader {
    const float *at;
    int64_t far, k_step;
    bool inside[SIMT_PARTS]; /* its line is one of the operand's */
    METHOD simt_reader(const float *from, int64_t line_step, int64_t each_k, int64_t lines) {
        const simt_part<HOW> first(0);
        at = from + first.line * line_step + first.k * each_k;
        far = HOW == ALONG_LINES ? (CUDA_THREADS / (SIMT_TILE / 4)) * each_k : CUDA_THREADS / (SIMT_K / 4) * line_step;
        k_step = each_k;
        UNROLL for (int i = 0; i < SIMT_PARTS; i++)
            inside[i] = simt_part<HOW>(i).line < lines;
    }
    METHOD void read(four (&x)[SIMT_PARTS], int left) { /* left: of k */
        UNROLL for (int i = 0; i < SIMT_PARTS; i++) {
            const int k = simt_part<HOW>(i).k;
            x[i] = {};
            if (HOW == ANYHOW) {
                UNROLL for (int j = 0; j < 4; j++)
                    if (inside[i] && k + j < left) x[i].at[j] = at[i * far + j * k_step];
            } else if (inside[i] && k < left) {
                x[i] = *(const four *)(at + i * far);
            }
        }
        at += SIMT_K * k_step;
    }
};
template <lie HOW> DEVICE void keep_simt(float (*to)[SIMT_LINE], const four (&x)[SIMT_PARTS]) {
    UNROLL for (int i = 0; i < SIMT_PARTS; i++) {
        const simt_part<HOW> part(i);
        if (HOW == ALONG_LINES) {
            *(four *)&to[part.k][part.line] = x[i];
        } else {
            UNROLL for (int j = 0; j < 4; j++)
                to[part.k + j][part.line] = x[i].at[j];
        }
    }
}
template <lie X, lie W> DEVICE void product_simt(const cuda_product_args &a) {
    alignas(16) SHARED float room[2][2][SIMT_K][SIMT_LINE];
    const product_place p = product_start(a, SIMT_TILE, SIMT_TILE, 4);
    simt_reader<X> x((const float *)p.x + p.row * a.x_row, a.x_row, a.x_k, a.rows - p.row);
    simt_reader<W> w((const float *)p.w + p.column * a.w_column, a.w_column, a.w_k, a.columns - p.column);
    const int row = thread_index() / 16 * 4, column = thread_index() % 16 * 4; /* and 64 further */
    float sum[8][8];
    four next_x[SIMT_PARTS], next_w[SIMT_PARTS];
    UNROLL for (int i = 0; i < 8; i++) UNROLL
        for (int j = 0; j < 8; j++) sum[i][j] = 0;
    x.read(next_x, (int)a.k);
    w.read(next_w, (int)a.k);
    int now = 0;
    for (int left = (int)a.k; left > 0; left -= SIMT_K, now ^= 1) {
        keep_simt<X>(room[now][0], next_x);
        keep_simt<W>(room[now][1], next_w);
        barrier(); /* and those that are still at the step before use the other room */
        x.read(next_x, left - SIMT_K);
        w.read(next_w, left - SIMT_K);
        UNROLL for (int s = 0; s < SIMT_K; s++) {
            four left[2], right[2];
            UNROLL for (int h = 0; h < 2; h++) {
                left[h] = *(const four *)&room[now][0][s][64 * h + row];
                right[h] = *(const four *)&room[now][1][s][64 * h + column];
            }
            UNROLL for (int i = 0; i < 8; i++) UNROLL
                for (int j = 0; j < 8; j++) sum[i][j] = fmaf(left[i / 4].at[i % 4], right[j / 4].at[j % 4], sum[i][j]);
        }
    }
    float *out = (float *)a.out + p.out;
    UNROLL for (int i = 0; i < 8; i++) UNROLL
        for (int j = 0; j < 8; j++) {
            const int64_t r = p.row + row + i % 4 + i / 4 * 64, c = p.column + column + j % 4 + j / 4 * 64;
            if (r >= a.rows || c >= a.columns) continue;
            out[r * a.out_row + c * a.out_column] = product_value(a, sum[i][j],
                                                                  p.add + r * a.add_row + c * a.add_column);
        }
}
KERNEL_OF_TWO(gm_product_f32_kk, cuda_product_args, CUDA_THREADS) { product_simt<ALONG_K, ALONG_K>(a); }
KERNEL_OF_TWO(gm_product_f32_kl, cuda_product_args, CUDA_THREADS) { product_simt<ALONG_K, ALONG_LINES>(a); }
KERNEL_OF_TWO(gm_product_f32_lk, cuda_product_args, CUDA_THREADS) { product_simt<ALONG_LINES, ALONG_K>(a); }
KERNEL_OF_TWO(gm_product_f32_ll, cuda_product_args, CUDA_THREADS) { product_simt<ALONG_LINES, ALONG_LINES>(a); }
KERNEL(gm_product_f32, cuda_product_args, CUDA_THREADS) { product_simt<ANYHOW, ANYHOW>(a); }

/* ---- any strides and complex numbers: a thread makes one element ---- */
KERNEL(gm_product_any, cuda_product_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), each = a.rows * a.columns;
    if (i >= each * a.batch.count) return;
    const int64_t matrix = i / each, row = i % each / a.columns, column = i % a.columns;
    const cuda_strides *const steps[4] = {&a.out_steps, &a.x_steps, &a.w_steps, &a.add_steps};
    const offsets<4> o = offsets_of<4>(a.batch, steps, matrix);
    int64_t x = o.at[1] + row * a.x_row, w = o.at[2] + column * a.w_column;
    if (a.x_index) {
        const int64_t at = a.x_index[matrix];
        x = row * a.x_row + (at < 0 ? 0 : at >= a.x_matrices ? a.x_matrices - 1 : at) * a.x_matrix;
    }
    if (a.w_index) {
        const int64_t at = a.w_index[matrix];
        w = column * a.w_column + (at < 0 ? 0 : at >= a.w_matrices ? a.w_matrices - 1 : at) * a.w_matrix;
    }
    const int64_t to = o.at[0] + row * a.out_row + column * a.out_column;
    if (a.type == GM_T_C64) {
        float re = 0, im = 0;
        for (int64_t k = 0; k < a.k; k++, x += a.x_k, w += a.w_k) {
            const c64 left = ((const c64 *)a.x)[x], right = ((const c64 *)a.w)[w];
            re = fmaf(left.re, right.re, fmaf(-left.im, right.im, re));
            im = fmaf(left.re, right.im, fmaf(left.im, right.re, im));
        }
        ((c64 *)a.out)[to] = c64(re, im);
        return;
    }
    float sum = 0;
    for (int64_t k = 0; k < a.k; k++, x += a.x_k, w += a.w_k)
        sum = fmaf(load_float(a.x, x, a.type), load_float(a.w, w, a.type), sum);
    store_float(a.out, to, product_value(a, sum, o.at[3] + row * a.add_row + column * a.add_column), a.type);
}

/* ---- prompts' rows ---- */
KERNEL(gm_prompt_rows, cuda_prompt_rows_args, CUDA_THREADS) {
    const int64_t i = (block_index() * CUDA_THREADS + thread_index()) * 8;
    if (i >= a.count) return;
    const pack<four, 2> x = *(const pack<four, 2> *)(a.x + i);
    pack<uint16_t, 8> out;
    UNROLL for (int j = 0; j < 8; j++) {
        const float one = x.at[j / 4].at[j % 4];
        out.at[j] = a.out_type == GM_T_F16 ? narrow<GM_T_F16>(one) : narrow<GM_T_BF16>(one);
    }
    *(pack<uint16_t, 8> *)((uint16_t *)a.out + i) = out;
}
/* A thread has four columns of a row. */
KERNEL(gm_prompt_units, cuda_prompt_units_args, CUDA_THREADS) {
    const int64_t column = (block_index_y() * CUDA_THREADS + thread_index()) * 4;
    const int64_t at = block_index() * a.columns + column, to = block_index() * a.out_step + column;
    if (column >= a.columns) return;
    if (!a.fours) {
        for (int j = 0; j < 4 && column + j < a.columns; j++)
            store_float(a.out, to + j, glu_value(a.glu, 0, 0, a.gate[at + j], a.up[at + j]), a.out_type);
        return;
    }
    const four gate = *(const four *)(a.gate + at), up = *(const four *)(a.up + at);
    four out;
    pack<uint16_t, 4> halves;
    UNROLL for (int j = 0; j < 4; j++) {
        out.at[j] = glu_value(a.glu, 0, 0, gate.at[j], up.at[j]);
        halves.at[j] = bfloat_of_float(out.at[j]);
    }
    if (a.out_type == GM_T_BF16) *(pack<uint16_t, 4> *)((uint16_t *)a.out + to) = halves;
    else *(four *)((float *)a.out + to) = out;
}
/* Lines of the right operand: of a matrix, or of two, in turn. A thread reads lines that are all even, or all odd. */
struct prompt_lines {
    const uint16_t *from;
    int64_t step, count;
    METHOD prompt_lines(const cuda_prompt_args &a, int line) {
        const bool odd = a.up && line % 2;
        from = odd ? (const uint16_t *)a.up - a.k / 2 : (const uint16_t *)a.w;
        step = a.up ? a.k / 2 : a.k;
        count = a.up ? 2 * a.columns : a.columns;
    }
};
/* Which rows and lines a block is for. */
struct prompt_place {
    int64_t row, line;
    METHOD prompt_place(const cuda_prompt_args &a, int tile_rows, int tile_lines) {
        const int64_t down = (a.rows + tile_rows - 1) / tile_rows;
        row = block_index() % down * tile_rows;
        line = block_index() / down * tile_lines;
    }
};
/* Two sums of a row, of lines side by side: two elements, or a gate and what it gates. */
DEVICE void store_prompt(const cuda_prompt_args &a, int64_t row, int64_t line, float first, float second) {
    if (row >= a.rows) return;
    if (a.up) {
        if (line / 2 >= a.columns) return;
        store_float(a.out, row * a.out_step + line / 2, glu_value(a.glu, 0, 0, first, second), a.out_type);
        return;
    }
    const float both[2] = {first, second};
    float *out = (float *)a.out + row * a.out_step;
    UNROLL for (int i = 0; i < 2; i++) {
        if (line + i >= a.columns) continue;
        float value = both[i];
        if (a.bias) value += a.bias[line + i];
        if (a.residual) value += a.residual[row * a.out_step + line + i];
        out[line + i] = value;
    }
}
template <int TYPE> DEVICE void prompt_halves(const cuda_prompt_args &a) {
    const prompt_place p(a, MMA_TILE, MMA_TILE);
    const prompt_lines w(a, thread_index() / (MMA_K / 8));
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    float sum[4][4][4];
    sum_halves<TYPE>(sum, a.k, true, [&](uint16_t *to_x, uint16_t *to_w, int64_t k) {
        load_along_k(to_x, (const uint16_t *)a.x, a.k, p.row, a.rows, k, a.k);
        load_along_k(to_w, w.from, w.step, p.line, w.count, k, a.k);
    });
    UNROLL for (int m = 0; m < 4; m++) UNROLL
        for (int n = 0; n < 4; n++) UNROLL
            for (int i = 0; i < 2; i++)
                store_prompt(a, p.row + warp / 4 * 64 + m * 16 + lane / 4 + i * 8,
                             p.line + warp % 4 * 32 + n * 8 + lane % 4 * 2, sum[m][n][2 * i], sum[m][n][2 * i + 1]);
}
#if HAS_WGMMA
template <int TYPE, int LINES> DEVICE void prompt_wgmma(const cuda_prompt_args &a) {
    const prompt_place p(a, WGMMA_ROWS, LINES);
    const prompt_lines w(a, thread_index() / (WGMMA_K / 8));
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    wgmma_loader<WGMMA_ROWS, true> from_x((const uint16_t *)a.x, a.k, 1, p.row, a.rows, a.k);
    wgmma_loader<LINES, true> from_w(w.from, w.step, 1, p.line, w.count, a.k);
    float sum[LINES / 2];
    sum_wgmma<TYPE, LINES, true, true>(sum, from_x, from_w, a.k);
    UNROLL for (int i = 0; i < LINES / 2; i += 2)
        store_prompt(a, p.row + warp * 16 + lane / 4 + i / 2 % 2 * 8, p.line + i / 4 * 8 + lane % 4 * 2, sum[i],
                     sum[i + 1]);
}
#define PROMPT_WGMMA(TYPE, LINES) prompt_wgmma<TYPE, LINES>(a)
#else
#define PROMPT_WGMMA(TYPE, LINES) (void)a
#endif
KERNEL(gm_prompt_f16, cuda_prompt_args, CUDA_THREADS) { prompt_halves<GM_T_F16>(a); }
KERNEL(gm_prompt_f16_128, cuda_prompt_args, CUDA_THREADS) { PROMPT_WGMMA(GM_T_F16, 128); }
KERNEL(gm_prompt_f16_256, cuda_prompt_args, CUDA_THREADS) { PROMPT_WGMMA(GM_T_F16, 256); }
KERNEL(gm_prompt_bf16, cuda_prompt_args, CUDA_THREADS) { prompt_halves<GM_T_BF16>(a); }
KERNEL(gm_prompt_bf16_128, cuda_prompt_args, CUDA_THREADS) { PROMPT_WGMMA(GM_T_BF16, 128); }
KERNEL(gm_prompt_bf16_256, cuda_prompt_args, CUDA_THREADS) { PROMPT_WGMMA(GM_T_BF16, 256); }
