/* test_rounded.c - products of numbers rounded to bfloat16, in every table of kernels that this machine can run: tiles
 * of every format against a scalar reading of the file's bytes, and products against plain C in the order of
 * rounded.inc, bit for bit. */
#include "packed_check.h"

typedef struct {
    const gm_kernels *t;
    int format;
    int64_t rows, k;
    guarded guard;
    uint8_t *file, *packed;
    uint16_t *values; /* [rows, k], what tiles hold */
} matrix;

static float widened(uint16_t h) {
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint16_t narrowed(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (fabsf(f) < 0x1p-126f)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double dense_value(const matrix *m, int64_t row, int64_t k) {
    const int bytes = gm_quants[m->format].bytes;
    const uint8_t *p = m->file + (row * m->k + k) * bytes;
    return m->format == GM_QUANT_f16 ? half_value(p) : scale_value(m->format, p);
}
static double value_of(const matrix *m, int64_t row, int64_t k) {
    const gm_quant_info *f = &gm_quants[m->format];
    double scale, min = 0;
    int q;
    if (m->format <= GM_QUANT_bf16)
        return dense_value(m, row, k);
    block_value(m->format, m->file + (row * (m->k / f->values) + k / f->values) * f->bytes, (int)(k % f->values),
                &scale, &q, &min);
    return scale * q + min;
}

static matrix matrix_new(const gm_kernels *t, int format, int64_t rows, int64_t k) {
    matrix m = {.t = t, .format = format, .rows = rows, .k = k};
    const gm_quant_info *f = &gm_quants[format];
    m.file = malloc((size_t)(rows * (k / f->values) * f->bytes));
    m.values = malloc((size_t)(rows * k) * sizeof *m.values);
    if (format > GM_QUANT_bf16)
        fill_weights(format, m.file, rows, k, FILL_RANDOM);
    for (int64_t i = 0; format <= GM_QUANT_bf16 && i < rows * k; i++) {
        const float v = random_float();
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (format == GM_QUANT_f16)
            bits = 0x2c00 + random_bits() % 0x1000;
        else if (format == GM_QUANT_bf16)
            bits >>= 16;
        memcpy(m.file + i * f->bytes, &bits, (size_t)f->bytes);
    }
    m.packed = guarded_new(&m.guard, (size_t)kernels_packed_bytes(t, format, rows, k));
    t->pack(&(gm_pack_args){.out = m.packed, .in = m.file, .format = format, .rows = rows, .k = k}, 0,
            kernels_panels(t, format, rows));
    return m;
}
static void matrix_free(matrix *m) {
    guarded_free(&m->guard);
    free(m->file), free(m->values);
}

/* ---- tiles ---- */
static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* All of the matrix by slabs: its values, or whether those that were found the other way round are the same; zeros
 * after the last k of a tile. */
static bool read_tiles(matrix *m, bool turned) {
    guarded guard;
    uint16_t *slab = guarded_new(&guard, GM_ROUNDED_SLAB_BYTES);
    const int64_t rows = turned ? GM_ROUNDED_COLUMNS : GM_ROUNDED_K,
                  columns = turned ? GM_ROUNDED_K : GM_ROUNDED_COLUMNS;
    bool good = true;
    for (int64_t row = 0; row < m->rows; row += rows)
        for (int64_t column = 0; column < m->k; column += columns) {
            const gm_rounded_unpack_args a = {slab,      m->packed,
                                              m->format, m->k,
                                              row,       lesser(rows, m->rows - row),
                                              column,    lesser(columns, m->k - column),
                                              turned,    GM_ROUNDED_TILES};
            memset(slab, 0xff, GM_ROUNDED_SLAB_BYTES);
            m->t->rounded_unpack(&a, 0, 1);
            const int64_t depth = turned ? a.columns : a.rows, lines = turned ? a.rows : a.columns;
            for (int64_t i = 0; i < (depth + GM_TILE_K - 1) / GM_TILE_K * GM_TILE_K; i++)
                for (int64_t line = 0; line < lines; line++) {
                    const int64_t tile = line / 16 * (GM_ROUNDED_K / GM_TILE_K) + i / GM_TILE_K;
                    const uint16_t v = slab[tile * GM_TILE_ITEMS + i % GM_TILE_K / 2 * 32 + line % 16 * 2 + i % 2];
                    const int64_t r = row + (turned ? line : i), c = column + (turned ? i : line);
                    if (i >= depth)
                        good &= v == 0;
                    else if (turned)
                        m->values[r * m->k + c] = v;
                    else
                        good &= m->values[r * m->k + c] == v;
                }
        }
    guarded_free(&guard);
    return good;
}

static bool are_near(const matrix *m) {
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t k = 0; k < m->k; k++) {
            const double want = value_of(m, r, k), got = (double)widened(m->values[r * m->k + k]);
            /* a scale times an integer, and a minimum taken away: rounded to float32, to the type of the scales */
            if (!(fabs(got - want) <= fabs(want) * 0x1.01p-8 + 1e-6) && fabs(want) < 1e38)
                return false;
        }
    return true;
}

/* ---- products ---- */
/* As rounded.inc says that sums are ordered. The product of two numbers of bfloat16 is exact in float32: added to a sum
 * it rounds once, as a fused multiplication does, which is a call here. x: rounded already. */
static float sum_of(const matrix *m, bool turned, const float *x, int64_t line, float first) {
    const int64_t depth = turned ? m->k : m->rows;
    for (int64_t k = 0; k < depth; k += GM_TILE_K) {
        float chain[2] = {0, 0};
        for (int64_t i = k; i < lesser(k + GM_TILE_K, depth); i++) {
            const float w = widened(m->values[turned ? line * m->k + i : i * m->k + line]);
            chain[i % 2] += x[i] * w;
        }
        first += chain[0] + chain[1];
    }
    return first;
}

static void check_product(const matrix *m, bool turned, int64_t tokens, int64_t share, bool adds) {
    const gm_kernels *t = m->t;
    const int64_t width = turned ? m->rows : m->k, depth = turned ? m->k : m->rows;
    const int64_t columns = (1 + turned) * GM_ROUNDED_COLUMNS;
    const int64_t pieces = kernels_tiles(tokens, share) * kernels_tiles(width, columns);
    const int64_t bytes = kernels_rounded_workspace_bytes(depth, columns);
    guarded gx, gt, go, gw;
    float *x = guarded_new(&gx, (size_t)(tokens * depth) * 4), *out = guarded_new(&go, (size_t)(tokens * width) * 4);
    float *bias = malloc((size_t)width * 4), *residual = malloc((size_t)(tokens * width) * 4);
    uint16_t *tiles = guarded_new(&gt, (size_t)kernels_rounded_bytes(tokens, depth));
    _Atomic int32_t taken = 0;
    for (int64_t i = 0; i < tokens * depth; i++)
        x[i] = random_float();
    for (int64_t i = 0; i < width; i++)
        bias[i] = random_float();
    for (int64_t i = 0; i < tokens * width; i++)
        residual[i] = random_float(), out[i] = NAN;
    t->rounded_rows(&(gm_rounded_rows_args){tiles, x, depth, tokens, depth, {0}}, 0,
                    kernels_tiles(tokens, GM_TILE_LINES));
    for (int64_t i = 0; i < tokens * depth; i++)
        x[i] = widened(narrowed(x[i]));
    gm_rounded_product_args a = {.out = out,
                                 .out_row = width,
                                 .x = tiles,
                                 .weight = m->packed,
                                 .format = m->format,
                                 .rows = m->rows,
                                 .k = m->k,
                                 .tokens = tokens,
                                 .share = share,
                                 .columns = columns,
                                 .turned = turned,
                                 .bias = adds ? bias : NULL,
                                 .residual = adds ? residual : NULL,
                                 .unpack = t->rounded_unpack,
                                 .workspaces = {&taken, guarded_new(&gw, (size_t)bytes), 1, bytes}};
    for (int64_t piece = pieces; piece-- > 0;)
        t->rounded_product(&a, piece, piece + 1);
    bool good = true;
    for (int64_t i = 0; i < tokens * width; i++) {
        const float first = adds ? residual[i] + bias[i % width] : 0;
        const float want = sum_of(m, turned, x + i / width * depth, i % width, first);
        good &= !memcmp(&want, out + i, 4) || (want == 0 && out[i] == 0);
    }
    check(good, turned ? "rounded_product: x @ w.T" : "rounded_product: x @ w", t->isa, m->format, m->rows, m->k,
          tokens);
    a.onto = true; /* once more onto the same: with nothing else it is what the sums begin with */
    memcpy(residual, out, (size_t)(tokens * width) * 4);
    t->rounded_product(&a, 0, pieces);
    good = true;
    for (int64_t i = 0; i < tokens * width; i++) {
        const float want = sum_of(m, turned, x + i / width * depth, i % width, residual[i]);
        good &= !memcmp(&want, out + i, 4) || (want == 0 && out[i] == 0);
    }
    check(good, "rounded_product: onto", t->isa, m->format, m->rows, m->k, tokens);
    float *sums = malloc((size_t)(tokens * width) * 4); /* of the same numbers, given as a residual without a bias */
    memcpy(sums, out, (size_t)(tokens * width) * 4);
    a.onto = false, a.bias = NULL, a.residual = residual;
    t->rounded_product(&a, 0, pieces);
    good = !memcmp(sums, out, (size_t)(tokens * width) * 4);
    check(good, "rounded_product: a residual alone", t->isa, m->format, m->rows, m->k, tokens);
    free(sums);
    guarded_free(&gx), guarded_free(&gt), guarded_free(&go), guarded_free(&gw);
    free(bias), free(residual);
}

/* ---- a term beside a matrix ---- */
/* first + the chains of each tile of n numbers, those of w so far apart. */
static float chains_of(const float *x, const float *w, int64_t w_step, int64_t n, float first) {
    for (int64_t k = 0; k < n; k += GM_TILE_K) {
        float chain[2] = {0, 0};
        for (int64_t i = k; i < lesser(k + GM_TILE_K, n); i++)
            chain[i % 2] += widened(narrowed(x[i])) * widened(narrowed(w[i * w_step]));
        first += chain[0] + chain[1];
    }
    return first;
}

typedef struct {
    float *x, *low, *sums, *down, *up, *out;
    uint16_t *tiles, *low_tiles, *down_tiles, *up_tiles;
    guarded guards[10];
} term_memory;

static term_memory term_new(int64_t tokens, int64_t depth, int64_t width, int64_t rank) {
    term_memory m;
    const int64_t lines = kernels_tiles(tokens, GM_TILE_LINES) * GM_TILE_LINES;
    m.x = guarded_new(&m.guards[0], (size_t)(tokens * depth) * 4);
    m.low = guarded_new(&m.guards[1], (size_t)(tokens * rank) * 4);
    m.sums = guarded_new(&m.guards[2], (size_t)(lines * GM_ROUNDED_RANK) * 4);
    m.down = guarded_new(&m.guards[3], (size_t)(depth * rank) * 4);
    m.up = guarded_new(&m.guards[4], (size_t)(width * rank) * 4);
    m.out = guarded_new(&m.guards[5], (size_t)(tokens * width) * 4);
    m.tiles = guarded_new(&m.guards[6], (size_t)kernels_rounded_bytes(tokens, depth));
    m.low_tiles = guarded_new(&m.guards[7], (size_t)kernels_rounded_bytes(tokens, rank));
    m.down_tiles = guarded_new(&m.guards[8], (size_t)kernels_rounded_bytes(rank, depth));
    m.up_tiles = guarded_new(&m.guards[9], (size_t)kernels_rounded_bytes(width, rank));
    for (int64_t i = 0; i < tokens * depth; i++)
        m.x[i] = random_float();
    for (int64_t i = 0; i < depth * rank; i++)
        m.down[i] = random_float();
    for (int64_t i = 0; i < width * rank; i++)
        m.up[i] = random_float();
    return m;
}

static void check_term(const matrix *m, bool turned, int64_t tokens, int64_t share, int64_t rank) {
    const gm_kernels *t = m->t;
    const int64_t width = turned ? m->rows : m->k, depth = turned ? m->k : m->rows;
    const int64_t columns = 2 * GM_ROUNDED_COLUMNS, bytes = kernels_rounded_workspace_bytes(depth, columns);
    const float scale = 1.75f;
    _Atomic int32_t taken = 0;
    guarded gw;
    term_memory a = term_new(tokens, depth, width, rank);
    t->rounded_matrix(
        &(gm_rounded_matrix_args){a.down_tiles, a.down, turned ? rank : depth, turned ? depth : rank, turned}, 0,
        kernels_tiles(rank, GM_TILE_LINES));
    t->rounded_matrix(&(gm_rounded_matrix_args){a.up_tiles, a.up, turned ? width : rank, turned ? rank : width, turned},
                      0, kernels_tiles(width, GM_TILE_LINES));
    const gm_rounded_low low = {.rank = rank,
                                .down = a.down_tiles,
                                .down_lines = kernels_tiles(depth, GM_TILE_K) * GM_TILE_ITEMS,
                                .sums = a.sums,
                                .out = a.low,
                                .tiles = a.low_tiles,
                                .scale = scale};
    t->rounded_rows(&(gm_rounded_rows_args){a.tiles, a.x, depth, tokens, depth, low}, 0,
                    kernels_tiles(tokens, GM_TILE_LINES));
    bool good = true;
    for (int64_t i = 0; i < tokens * rank; i++) {
        const float *down = a.down + i % rank * (turned ? depth : 1);
        good &= a.low[i] == scale * chains_of(a.x + i / rank * depth, down, turned ? 1 : rank, depth, 0);
    }
    check(good, "rounded_rows: times the term's first matrix", t->isa, m->format, m->rows, m->k, rank);
    const gm_rounded_product_args product = {.out = a.out,
                                             .out_row = width,
                                             .x = a.tiles,
                                             .weight = m->packed,
                                             .format = m->format,
                                             .rows = m->rows,
                                             .k = m->k,
                                             .tokens = tokens,
                                             .share = share,
                                             .columns = columns,
                                             .turned = turned,
                                             .low = a.low_tiles,
                                             .up = a.up_tiles,
                                             .unpack = t->rounded_unpack,
                                             .workspaces = {&taken, guarded_new(&gw, (size_t)bytes), 1, bytes}};
    t->rounded_product(&product, 0, kernels_tiles(tokens, share) * kernels_tiles(width, columns));
    good = true;
    for (int64_t i = 0; i < tokens * depth; i++)
        a.x[i] = widened(narrowed(a.x[i]));
    for (int64_t i = 0; i < tokens * width; i++) {
        const float *up = a.up + i % width * (turned ? rank : 1),
                    alone = sum_of(m, turned, a.x + i / width * depth, i % width, 0);
        const float want = chains_of(a.low + i / width * rank, up, turned ? 1 : width, rank, alone);
        good &= a.out[i] == want;
    }
    check(good, "rounded_product: with a term", t->isa, m->format, m->rows, m->k, rank);
    for (int i = 0; i < 10; i++)
        guarded_free(&a.guards[i]);
    guarded_free(&gw);
}

/* ---- the loss of products ---- */
#define LOSSES 40 /* rows of x, at most */
typedef struct {
    float *x, *bias, loss[LOSSES], *grad;
    int32_t targets[LOSSES];
    float softcap;
} loss_case;

static double logit_of(const matrix *m, const loss_case *c, int64_t row, int64_t line) {
    double sum = c->bias ? (double)c->bias[line] : 0;
    for (int64_t k = 0; k < m->k; k++)
        sum += (double)widened(narrowed(c->x[row * m->k + k])) * (double)widened(m->values[line * m->k + k]);
    return c->softcap > 0 ? (double)c->softcap * tanh(sum / (double)c->softcap) : sum;
}
/* Whether the loss of a row, and what it gives back, are those of its logits in float64. */
static bool is_loss(const matrix *m, const loss_case *c, int64_t row) {
    double *logits = malloc((size_t)m->rows * sizeof *logits), top = -HUGE_VAL, sum = 0, off = 0, all = 0;
    for (int64_t i = 0; i < m->rows; i++) {
        logits[i] = logit_of(m, c, row, i);
        top = fmax(top, logits[i]);
    }
    for (int64_t i = 0; i < m->rows; i++)
        sum += exp(logits[i] - top);
    const double want = top + log(sum) - logits[c->targets[row]];
    double *slopes = malloc((size_t)m->rows * sizeof *slopes); /* of the loss, by each product */
    for (int64_t i = 0; i < m->rows; i++) {
        const double bent = c->softcap > 0 ? logits[i] / (double)c->softcap : 0;
        slopes[i] = (exp(logits[i] - top) / sum - (i == c->targets[row])) * (1 - bent * bent);
    }
    for (int64_t k = 0; k < m->k; k++) {
        double back = 0;
        for (int64_t i = 0; i < m->rows; i++)
            back += slopes[i] * (double)widened(m->values[i * m->k + k]);
        const double less = (double)c->grad[row * m->k + k] - back;
        off += less * less, all += back * back;
    }
    free(logits), free(slopes);
    return fabs((double)c->loss[row] - want) <= 1e-5 * (1 + fabs(top)) && off <= 1e-4 * all + 1e-12;
}

/* Rows [first, first + tokens) of the case; pieces of `share` rows, the last one first. */
static void find_losses(const matrix *m, loss_case *c, int64_t first, int64_t tokens, int64_t share) {
    const gm_kernels *t = m->t;
    const int64_t runs = kernels_tiles(m->rows, GM_LOSS_RUN), parts = lesser(runs, GM_LOSS_PARTS), k = m->k;
    const int64_t groups = kernels_tiles(tokens, 32), bytes = kernels_loss_workspace_bytes(k);
    _Atomic int32_t taken = 0;
    guarded guards[5];
    uint16_t *tiles = guarded_new(&guards[0], (size_t)kernels_rounded_bytes(tokens, k));
    gm_loss_found found = {.parts = parts, .tokens = tokens, .k = k, .softcap = c->softcap};
    found.weights = guarded_new(&guards[1], (size_t)(parts * tokens) * 8);
    found.chosen = guarded_new(&guards[2], (size_t)tokens * 4);
    found.sums = guarded_new(&guards[3], (size_t)(parts * groups * kernels_loss_floats(k)) * 4);
    memset(found.sums, 0xff, (size_t)(parts * groups * kernels_loss_floats(k)) * 4);
    t->rounded_rows(&(gm_rounded_rows_args){tiles, c->x + first * k, k, tokens, k, {0}}, 0,
                    kernels_tiles(tokens, GM_TILE_LINES));
    gm_rounded_loss_part_args a = {.found = found,
                                   .x = tiles,
                                   .format = m->format,
                                   .targets = c->targets + first,
                                   .share = share,
                                   .unpack = t->rounded_unpack,
                                   .workspaces = {&taken, guarded_new(&guards[4], (size_t)bytes), 1, bytes}};
    for (; a.first < m->rows; a.first += GM_LOSS_PARTS * GM_LOSS_RUN) {
        a.weight = m->packed + kernels_packed_bytes(t, m->format, a.first, k);
        a.bias = c->bias ? c->bias + a.first : NULL;
        a.rows = lesser(m->rows - a.first, GM_LOSS_PARTS * GM_LOSS_RUN);
        const int64_t pieces = kernels_tiles(a.rows, GM_LOSS_RUN) * kernels_tiles(tokens, share);
        for (int64_t piece = pieces; piece-- > 0;)
            t->rounded_loss_part(&a, piece, piece + 1);
    }
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < k; j++)
            c->grad[(first + i) * k + j] = widened(m->values[c->targets[first + i] * k + j]);
    t->rounded_loss_end(&(gm_rounded_loss_end_args){found, c->loss + first, c->grad + first * k, c->grad + first * k},
                        0, tokens);
    for (int i = 0; i < 5; i++)
        guarded_free(&guards[i]);
}

/* scale: of x; where it is large a row's target is nearly all, or nearly nothing. */
static void test_loss(const gm_kernels *t, int64_t rows, int64_t k, float scale, float softcap, bool biased) {
    matrix m = matrix_new(t, GM_QUANT_bf16, rows, k);
    loss_case c = {.x = malloc((size_t)(LOSSES * k) * 4), .grad = malloc((size_t)(LOSSES * k) * 4), .softcap = softcap};
    float *again = malloc((size_t)(LOSSES * k) * 4), losses[LOSSES];
    bool good = read_tiles(&m, true);
    c.bias = biased ? malloc((size_t)rows * 4) : NULL;
    for (int64_t i = 0; i < LOSSES * k; i++)
        c.x[i] = scale * random_float();
    for (int64_t i = 0; i < LOSSES; i++)
        c.targets[i] = (int32_t)(i == 0 ? 0 : i == 1 ? rows - 1 : random_bits() % (uint32_t)rows);
    for (int64_t i = 0; i < rows && biased; i++)
        c.bias[i] = random_float();
    find_losses(&m, &c, 0, LOSSES, 64);
    for (int64_t i = 0; i < LOSSES; i += quick ? 13 : 1)
        good &= is_loss(&m, &c, i);
    check(good, "rounded_loss", t->isa, m.format, rows, k, LOSSES);
    memcpy(again, c.grad, (size_t)(LOSSES * k) * 4);
    memcpy(losses, c.loss, sizeof losses);
    find_losses(&m, &c, 0, LOSSES, 32);
    good = !memcmp(again, c.grad, (size_t)(LOSSES * k) * 4) && !memcmp(losses, c.loss, sizeof losses);
    find_losses(&m, &c, 3, 1, 32);
    good &= !memcmp(again, c.grad, (size_t)(LOSSES * k) * 4) && !memcmp(losses, c.loss, sizeof losses);
    check(good, "rounded_loss: rows alone", t->isa, m.format, rows, k, LOSSES);
    free(c.x), free(c.grad), free(c.bias), free(again);
    matrix_free(&m);
}

static void test_matrix(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, int64_t share) {
    matrix m = matrix_new(t, format, rows, k);
    check(read_tiles(&m, true), "rounded_unpack: zeros after the last", t->isa, format, rows, k, 0);
    check(read_tiles(&m, false), "rounded_unpack: the same both ways", t->isa, format, rows, k, 0);
    check(are_near(&m), "rounded_unpack: values", t->isa, format, rows, k, 0);
    for (int turned = 0; turned < 2; turned++)
        check_product(&m, turned, tokens, share, turned && rows % 2);
    if (format <= GM_QUANT_q8_0)
        for (int turned = 0; turned < 2; turned++)
            check_term(&m, turned, tokens, share, rows % 2 ? 7 : GM_ROUNDED_RANK);
    matrix_free(&m);
}

/* ---- sums over sequences ---- */
static void test_outer(const gm_kernels *t, int64_t m, int64_t k) {
    enum { PARTS = 4, ROWS = 292 };
    static const int32_t begins[PARTS + 1] = {0, 1, 64, 64, ROWS}; /* one has no rows */
    guarded gl, gr, go;
    float *left = guarded_new(&gl, (size_t)(ROWS * m) * 4), *right = guarded_new(&gr, (size_t)(ROWS * k) * 4);
    float *out = guarded_new(&go, (size_t)(m * k) * 4), *first = malloc((size_t)(m * k) * 4);
    for (int64_t i = 0; i < ROWS * m; i++)
        left[i] = random_float();
    for (int64_t i = 0; i < ROWS * k; i++)
        right[i] = random_float();
    const int64_t blocks = kernels_tiles(k, GM_OUTER_BLOCK);
    gm_sequence_outer_args a = {.out = out,
                                .left = left,
                                .right = right,
                                .starts = begins,
                                .sequences = PARTS,
                                .m = m,
                                .k = k,
                                .rounded = true};
    for (int64_t block = blocks; block-- > 0;)
        t->rounded_outer(&a, block, block + 1);
    bool good = true;
    for (int64_t i = 0; i < m * k; i++) {
        float want = 0;
        for (int part = 0; part < PARTS; part++) {
            float lines[ROWS], sum;
            const int64_t n = begins[part + 1] - begins[part];
            for (int64_t j = 0; j < n; j++)
                lines[j] = left[(begins[part] + j) * m + i / k];
            sum = chains_of(lines, right + begins[part] * k + i % k, k, n, 0);
            want += sum;
        }
        good &= out[i] == want;
    }
    check(good, "rounded_outer", t->isa, 0, m, k, ROWS);
    memcpy(first, out, (size_t)(m * k) * 4);
    a.sequences = 2;
    t->rounded_outer(&a, 0, blocks);
    float *so_far = malloc((size_t)(m * k) * 4);
    memcpy(so_far, out, (size_t)(m * k) * 4);
    a.so_far = so_far;
    a.starts = begins + 2;
    t->rounded_outer(&a, 0, blocks);
    check(!memcmp(first, out, (size_t)(m * k) * 4), "rounded_outer: in two passes", t->isa, 0, m, k, ROWS);
    guarded_free(&gl), guarded_free(&gr), guarded_free(&go);
    free(first), free(so_far);
}

static void test_table(const gm_kernels *t) {
    test_loss(t, 1, 8, 1, 0, false);
    test_loss(t, 300, 35, 1, 0, true);
    test_loss(t, 300, 288, 8, 20, false);
    test_loss(t, GM_LOSS_RUN + 257, 32, 3, 0, false);
    if (!quick)
        test_loss(t, GM_LOSS_PARTS * GM_LOSS_RUN + 40, 16, 3, 5, true);
    test_outer(t, 8, 176);
    test_outer(t, 100, 16);
    for (int format = 0; format < GM_QUANT_COUNT; format++) {
        const int64_t step = gm_quants[format].values;
        if (quick && has_few_sizes(format))
            continue;
        test_matrix(t, format, 1, step < 32 ? 35 : step, 1, 1);
        test_matrix(t, format, 37, step < 32 ? 77 : 256, 33, 32);
        if (!quick && !has_few_sizes(format))
            test_matrix(t, format, 70, 768, 17, 17);
    }
    static const int few[] = {GM_QUANT_f32, GM_QUANT_bf16, GM_QUANT_q8_0};
    for (int i = 0; i < 3; i++) {
        test_matrix(t, few[i], 545, 32, 49, 49);
        test_matrix(t, few[i], 16, 544, 64, 32);
        test_matrix(t, few[i], 289, 288, 3, 3);
        test_matrix(t, few[i], 5, GM_ROUNDED_SLABS * GM_ROUNDED_K + 32, 35, 32);
        test_matrix(t, few[i], 2 * GM_ROUNDED_K - 32, 32, 32, 32);
    }
}

int main(int argc, char **argv) { return run_tables(argc, argv, test_table); }
