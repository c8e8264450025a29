/* product.cu - products of matrices. Each element of a result is summed along k in one order, whatever the other rows,
 * columns and matrices are: by tiles of k of the tensor cores for float16 and bfloat16, one after another for float32. */
#include "functions.cuh"

/* ---- float16 and bfloat16: a block makes 128 x 128 of out, each of 8 warps 64 x 32 of it, by steps of 32 along k ---- */
#define MMA_TILE 128
#define MMA_K 32
#define MMA_STAGES 3
#define MMA_LINE_K (MMA_K + 8)       /* items of a line along k in the block's memory: no two rows share banks */
#define MMA_LINE_N (MMA_TILE + 8)    /* of a line along columns */
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
DEVICE void load_along_k(uint16_t *to, const uint16_t *from, int64_t line_step, int64_t line0, int64_t lines, int64_t k0,
                         int64_t k) {
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
template <int TYPE> DEVICE void product_halves(const cuda_product_args &a) {
    uint16_t *x = (uint16_t *)block_memory(), *w = x + MMA_STAGES * MMA_STAGE / 2;
    const product_place p = product_start(a, MMA_TILE, MMA_TILE, 2);
    const bool w_along_k = a.w_k == 1;
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int64_t steps = (a.k + MMA_K - 1) / MMA_K;
    const auto load = [&](int64_t step) {
        const int64_t stage = step % MMA_STAGES * (MMA_STAGE / 2);
        if (step < steps) {
            load_along_k(x + stage, p.x, a.x_row, p.row, a.rows, step * MMA_K, a.k);
            if (w_along_k) load_along_k(w + stage, p.w, a.w_column, p.column, a.columns, step * MMA_K, a.k);
            else load_along_columns(w + stage, p.w, a.w_k, p.column, a.columns, step * MMA_K, a.k);
        }
        commit_copies();
    };
    float sum[4][4][4];
    UNROLL for (int m = 0; m < 4; m++) UNROLL
        for (int n = 0; n < 4; n++) UNROLL
            for (int i = 0; i < 4; i++) sum[m][n][i] = 0;
    UNROLL for (int s = 0; s < MMA_STAGES - 1; s++) load(s);
    for (int64_t step = 0; step < steps; step++) {
        wait_copies<MMA_STAGES - 2>();
        barrier(); /* the stage is there for all, and the one before it has been read by all */
        load(step + MMA_STAGES - 1);
        const int64_t stage = step % MMA_STAGES * (MMA_STAGE / 2);
        multiply_step<TYPE>(sum, x + stage, w + stage, w_along_k, warp_row, warp_column);
    }
    wait_copies<0>();
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

/* ---- float32: a block makes 128 x 128 of out, a thread 8 x 8 of it, by steps of 16 along k; fused multiply-adds ---- */
#define SIMT_TILE 128
#define SIMT_K 16
#define SIMT_LINE (SIMT_TILE + 4)
/* Lines [line0, +128) times [k0, +16) of an operand of any strides, k first. */
DEVICE void load_simt(float (*to)[SIMT_LINE], const float *from, int64_t line_step, int64_t k_step, int64_t line0,
                      int64_t lines, int64_t k0, int64_t k) {
    UNROLL for (int i = 0; i < SIMT_TILE * SIMT_K / CUDA_THREADS; i++) {
        const int at = i * CUDA_THREADS + thread_index();
        /* Threads side by side read what is side by side. */
        const int line = k_step == 1 ? at / SIMT_K : at % SIMT_TILE, step = k_step == 1 ? at % SIMT_K : at / SIMT_TILE;
        const bool inside = line0 + line < lines && k0 + step < k;
        to[step][line] = inside ? from[(line0 + line) * line_step + (k0 + step) * k_step] : 0.0f;
    }
}
KERNEL_OF_TWO(gm_product_f32, cuda_product_args, CUDA_THREADS) {
    alignas(16) SHARED float x[SIMT_K][SIMT_LINE];
    alignas(16) SHARED float w[SIMT_K][SIMT_LINE];
    const product_place p = product_start(a, SIMT_TILE, SIMT_TILE, 4);
    const int row = thread_index() / 16 * 4, column = thread_index() % 16 * 4; /* and 64 further */
    float sum[8][8];
    UNROLL for (int i = 0; i < 8; i++) UNROLL
        for (int j = 0; j < 8; j++) sum[i][j] = 0;
    for (int64_t k = 0; k < a.k; k += SIMT_K) {
        load_simt(x, (const float *)p.x, a.x_row, a.x_k, p.row, a.rows, k, a.k);
        load_simt(w, (const float *)p.w, a.w_column, a.w_k, p.column, a.columns, k, a.k);
        barrier();
        UNROLL for (int s = 0; s < SIMT_K; s++) {
            float left[8], right[8];
            UNROLL for (int i = 0; i < 4; i++) {
                left[i] = x[s][row + i];
                left[4 + i] = x[s][64 + row + i];
                right[i] = w[s][column + i];
                right[4 + i] = w[s][64 + column + i];
            }
            UNROLL for (int i = 0; i < 8; i++) UNROLL
                for (int j = 0; j < 8; j++) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
        barrier();
    }
    float *out = (float *)a.out + p.out;
    UNROLL for (int i = 0; i < 8; i++) UNROLL
        for (int j = 0; j < 8; j++) {
            const int64_t r = p.row + row + i % 4 + i / 4 * 64, c = p.column + column + j % 4 + j / 4 * 64;
            if (r >= a.rows || c >= a.columns) continue;
            out[r * a.out_row + c * a.out_column] =
                product_value(a, sum[i][j], p.add + r * a.add_row + c * a.add_column);
        }
}

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
