/* test_attention_kernels.c - attention over caches of every type, in every table that this machine runs,
 * against their definitions in double, and bit for bit against themselves however ranges, batches and blocks are cut.
 */
#include "kernel_check.h"

typedef struct {
    int type;
    int64_t heads, kv_heads, dim, half, length, window;
    float softcap;
    bool sinks;
} scene;

/* Bytes of n values of the cache, and value d of a position in a block's keys or values of a head. */
static int64_t entry_bytes(int type, int64_t n) { return type == GM_T_KV_Q8_0 ? n / 32 * 34 : n * item_of(type); }
static double entry(const scene *sc, const void *cache, bool is_key, int64_t position, int64_t kv, int64_t d) {
    const int64_t dim = sc->dim, block = position / GM_KV_BLOCK;
    const int64_t tile = position % GM_KV_BLOCK / 16, lane = position % 16;
    const char *head = (const char *)cache + entry_bytes(sc->type, (block * sc->kv_heads + kv) * GM_KV_BLOCK * dim);
    if (sc->type != GM_T_KV_Q8_0)
        return get(head, sc->type, is_key ? (tile * dim + d) * 16 + lane : (tile * 16 + lane) * dim + d);
    const char *unit = head + (tile * (dim / 32) + d / 32) * 16 * 34;
    const int8_t *q = (const int8_t *)unit + 32;
    return get(unit, GM_T_F16, lane) * q[is_key ? d % 32 * 16 + lane : lane * 32 + d % 32];
}

static void test_scene(const scene *sc) {
    const int64_t blocks = (sc->length + GM_KV_BLOCK - 1) / GM_KV_BLOCK, n = sc->length,
                  group = sc->heads / sc->kv_heads;
    const size_t cache = (size_t)entry_bytes(sc->type, blocks * GM_KV_BLOCK * sc->kv_heads * sc->dim);
    const float scale = 1 / sqrtf((float)sc->dim);
    float *q = floats(n * sc->heads * sc->dim, 2), *k = floats(n * sc->kv_heads * sc->dim, 2),
          *v = floats(n * sc->kv_heads * sc->dim, 1);
    float *angles = buffer((size_t)(n * 2 * sc->half) * 4), *frequency = floats(sc->half, 1),
          *sinks = floats(sc->heads, 1);
    float *turned = buffer((size_t)(n * sc->heads * sc->dim) * 4),
          *alone = buffer((size_t)(n * sc->heads * sc->dim) * 4);
    float *out = buffer((size_t)(n * sc->heads * sc->dim) * 4),
          *chunked = buffer((size_t)(n * sc->heads * sc->dim) * 4);
    int32_t *position = buffer((size_t)n * 4), *sequence = buffer((size_t)n * 4);
    gm_query_tile *tiles = buffer((size_t)n * sizeof *tiles);
    void *keys[2] = {NULL, buffer(cache)}, *values[2] = {NULL, buffer(cache)};
    /* The blocks stand in the tables side by side, those of the sequence that is not used nowhere. */
    void **blocks_at = buffer((size_t)(2 * blocks) * sizeof *blocks_at);
    for (int64_t b = 0; b < blocks; b++) {
        blocks_at[b] = (char *)keys[1] + b * (int64_t)cache / blocks;
        blocks_at[blocks + b] = (char *)values[1] + b * (int64_t)cache / blocks;
    }
    const gm_cache_address key_blocks[2] = {{.blocks = NULL}, {.blocks = blocks_at}};
    const gm_cache_address value_blocks[2] = {{.blocks = NULL}, {.blocks = blocks_at + blocks}};
    for (int64_t i = 0; i < n; i++)
        position[i] = (int32_t)i, sequence[i] = 1;
    memset(keys[1], 0xff, cache); /* NaN in every type: nothing unwritten may be used */
    memset(values[1], 0xff, cache);
    kernels->rope_angles(&(gm_rope_angles_args){angles, position, frequency, sc->half, 1}, 0, n);
    gm_rope_cache_args append = {.q_out = turned,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .angles = angles,
                                 .q_stride = sc->heads * sc->dim,
                                 .k_stride = sc->kv_heads * sc->dim,
                                 .v_stride = sc->kv_heads * sc->dim,
                                 .keys = key_blocks,
                                 .values = value_blocks,
                                 .sequence = sequence,
                                 .positions = position,
                                 .kv_type = sc->type,
                                 .n_heads = sc->heads,
                                 .n_kv_heads = sc->kv_heads,
                                 .head_dim = sc->dim,
                                 .half = sc->half};
    gm_attention_args a = {.out = alone,
                           .q = turned,
                           .keys = key_blocks,
                           .values = value_blocks,
                           .sequence = sequence,
                           .positions = position,
                           .kv_type = sc->type,
                           .n_heads = sc->heads,
                           .n_kv_heads = sc->kv_heads,
                           .head_dim = sc->dim,
                           .window = sc->window,
                           .scale = scale,
                           .softcap = sc->softcap,
                           .sinks = sc->sinks ? sinks : NULL,
                           .tiles = tiles};
    /* Token by token, the cache beyond still NaN. */
    int64_t n_tiles = 0;
    for (int64_t i = 0; i < n; i++) {
        kernels->rope_cache(&append, i, i + 1);
        tiles[0] = (gm_query_tile){(int32_t)i, 1};
        kernels->attention(&a, 0, sc->kv_heads);
    }
    /* In tiles, kv heads in two ranges. */
    a.out = out;
    for (int64_t i = 0; i < n; i += GM_QUERY_TILE) {
        tiles[n_tiles++] = (gm_query_tile){(int32_t)i, (int32_t)(n - i < GM_QUERY_TILE ? n - i : GM_QUERY_TILE)};
    }
    kernels->attention(&a, 0, 1);
    kernels->attention(&a, 1, n_tiles * sc->kv_heads);
    const size_t bytes = (size_t)(n * sc->heads * sc->dim) * 4;
    CHECK(same(out, alone, bytes), "attention: tiles against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* In tiles of another cut, as a prefill in chunks makes them. */
    a.out = chunked, n_tiles = 0;
    for (int64_t i = 0, w; i < n; i += w) {
        w = 1 + i % 13;
        w = w > n - i ? n - i : w;
        tiles[n_tiles++] = (gm_query_tile){(int32_t)i, (int32_t)w};
    }
    kernels->attention(&a, 0, n_tiles * sc->kv_heads);
    CHECK(same(chunked, alone, bytes), "attention: chunks against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* Split and merged, in two ranges each. */
    int32_t n_blocks = (int32_t)blocks;
    a.max_blocks = blocks + 1, a.n_blocks = &n_blocks;
    a.partial = buffer((size_t)(n * sc->heads * a.max_blocks * (sc->dim + 2)) * 4);
    memset(a.partial, 0xff, (size_t)(n * sc->heads * a.max_blocks * (sc->dim + 2)) * 4);
    memset(chunked, 0, bytes);
    const int64_t per_row = sc->kv_heads * blocks;
    kernels->attention_split(&a, 0, 3 * per_row + 1);
    kernels->attention_split(&a, 3 * per_row + 1, n * per_row);
    kernels->attention_merge(&a, 0, 5);
    kernels->attention_merge(&a, 5, n * sc->heads);
    CHECK(same(chunked, alone, bytes), "attention: split against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* The definition, for some rows. */
    double *score = buffer((size_t)n * 8);
    for (int64_t r = 0; r < n; r += n > 60 ? n / 23 : 1)
        for (int64_t h = 0; h < sc->heads; h++) {
            int64_t kv = h / group, first = sc->window > 0 && r + 1 > sc->window ? r + 1 - sc->window : 0;
            double top = sc->sinks ? (double)sinks[h] : -(double)INFINITY, sum = 0, slack = 0;
            for (int64_t j = first; j <= r; j++) {
                double s = 0;
                for (int64_t d = 0; d < sc->dim; d++)
                    s += entry(sc, keys[1], true, j, kv, d) * (double)turned[(r * sc->heads + h) * sc->dim + d];
                s *= (double)scale;
                slack = fmax(slack, fabs(s));
                if (sc->softcap != 0)
                    s = (double)sc->softcap * tanh(s / (double)sc->softcap);
                score[j] = s;
                top = fmax(top, s);
            }
            for (int64_t j = first; j <= r; j++)
                sum += score[j] = exp(score[j] - top);
            if (sc->sinks)
                sum += exp((double)sinks[h] - top);
            for (int64_t d = 0; d < sc->dim; d++) {
                double want = 0;
                for (int64_t j = first; j <= r; j++)
                    want += score[j] * entry(sc, values[1], false, j, kv, d);
                double got = (double)alone[(r * sc->heads + h) * sc->dim + d];
                CHECK(fabs(got - want / sum) <= 2e-6 * (2 + slack), "attention type %d dim %d row %d: %g, want %g",
                      sc->type, (int)sc->dim, (int)r, got, want / sum);
            }
        }
    /* What rope_cache wrote: rotated, rounded, in its place; the rest untouched. */
    for (int64_t r = 0; r < n; r += 17)
        for (int64_t d = 0; d < sc->dim; d++) {
            float rotated[1024];
            int64_t kv = sc->kv_heads - 1;
            kernels->rope(&(gm_rope_args){.out = rotated,
                                          .x = k + (r * sc->kv_heads + kv) * sc->dim,
                                          .angles = angles + r * 2 * sc->half,
                                          .type = GM_T_F32,
                                          .heads = 1,
                                          .steps = 1,
                                          .dim = sc->dim,
                                          .half = sc->half},
                          0, 1);
            const float *value = v + (r * sc->kv_heads + kv) * sc->dim;
            const double put_key = entry(sc, keys[1], true, r, kv, d),
                         put_value = entry(sc, values[1], false, r, kv, d);
            if (sc->type == GM_T_KV_Q8_0) {
                double top[2] = {0, 0};
                for (int64_t i = d / 32 * 32; i < d / 32 * 32 + 32; i++) {
                    top[0] = fmax(top[0], fabs((double)rotated[i]));
                    top[1] = fmax(top[1], fabs((double)value[i]));
                }
                CHECK(fabs(put_key - (double)rotated[d]) <= top[0] / 127 * 0.57 && top[0] > 0,
                      "rope_cache key in int8");
                CHECK(fabs(put_value - (double)value[d]) <= top[1] / 127 * 0.57, "rope_cache value in int8");
                continue;
            }
            double room = 0;
            put(&room, sc->type, 0, (double)rotated[d]);
            CHECK(put_key == get(&room, sc->type, 0), "rope_cache key");
            put(&room, sc->type, 0, (double)value[d]);
            CHECK(put_value == get(&room, sc->type, 0), "rope_cache value");
        }
    free_buffers();
}
static void test_attention(void) {
    static const scene scenes[] = {
        {GM_T_F32, 4, 2, 64, 32, 300, 0, 0, false},     {GM_T_F16, 4, 1, 64, 32, 270, 0, 0, false},
        {GM_T_BF16, 3, 3, 8, 4, 530, 0, 0, true},       {GM_T_F32, 7, 1, 80, 40, 33, 0, 0, false},
        {GM_T_F16, 6, 2, 96, 20, 40, 5, 0, true},       {GM_T_BF16, 2, 1, 128, 64, 290, 100, 0, false},
        {GM_T_F32, 16, 1, 24, 12, 280, 270, 30, false}, {GM_T_F16, 2, 2, 256, 128, 20, 0, 50, false},
        {GM_T_F32, 5, 1, 7, 3, 270, 0, 0, false},       {GM_T_BF16, 2, 1, 600, 64, 270, 0, 0, false},
        {GM_T_KV_Q8_0, 4, 2, 64, 32, 300, 0, 0, false}, {GM_T_KV_Q8_0, 7, 1, 96, 20, 270, 100, 20, true},
        {GM_T_KV_Q8_0, 2, 2, 32, 16, 530, 0, 0, false}, {GM_T_KV_Q8_0, 13, 1, 608, 64, 30, 0, 0, false},
        {GM_T_F16, 30, 1, 13, 6, 50, 20, 0, true},      {GM_T_F32, 1, 1, 512, 256, 35, 1, 0, false},
    };
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i += quick ? 2 : 1)
        test_scene(&scenes[i]);
}

int main(int argc, char **argv) { return RUN_TESTS(ABOUT(attention, test_attention)); }
