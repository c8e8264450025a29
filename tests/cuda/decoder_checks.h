/* decoder_checks.h - checks of parts of decoders: gated units, routes, rotary positions, caches, layers with a state.
 */
#ifndef GOMLX_TESTS_DECODER_CHECKS_H
#define GOMLX_TESTS_DECODER_CHECKS_H
#include "cuda/args.h"
#include "layer_checks.h"
#include "turned.h"

static void check_glu(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int64_t rows = below(6), dim = training_sizes[below(10)], n = rows * dim;
        const operand both = random_operand(2 * n, GM_T_F32, PLAIN), out = operand_of((size_t)n * 4 + 4);
        gm_glu_args h = {floats_of(out.host),
                         floats_of(both.host),
                         floats_of(both.host) + dim,
                         dim,
                         2 * dim,
                         2 * dim,
                         (gm_glu_kind)(c % 3),
                         1.702f,
                         2.5f},
                    d = h;
        d.out = floats_of(out.device), d.gate = floats_of(both.device), d.up = floats_of(both.device) + dim;
        RUN_BOTH(glu, h, d, rows, out, (size_t)n * 4);
        compare_out("glu", out, n, GM_T_F32, 8, 0.01);
    }
}
static void check_softcap(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t n = below(2000);
        const operand x = random_operand(n, GM_T_F32, c % 2 ? SPECIAL : PLAIN), out = operand_of((size_t)n * 4 + 4);
        gm_softcap_args h = {floats_of(out.host), floats_of(x.host), 3.5f}, d = h;
        d.out = floats_of(out.device), d.x = floats_of(x.device);
        RUN_BOTH(softcap, h, d, n, out, (size_t)n * 4);
        compare_out("softcap", out, n, GM_T_F32, 8, 0.01);
    }
}
/* Logits some of which are equal; sometimes one is no number. */
static void check_route(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int64_t experts = 1 + below(130), k = 1 + below(experts < 8 ? experts : 8), rows = 1 + below(20);
        const operand logits = random_operand(rows * experts, GM_T_F32, PLAIN);
        const operand scale = random_operand(experts, GM_T_F32, POSITIVE);
        const operand ids = operand_of((size_t)(rows * k) * 4), weights = operand_of((size_t)(rows * k) * 4);
        for (int64_t i = 0; i < rows * experts; i++)
            floats_of(logits.host)[i] = c % 5 == 0 && below(40) == 0 ? -INFINITY
                                                                     : rintf(floats_of(logits.host)[i] * 8) / 8;
        upload(logits);
        gm_route_args h = {ints_of(ids.host),
                           floats_of(weights.host),
                           floats_of(logits.host),
                           c % 3 ? NULL : floats_of(scale.host),
                           experts,
                           k,
                           c % 2},
                      d = h;
        d.ids = ints_of(ids.device), d.weights = floats_of(weights.device), d.logits = floats_of(logits.device);
        d.scale = h.scale ? floats_of(scale.device) : NULL;
        RUN_BOTH(route, h, d, rows, ids, (size_t)(rows * k) * 4);
        compare_out("ids", ids, rows * k, GM_T_I32, 0, 0);
        compare_out("weights", weights, rows * k, GM_T_F32, 32, 0.01);
    }
}
static void check_rope_angles(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t rows = 1 + below(20), half = 1 + below(130), n = rows * 2 * half;
        const operand positions = random_positions(rows, c % 4 ? 3000 : 200000), freqs = falling_frequencies(half);
        const operand out = operand_of((size_t)n * 4);
        upload(freqs);
        gm_rope_angles_args h = {floats_of(out.host), ints_of(positions.host), floats_of(freqs.host), half, 1.25f},
                            d = h;
        d.out = floats_of(out.device), d.positions = ints_of(positions.device), d.inv_freq = floats_of(freqs.device);
        RUN_BOTH(rope_angles, h, d, rows, out, (size_t)n * 4);
        compare_out("angles", out, n, GM_T_F32, 4, 0.01);
    }
}

/* ---- caches: of some sequences, each with a few rows, whose blocks are apart ---- */
#define CACHE_BLOCKS 4 /* of a sequence, at most */
static const int kv_types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_KV_Q8_0};
static const char *const kv_names[] = {"f32", "f16", "bf16", "q8_0"};
typedef struct {
    int kv_type, kind;
    int64_t sequences, rows, n_heads, n_kv_heads, dim, tiles;
    size_t block_bytes;
    operand blocks[2], tables[2], addresses[2]; /* keys, values: [sequences][CACHE_BLOCKS] of them */
    operand sequence, positions, tile, first;
} cache_pair;

static void fill_cache(const cache_pair *c, operand o) {
    if (c->kv_type != GM_T_KV_Q8_0) {
        fill_random(o.host, (int64_t)o.bytes / bytes_of(c->kv_type), c->kv_type, SMALL);
        upload(o);
        return;
    }
    for (size_t at = 0; at < o.bytes; at += 16 * 34)
        for (int i = 0; i < 16 * 34; i++) {
            if (i < 16)
                put_float(o.host + at, i, (float)(unit() / 64), GM_T_F16);
            else if (i >= 32)
                o.host[at + (size_t)i] = (char)(below(255) - 127);
        }
    upload(o);
}
/* Where both sides find the blocks. */
static void place_blocks(cache_pair *c, int which) {
    const int64_t count = c->sequences * CACHE_BLOCKS;
    c->blocks[which] = operand_of((size_t)count * c->block_bytes);
    fill_cache(c, c->blocks[which]);
    c->tables[which] = operand_of((size_t)count * sizeof(void *));
    c->addresses[which] = operand_of((size_t)c->sequences * sizeof(void *));
    char **on_device = host_memory((size_t)count * sizeof(void *)), **of = host_memory((size_t)count * sizeof(void *));
    for (int64_t b = 0; b < count; b++) {
        const size_t at = (size_t)(count - 1 - b) * c->block_bytes;
        ((char **)(void *)c->tables[which].host)[b] = c->blocks[which].host + at;
        on_device[b] = c->blocks[which].device + at;
    }
    for (int64_t s = 0; s < c->sequences; s++) {
        const size_t at = (size_t)(s * CACHE_BLOCKS) * sizeof(void *);
        ((char **)(void *)c->addresses[which].host)[s] = c->tables[which].host + at;
        of[s] = c->tables[which].device + at;
    }
    copy_bytes(c->tables[which].device, on_device, (size_t)count * sizeof(void *));
    copy_bytes(c->addresses[which].device, of, (size_t)c->sequences * sizeof(void *));
}
static cache_pair random_cache(int kind, int64_t dim, int64_t most_rows) {
    cache_pair c = {.kv_type = kv_types[kind], .kind = kind, .sequences = 1 + below(3), .dim = dim};
    c.n_kv_heads = 1 + below(2);
    c.n_heads = c.n_kv_heads * (1 + below(3));
    const size_t values = (size_t)(c.n_kv_heads * GM_KV_BLOCK * dim);
    c.block_bytes = kind == 3 ? values / 32 * 34 : values * (size_t)bytes_of(c.kv_type);
    for (int which = 0; which < 2; which++)
        place_blocks(&c, which);
    const size_t most = (size_t)(c.sequences * most_rows) + 1;
    c.sequence = operand_of(most * 4), c.positions = operand_of(most * 4), c.first = operand_of(most * 4);
    c.tile = operand_of(most * sizeof(gm_query_tile));
    gm_query_tile *tiles = (gm_query_tile *)(void *)c.tile.host, *to = tiles;
    for (int64_t s = 0; s < c.sequences; s++) {
        const int64_t rows = 1 + below(most_rows), start = below(CACHE_BLOCKS * GM_KV_BLOCK - rows);
        ints_of(c.first.host)[s] = (int32_t)c.rows;
        to = batch_put_tiles(to, (int32_t)c.rows, (int32_t)rows);
        for (int64_t r = 0; r < rows; r++, c.rows++) {
            ints_of(c.sequence.host)[c.rows] = (int32_t)s;
            ints_of(c.positions.host)[c.rows] = (int32_t)(s == 0 ? r : start + r);
        }
    }
    ints_of(c.first.host)[c.sequences] = (int32_t)c.rows;
    c.tiles = to - tiles;
    upload(c.sequence), upload(c.positions), upload(c.tile), upload(c.first);
    return c;
}
static const gm_cache_address *addresses_of(char *p) { return (const gm_cache_address *)(void *)p; }

static void check_rope_cache(void) {
    static const int64_t dims[] = {32, 64, 96, 128};
    for (int t = 0; t < 2 * cases; t++, free_memory()) {
        const cache_pair c = random_cache(t % 4, dims[below(4)], 5);
        const int64_t half = t % 3 ? c.dim / 2 : c.dim / 4, n = c.rows * c.n_heads * c.dim;
        const int64_t kv = c.rows * c.n_kv_heads * c.dim;
        const operand q = random_operand(n, GM_T_F32, PLAIN), k = random_operand(kv, GM_T_F32, PLAIN);
        const operand v = random_operand(kv, GM_T_F32, PLAIN), out = operand_of((size_t)n * 4);
        const operand angles = random_operand(c.rows * 2 * half, GM_T_F32, SMALL);
        gm_rope_cache_args h = {.q_out = floats_of(out.host),
                                .q = floats_of(q.host),
                                .k = t % 7 ? floats_of(k.host) : NULL,
                                .v = floats_of(v.host),
                                .angles = floats_of(angles.host),
                                .q_stride = c.n_heads * c.dim,
                                .k_stride = c.n_kv_heads * c.dim,
                                .v_stride = c.n_kv_heads * c.dim,
                                .keys = addresses_of(c.addresses[0].host),
                                .values = addresses_of(c.addresses[1].host),
                                .sequence = ints_of(c.sequence.host),
                                .positions = ints_of(c.positions.host),
                                .kv_type = c.kv_type,
                                .n_heads = c.n_heads,
                                .n_kv_heads = c.n_kv_heads,
                                .head_dim = c.dim,
                                .half = half},
                           d = h;
        d.q_out = floats_of(out.device), d.q = floats_of(q.device), d.v = floats_of(v.device);
        d.k = h.k ? floats_of(k.device) : NULL;
        d.angles = floats_of(angles.device);
        d.keys = addresses_of(c.addresses[0].device), d.values = addresses_of(c.addresses[1].device);
        d.sequence = ints_of(c.sequence.device), d.positions = ints_of(c.positions.device);
        RUN_BOTH(rope_cache, h, d, c.rows, out, (size_t)n * 4);
        compare_out("q", out, n, GM_T_F32, 0.25, 0);
        compare_out("keys", c.blocks[0], (int64_t)c.blocks[0].bytes, GM_T_U8, 0, 0);
        compare_out("values", c.blocks[1], (int64_t)c.blocks[1].bytes, GM_T_U8, 0, 0);
        RUN_IN_PLACE(rope_cache, d, q, c.rows, out, q, n * 4);
        compare_out("in place", out, n, GM_T_F32, 0.25, 0);
    }
}

/* The last row of each sequence by itself has the bits that it has among the others, which `out` holds: of a prompt, or
 * of rows of which each has all blocks as its own. */
static void check_attention_alone(const cache_pair *c, gm_attention_args d, operand q, operand out, bool prompt) {
    const int64_t width = c->n_heads * c->dim;
    const operand alone = operand_of((size_t)width * 4);
    char *all = host_memory((size_t)(c->rows * width) * 4);
    copy_bytes(all, out.device, (size_t)(c->rows * width) * 4);
    const operand tile = operand_of(sizeof(gm_query_tile));
    *(gm_query_tile *)(void *)tile.host = (gm_query_tile){0, 1};
    upload(tile);
    d.max_blocks = CACHE_BLOCKS;
    d.out = floats_of(alone.device);
    d.tiles = (const gm_query_tile *)(void *)tile.device;
    for (int64_t s = 0; s < c->sequences; s++) {
        const int64_t row = ints_of(c->first.host)[s + 1] - 1;
        d.q = floats_of(q.device) + row * width;
        d.sequence = ints_of(c->sequence.device) + row;
        d.positions = ints_of(c->positions.device) + row;
        if (prompt ? !device_cuda.contracts->attention(&device_recorder, &d, 1)
                   : !device_cuda.contracts->attention_rows(&device_recorder, &d, 1))
            failed++;
        copy_bytes(alone.host, alone.device, (size_t)width * 4);
        compare("alone", all + row * width * 4, alone.host, width * 4, GM_T_U8, 0, 0);
    }
}
/* What is no number in the cache of the first sequence is in no row of others, which `out` has the rows of. */
static void check_attention_apart(const cache_pair *c, gm_attention_args d, operand out, bool prompt) {
    const int64_t width = c->n_heads * c->dim, from = ints_of(c->first.host)[1] * width, n = c->rows * width - from;
    const size_t bytes = CACHE_BLOCKS * c->block_bytes, at = (size_t)(c->sequences - 1) * bytes;
    char *before = host_memory((size_t)n * 4 + 1), *after = host_memory((size_t)n * 4 + 1);
    char *no_numbers = host_memory(bytes);
    copy_bytes(before, out.device + from * 4, (size_t)n * 4);
    memset(no_numbers, 0xff, bytes);
    for (int which = 0; which < 2; which++)
        copy_bytes(c->blocks[which].device + at, no_numbers, bytes);
    if (prompt ? !device_cuda.contracts->attention(&device_recorder, &d, c->tiles)
               : !device_cuda.contracts->attention_rows(&device_recorder, &d, c->rows))
        failed++;
    copy_bytes(after, out.device + from * 4, (size_t)n * 4);
    compare("apart", before, after, n * 4, GM_T_U8, 0, 0);
    for (int which = 0; which < 2; which++)
        copy_bytes(c->blocks[which].device + at, c->blocks[which].host + at, bytes);
}
/* Long caches, whose blocks repeat: rows that decode have more shares than a warp's lanes, then more than one block of
 * threads merges. What merges them changes no bit. */
#define LONG_BLOCKS 40
static void repeat_blocks(const cache_pair *c, int which) {
    const operand table = operand_of(LONG_BLOCKS * sizeof(char *));
    char *on_device[LONG_BLOCKS];
    for (int64_t b = 0; b < LONG_BLOCKS; b++) {
        const size_t at = (size_t)(b % CACHE_BLOCKS) * c->block_bytes;
        ((char **)(void *)table.host)[b] = c->blocks[which].host + at;
        on_device[b] = c->blocks[which].device + at;
    }
    copy_bytes(table.device, on_device, sizeof on_device);
    ((char **)(void *)c->addresses[which].host)[0] = table.host;
    copy_bytes(c->addresses[which].device, &table.device, sizeof table.device);
}
static gm_attention_args attention_of(const cache_pair *c, const operand *q, const operand *out) {
    return (gm_attention_args){.out = floats_of(out->host),
                               .q = floats_of(q->host),
                               .keys = addresses_of(c->addresses[0].host),
                               .values = addresses_of(c->addresses[1].host),
                               .sequence = ints_of(c->sequence.host),
                               .positions = ints_of(c->positions.host),
                               .kv_type = c->kv_type,
                               .n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->dim,
                               .scale = 0.5f,
                               .tiles = (const gm_query_tile *)(void *)c->tile.host};
}
static gm_attention_args on_the_device(gm_attention_args a, const cache_pair *c, const operand *q, const operand *out) {
    a.out = floats_of(out->device), a.q = floats_of(q->device);
    a.keys = addresses_of(c->addresses[0].device), a.values = addresses_of(c->addresses[1].device);
    a.sequence = ints_of(c->sequence.device), a.positions = ints_of(c->positions.device);
    a.tiles = (const gm_query_tile *)(void *)c->tile.device;
    return a;
}
static void check_long_attention(int kind, int64_t blocks) {
    const cache_pair c = random_cache(kind, 64, 1);
    const int64_t n = c.n_heads * c.dim;
    const operand q = random_operand(n, GM_T_F32, SMALL), out = operand_of((size_t)n * 4);
    char *const merged = host_memory((size_t)n * 4);
    repeat_blocks(&c, 0), repeat_blocks(&c, 1);
    ints_of(c.sequence.host)[0] = 0, ints_of(c.positions.host)[0] = (int32_t)(blocks * GM_KV_BLOCK - 1 - below(200));
    *(gm_query_tile *)(void *)c.tile.host = (gm_query_tile){0, 1};
    upload(c.sequence), upload(c.positions), upload(c.tile);
    const gm_attention_args h = attention_of(&c, &q, &out);
    gm_attention_args d = on_the_device(h, &c, &q, &out);
    contracts_cpu.attention(&host_recorder, &h, 1);
    d.max_blocks = blocks;
    if (!device_cuda.contracts->attention_rows(&device_recorder, &d, 1))
        failed++;
    compare_out("long", out, n, GM_T_F32, kind == 2 ? 1 << 17 : 1 << 14, largest_of(out, n, GM_T_F32));
    copy_bytes(merged, out.device, (size_t)n * 4);
    d.max_blocks = CUDA_MERGED;
    if (!device_cuda.contracts->attention_rows(&device_recorder, &d, 1))
        failed++;
    copy_bytes(out.host, out.device, (size_t)n * 4);
    compare("long, merged by a kernel", merged, out.host, n * 4, GM_T_U8, 0, 0);
}
static void check_attention(void) {
    static const int64_t dims[] = {32, 64, 96, 128, 256, 512};
    for (int kind = 1; kind < 4; kind++, free_memory())
        check_long_attention(kind, kind == 2 ? LONG_BLOCKS : LONG_BLOCKS / 2);
    for (int t = 0; t < 4 + cases; t++, free_memory()) {
        const cache_pair c = random_cache(t % 4, dims[below(t % 5 ? 4 : 6)], t % 3 ? 4 : 20);
        const int64_t n = c.rows * c.n_heads * c.dim;
        const operand q = random_operand(n, GM_T_F32, SMALL), sinks = random_operand(c.n_heads, GM_T_F32, PLAIN);
        const operand out = operand_of((size_t)n * 4);
        gm_attention_args h = attention_of(&c, &q, &out);
        h.window = t % 2 ? 0 : 1 + below(700);
        h.softcap = t % 5 == 1 ? 3.0f : 0.0f;
        h.sinks = t % 3 == 1 ? floats_of(sinks.host) : NULL;
        gm_attention_args d = on_the_device(h, &c, &q, &out);
        d.sinks = h.sinks ? floats_of(sinks.device) : NULL;
        RUN_BOTH(attention, h, d, c.tiles, out, (size_t)n * 4);
        /* Queries and weights are rounded: to seven bits, to ten. */
        const float ulps = c.kind == 0 ? 256 : c.kind == 2 ? 1 << 17 : 1 << 14;
        compare_out(kv_names[c.kind], out, n, GM_T_F32, ulps, largest_of(out, n, GM_T_F32));
        check_attention_alone(&c, d, q, out, true);
        check_attention_apart(&c, d, out, true);
        d.max_blocks = CACHE_BLOCKS + t % 2;
        if (!device_cuda.contracts->attention_rows(&device_recorder, &d, c.rows))
            failed++;
        compare_out("rows that decode", out, n, GM_T_F32, ulps, largest_of(out, n, GM_T_F32));
        check_attention_alone(&c, d, q, out, false);
        check_attention_apart(&c, d, out, false);
    }
}

/* ---- attention of rows that turn their queries and keys themselves ---- */
typedef struct {
    operand q, k, v, angles, q_norm, k_norm, sinks, out;
    gm_turned_attention_args host, device;
} turned_pair;
static turned_pair random_turned(const cache_pair *c, int t) {
    const int64_t n = c->rows * c->n_heads * c->dim, kv = c->rows * c->n_kv_heads * c->dim,
                  half = c->dim / (t % 3 ? 2 : 4);
    turned_pair p = {.q = random_operand(n, GM_T_F32, SMALL),
                     .k = random_operand(kv, GM_T_F32, SMALL),
                     .v = random_operand(kv, GM_T_F32, SMALL),
                     .angles = random_operand(c->rows * 2 * half, GM_T_F32, SMALL),
                     .q_norm = random_operand(c->dim, GM_T_F32, SMALL),
                     .k_norm = random_operand(c->dim, GM_T_F32, SMALL),
                     .sinks = random_operand(c->n_heads, GM_T_F32, PLAIN),
                     .out = operand_of((size_t)n * 4)};
    gm_turned_attention_args *const both[2] = {&p.host, &p.device};
    char *scratch[2] = {host_memory((size_t)n * 4), device_memory((size_t)n * 4)};
    for (int i = 0; i < 2; i++) {
#define SIDE(o) (i ? (o).device : (o).host)
        const gm_rope_cache_args turn = {.q_out = floats_of(scratch[i]),
                                         .q = floats_of(SIDE(p.q)),
                                         .k = t % 7 == 3 ? NULL : floats_of(SIDE(p.k)),
                                         .v = floats_of(SIDE(p.v)),
                                         .angles = floats_of(SIDE(p.angles)),
                                         .q_stride = c->n_heads * c->dim,
                                         .k_stride = c->n_kv_heads * c->dim,
                                         .v_stride = c->n_kv_heads * c->dim,
                                         .keys = addresses_of(SIDE(c->addresses[0])),
                                         .values = addresses_of(SIDE(c->addresses[1])),
                                         .sequence = ints_of(SIDE(c->sequence)),
                                         .positions = ints_of(SIDE(c->positions)),
                                         .kv_type = c->kv_type,
                                         .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .head_dim = c->dim,
                                         .half = half};
        const gm_attention_args attention = {.out = floats_of(SIDE(p.out)),
                                             .q = turn.q_out,
                                             .keys = turn.keys,
                                             .values = turn.values,
                                             .sequence = turn.sequence,
                                             .positions = turn.positions,
                                             .kv_type = c->kv_type,
                                             .n_heads = c->n_heads,
                                             .n_kv_heads = c->n_kv_heads,
                                             .head_dim = c->dim,
                                             .window = t % 4 == 1 ? 300 : 0,
                                             .scale = 0.5f,
                                             .sinks = t % 3 == 1 ? floats_of(SIDE(p.sinks)) : NULL,
                                             .tiles = (const gm_query_tile *)(void *)SIDE(c->tile),
                                             .max_blocks = CACHE_BLOCKS};
        *both[i] = (gm_turned_attention_args){.turn = turn,
                                              .q_norm = t % 2 ? floats_of(SIDE(p.q_norm)) : NULL,
                                              .k_norm = t % 2 ? floats_of(SIDE(p.k_norm)) : NULL,
                                              .eps = 1e-5f,
                                              .attention = attention};
    }
    return p;
}
/* As the processor has it of prompts, whose rows have the bits of those that decode. */
static void turn_on_host(const gm_turned_attention_args *a, int64_t rows, int64_t tiles) {
    gm_rope_cache_args turn = a->turn;
    if (a->q_norm)
        turn.q = record_head_norms(&host_recorder, turn.q, a->q_norm, rows * turn.n_heads, turn.head_dim, a->eps);
    if (a->k_norm && turn.k)
        turn.k = record_head_norms(&host_recorder, turn.k, a->k_norm, rows * turn.n_kv_heads, turn.head_dim, a->eps);
    contracts_cpu.rope_cache(&host_recorder, &turn, rows);
    contracts_cpu.attention(&host_recorder, &a->attention, tiles);
}
/* What the device makes of some rows with so many blocks has the bits that `want` has. */
static void same_turned(const char *what, gm_turned_attention_args d, int64_t rows, int64_t blocks, const char *want) {
    const size_t bytes = (size_t)(rows * d.turn.n_heads * d.turn.head_dim) * 4;
    char *got = host_memory(bytes), *out = device_memory(bytes);
    d.attention.out = floats_of(out);
    d.attention.max_blocks = blocks;
    if (!device_cuda.contracts->turned_attention(&device_recorder, &d, rows))
        failed++;
    copy_bytes(got, out, bytes);
    compare(what, want, got, (int64_t)bytes, GM_T_U8, 0, 0);
}
static void check_turned_attention(void) {
    static const int64_t dims[] = {64, 96, 128, 32, 256, 512};
    for (int t = 0; t < 8 + cases; t++, free_memory()) {
        const cache_pair c = random_cache(t % 4, dims[below(t % 5 ? 4 : 6)], 1);
        const turned_pair p = random_turned(&c, t);
        const gm_turned_attention_args h = p.host;
        gm_turned_attention_args d = p.device;
        const int64_t width = c.n_heads * c.dim, n = c.rows * width;
        turn_on_host(&h, c.rows, c.tiles);
        if (!device_cuda.contracts->turned_attention(&device_recorder, &d, c.rows))
            failed++;
        const float ulps = c.kind == 0 ? 256 : c.kind == 2 ? 1 << 17 : 1 << 14;
        compare_out(kv_names[c.kind], p.out, n, GM_T_F32, ulps, largest_of(p.out, n, GM_T_F32));
        compare_out("values", c.blocks[1], (int64_t)c.blocks[1].bytes, GM_T_U8, 0, 0);
        if (!h.k_norm)
            compare_out("keys", c.blocks[0], (int64_t)c.blocks[0].bytes, GM_T_U8, 0, 0);
        char *all = host_memory((size_t)n * 4);
        copy_bytes(all, p.out.device, (size_t)n * 4);
        same_turned("merged by a kernel", d, c.rows, CUDA_MERGED + 1, all);
        for (int64_t row = 0; row < c.rows; row++) {
            gm_turned_attention_args one = d;
            one.turn.q += row * width, one.turn.angles += row * 2 * d.turn.half;
            one.turn.v += row * d.turn.v_stride, one.turn.k += d.turn.k ? row * d.turn.k_stride : 0;
            one.turn.sequence += row, one.turn.positions += row;
            one.attention.sequence += row, one.attention.positions += row;
            same_turned("alone", one, 1, CACHE_BLOCKS + 1, all + row * width * 4);
        }
        if (d.q_norm)
            continue;
        if (!device_cuda.contracts->rope_cache(&device_recorder, &d.turn, c.rows) ||
            !device_cuda.contracts->attention_rows(&device_recorder, &d.attention, c.rows))
            failed++;
        char *apart = host_memory((size_t)n * 4);
        copy_bytes(apart, p.out.device, (size_t)n * 4);
        compare("apart", all, apart, n * 4, GM_T_U8, 0, 0);
    }
}

/* ---- layers with a state ---- */
typedef struct {
    int64_t sequences, rows;
    operand first, positions, states, addresses;
} state_pair;
static state_pair random_states(int64_t size) {
    state_pair s = {.sequences = 1 + below(3)};
    s.first = operand_of((size_t)(s.sequences + 1) * 4), s.positions = operand_of((size_t)s.sequences * 8 * 4);
    s.states = random_operand(s.sequences * size, GM_T_F32, SMALL);
    s.addresses = operand_of((size_t)s.sequences * sizeof(void *));
    char **of = host_memory((size_t)s.sequences * sizeof(void *));
    for (int64_t i = 0; i < s.sequences; i++) {
        const int64_t rows = 1 + below(7), start = i == 0 ? 0 : below(90);
        ints_of(s.first.host)[i] = (int32_t)s.rows;
        for (int64_t r = 0; r < rows; r++)
            ints_of(s.positions.host)[s.rows++] = (int32_t)(start + r);
        ((char **)(void *)s.addresses.host)[i] = s.states.host + i * size * 4;
        of[i] = s.states.device + i * size * 4;
    }
    ints_of(s.first.host)[s.sequences] = (int32_t)s.rows;
    upload(s.first), upload(s.positions);
    copy_bytes(s.addresses.device, of, (size_t)s.sequences * sizeof(void *));
    return s;
}
/* Both sides once, for a state is not what it was after a run. */
#define RUN_ONCE(name, h, d, n)                                                                                        \
    do {                                                                                                               \
        contracts_cpu.name(&host_recorder, &(h), n);                                                                   \
        if (!device_cuda.contracts->name(&device_recorder, &(d), n))                                                   \
            failed++;                                                                                                  \
    } while (0)

static void compare_device(const char *what, operand o, int64_t n, double ulps) {
    char *got = host_memory((size_t)n * 4 + 4);
    copy_bytes(got, o.device, (size_t)n * 4);
    compare(what, o.host, got, n, GM_T_F32, ulps, largest_of(o, n, GM_T_F32));
}
static void check_recurrent_conv(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t channels = training_sizes[below(9)], taps = c % 2 ? 4 : 2 + below(5),
                      size = (taps - 1) * channels;
        const state_pair s = random_states(size);
        const int64_t n = s.rows * channels;
        const operand x = random_operand(n, GM_T_F32, SMALL), weight = random_operand(channels * taps, GM_T_F32, SMALL);
        const operand out = operand_of((size_t)n * 4);
        gm_recurrent_conv_args h = {{floats_of(out.host), floats_of(x.host), floats_of(weight.host),
                                     addresses_of(s.addresses.host), ints_of(s.positions.host), ints_of(s.first.host),
                                     channels, taps},
                                    s.sequences},
                               d = {{floats_of(out.device), floats_of(x.device), floats_of(weight.device),
                                     addresses_of(s.addresses.device), ints_of(s.positions.device),
                                     ints_of(s.first.device), channels, taps},
                                    s.sequences};
        RUN_ONCE(recurrent_conv, h, d, s.rows);
        compare_device("out", out, n, 16);
        compare_device("state", s.states, s.sequences * size, 0);
    }
}
static void check_recurrent_delta(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t key_heads = 1 + below(2), heads = key_heads * (1 + below(3)), keys = 1 + below(70);
        const int64_t values = 1 + below(40), size = heads * values * keys;
        const state_pair s = random_states(size);
        const int64_t n = s.rows * heads * values;
        const operand q = random_operand(s.rows * key_heads * keys, GM_T_F32, SMALL);
        const operand k = random_operand(s.rows * key_heads * keys, GM_T_F32, SMALL);
        const operand v = random_operand(n, GM_T_F32, SMALL), out = operand_of((size_t)n * 4);
        const operand decay = random_operand(s.rows * heads, GM_T_F32, SMALL);
        const operand beta = random_operand(s.rows * heads, GM_T_F32, SMALL);
        gm_cached_gated_delta_args h = {floats_of(out.host),
                                        floats_of(q.host),
                                        floats_of(k.host),
                                        floats_of(v.host),
                                        floats_of(decay.host),
                                        floats_of(beta.host),
                                        addresses_of(s.addresses.host),
                                        ints_of(s.positions.host),
                                        ints_of(s.first.host),
                                        heads,
                                        key_heads,
                                        keys,
                                        values,
                                        c % 2};
        gm_cached_gated_delta_args d = {floats_of(out.device),
                                        floats_of(q.device),
                                        floats_of(k.device),
                                        floats_of(v.device),
                                        floats_of(decay.device),
                                        floats_of(beta.device),
                                        addresses_of(s.addresses.device),
                                        ints_of(s.positions.device),
                                        ints_of(s.first.device),
                                        heads,
                                        key_heads,
                                        keys,
                                        values,
                                        c % 2};
        const gm_recurrent_delta_args on_host = {h, s.sequences}, on_device = {d, s.sequences};
        RUN_ONCE(recurrent_delta, on_host, on_device, s.rows);
        compare_device("out", out, n, 256);
        compare_device("state", s.states, s.sequences * size, 256);
    }
}
#endif
