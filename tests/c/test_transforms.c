/* test_transforms.c - gradients, batching, compiled and exported graphs with every allocation made to fail in turn:
 * each failure is GM_ENOMEM, leaves nothing behind (the sanitizer looks at the end; live array memory is compared each
 * time), and the next run gives the same values. And files of exported functions, cut and changed at random: what comes
 * of them is refused, or runs inside its memory. */
#include <stdlib.h>
#include <unistd.h>
#include "base/memory.h"
#include "check.h"
#include "core/array.h"

enum { ROWS = 5, COLUMNS = 6, MOST = 4 };
static char folder[] = "/tmp/gomlx-transforms-XXXXXX", path[64];

static uint32_t noise(void) {
    static uint32_t state = 12345;
    return state = state * 1664525u + 1013904223u;
}

static gm_array *values(gm_scope *s, int ndim, const int64_t *shape) {
    float data[256];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)(noise() >> 8) / (1 << 24) + 0.25f;
    return gm_array_from(s, GM_FLOAT32, ndim, shape, data);
}

/* ---- a function with rules of its own: cotangents and tangents doubled ---- */
static gm_status rule_vjp(void *payload, gm_scope *s, gm_arrays inputs, gm_array *const *cotangents, gm_arrays outputs,
                          gm_array **grads) {
    (void)payload, (void)outputs;
    grads[0] = gm_add(s, cotangents[0], gm_multiply(s, cotangents[0], inputs.arrays[0]));
    return grads[0] ? GM_OK : GM_ENOMEM;
}

static gm_status rule_jvp(void *payload, gm_scope *s, gm_array *const *inputs, gm_array *const *tangents, int n_inputs,
                          int n_outputs, gm_array **outs) {
    (void)payload, (void)inputs, (void)n_inputs, (void)n_outputs;
    outs[0] = gm_add(s, tangents[0], tangents[0]);
    return outs[0] ? GM_OK : GM_ENOMEM;
}

static int freed;
static void rule_free(void *payload) { free(payload), freed++; }

static gm_array *with_rules(gm_scope *s, gm_array *x) {
    gm_array *out = gm_square(s, x), *made = NULL;
    gm_closure closure = {rule_vjp, rule_jvp, NULL, rule_free, malloc(1)};
    if (!out)
        rule_free(closure.payload);
    return out && gm_custom(s, &closure, &x, 1, &out, 1, &made) == GM_OK ? made : NULL;
}

/* ---- the function under test: two inputs [ROWS, COLUMNS], two outputs ---- */
static bool function(gm_scope *s, gm_array *x, gm_array *y, bool rules, gm_array **outs) {
    gm_array *constant = gm_arange(s, 0, COLUMNS, 1, GM_FLOAT32), *row[3];
    gm_array *a = gm_exp(s, gm_multiply(s, x, constant));
    gm_array *b = gm_matmul(s, gm_transpose(s, a, 2, (int[]){1, 0}), y); /* [COLUMNS, COLUMNS] */
    gm_array *c = gm_softmax(s, gm_add(s, b, gm_sum(s, x, 1, (int[]){0}, true)), 1, (int[]){-1});
    gm_array *d = gm_where(s, gm_greater(s, c, gm_mean(s, c, 1, (int[]){-1}, true)), c, gm_negative(s, c));
    gm_array *part = gm_slice(s, d, (int64_t[]){1, 0}, (int64_t[]){COLUMNS, 4}, (int64_t[]){1, 2});
    row[0] = gm_concatenate(s, (gm_array *[]){part, gm_reshape(s, part, 2, (int64_t[]){-1, 2})}, 2, 0);
    row[1] = gm_max(s, y, 1, (int[]){0}, false);
    if (gm_depends(s, row, 2, 1, outs) == NULL)
        return false;
    row[2] = gm_take(s, gm_sigmoid(s, row[1]), gm_astype(s, gm_arange(s, 0, 3, 1, GM_INT32), GM_INT32), 0);
    if (rules)
        row[2] = with_rules(s, row[2]);
    outs[1] = gm_sqrt(s, row[2]);
    return outs[0] && outs[1];
}

/* ---- another one, of what else files hold: fused operations, transforms, linear algebra, quantised matrices ---- */
static bool fused_function(gm_scope *s, gm_array *x, gm_array *y, gm_array **outs) {
    const int64_t wide_shape[3] = {ROWS, COLUMNS, 32};
    gm_array *parts[12], *lu[3], *svd[3], *fields[3], *sum = NULL;
    gm_array *heads = gm_reshape(s, x, 4, (int64_t[]){1, 1, ROWS, COLUMNS});
    gm_array *offset = gm_array_from(s, GM_INT32, 0, NULL, &(int32_t){2});
    gm_array *square = gm_add(s, gm_matmul(s, gm_transpose(s, x, 2, (int[]){1, 0}), y),
                              gm_eye(s, COLUMNS, COLUMNS, 0, GM_FLOAT32));
    gm_array *wide = gm_broadcast_to(s, gm_reshape(s, x, 3, (int64_t[]){ROWS, COLUMNS, 1}), 3, wide_shape);
    wide = gm_reshape(s, wide, 2, (int64_t[]){ROWS, 32 * COLUMNS});
    fields[0] = gm_quantize(s, wide, 32, 4, "affine", GM_NONE, &fields[1]);
    if (!fields[0] || !gm_lu(s, square, lu) || !gm_svd(s, square, true, svd))
        return false;
    parts[0] = gm_rope(s, heads, 4, false, offset, GM_NONE, 100, 1);
    parts[1] = gm_rms_norm(s, x, GM_NONE, 1e-5f);
    parts[2] = gm_layer_norm(s, x, GM_NONE, GM_NONE, 1e-5f);
    parts[3] = gm_abs(s, gm_rfft(s, x, -1, NULL, 1, (int[]){-1}, "backward"));
    parts[4] = gm_from_fp8(s, gm_to_fp8(s, x), GM_FLOAT32);
    parts[5] = gm_solve(s, square, square);
    parts[6] = lu[1];
    parts[7] = svd[1];
    parts[8] = gm_det(s, square);
    parts[9] = gm_dequantize(s, fields[0], fields[1], fields[2], 32, 4, "affine", GM_NONE, GM_DTYPE_COUNT);
    parts[10] = gm_quantized_matmul(s, wide, fields[0], fields[1], fields[2], true, 32, 4, "affine");
    parts[11] = gm_eigvalsh(s, square, true);
    for (int i = 0; i < 12; i++) {
        if (!(parts[i] = gm_sum(s, parts[i], -1, NULL, false)))
            return false;
        sum = i ? gm_add(s, sum, parts[i]) : parts[i];
    }
    outs[0] = sum;
    outs[1] = gm_scaled_dot_product_attention(s, heads, heads, heads, 1, GM_NONE, true, GM_NONE);
    return outs[0] && outs[1];
}

static gm_array *ones_like(gm_scope *s, gm_array *a) {
    gm_array *one = gm_array_from(s, GM_FLOAT32, 0, NULL, &(float){1});
    return a ? gm_full(s, gm_array_ndim(a), gm_array_shape(a), one, GM_FLOAT32) : NULL;
}

/* ---- the transforms: results go to outs; false after a failure ---- */
typedef bool (*transform)(gm_scope *s, gm_array *const *in, gm_array **outs, int *n);

static bool reverse(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    gm_array *made[2] = {NULL}, *primals[2];
    gm_trace_enter();
    primals[0] = gm_tracer(s, in[0]);
    primals[1] = gm_tracer(s, in[1]);
    bool ok = primals[0] && primals[1] && function(s, primals[0], primals[1], true, made);
    gm_array *cotangents[2] = {ones_like(s, made[0]), ok ? ones_like(s, made[1]) : NULL};
    ok = ok && cotangents[0] && cotangents[1] && gm_vjp(s, made, cotangents, 2, primals, 2, outs) == GM_OK;
    gm_trace_leave();
    *n = 2;
    return ok;
}

static bool forward(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    gm_array *made[2] = {NULL}, *primals[2];
    gm_trace_enter();
    primals[0] = gm_tracer(s, in[0]);
    primals[1] = gm_tracer(s, in[1]);
    bool ok = primals[0] && primals[1] && function(s, primals[0], primals[1], true, made) &&
              gm_jvp(s, made, 2, primals, in, 2, outs) == GM_OK;
    gm_trace_leave();
    *n = 2;
    return ok;
}

static bool batched(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    const int64_t shape[2] = {ROWS, COLUMNS};
    gm_array *made[2] = {NULL}, *place;
    bool flags[1] = {true}, out_flags[2];
    gm_trace_enter();
    place = gm_placeholder(s, GM_FLOAT32, 2, shape);
    bool ok = place && function(s, place, in[1], false, made) &&
              gm_vmap(s, (gm_arrays){made, 2}, (gm_arrays){&place, 1}, &in[2], flags, outs, out_flags) == GM_OK;
    gm_trace_leave();
    *n = 2;
    return ok;
}

typedef enum { WITH_RULES, WITHOUT_RULES, FUSED } which;

static bool traced(gm_scope *s, which f, gm_array **places, gm_array **made) {
    const int64_t shape[2] = {ROWS, COLUMNS};
    gm_trace_enter();
    places[0] = gm_placeholder(s, GM_FLOAT32, 2, shape);
    places[1] = gm_placeholder(s, GM_FLOAT32, 2, shape);
    bool ok = places[0] && places[1] &&
              (f == FUSED ? fused_function(s, places[0], places[1], made)
                          : function(s, places[0], places[1], f == WITH_RULES, made));
    gm_trace_leave();
    return ok;
}

static bool compiled_as(gm_scope *s, gm_array *const *in, gm_array **outs, bool shapeless) {
    gm_array *made[2] = {NULL}, *places[2];
    gm_graph *graph = NULL;
    bool ok = traced(s, WITH_RULES, places, made) && gm_graph_new(places, 2, made, 2, shapeless, &graph) == GM_OK &&
              gm_graph_fuse(graph) == GM_OK && gm_graph_call(s, graph, in, 2, outs) == GM_OK;
    gm_graph_free(graph);
    return ok;
}

static bool compiled(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    *n = 2;
    return compiled_as(s, in, outs, false);
}

static bool shapeless(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    *n = 2;
    return compiled_as(s, in, outs, true);
}

static bool save(gm_scope *s, which f) {
    const char *names[2] = {NULL, "y"};
    gm_array *made[2] = {NULL}, *places[2];
    gm_exporter *exporter;
    if (!traced(s, f, places, made) || gm_export_open(path, false, "about it", &exporter) != GM_OK)
        return false;
    bool ok = gm_export_trace(exporter, places, names, 2, made, 2) == GM_OK;
    return gm_export_close(exporter, ok) == GM_OK && ok;
}

/* The file's first graph over the inputs; the import may be closed before its results are evaluated. */
static bool load_and_call(gm_scope *s, gm_array *const *in, gm_array **outs) {
    gm_import *import;
    gm_graph *graph = NULL;
    if (gm_import_open(path, &import) != GM_OK)
        return false;
    gm_traced t = gm_import_traces(import) ? gm_import_trace(import, 0) : (gm_traced){0};
    bool ok = t.n_inputs == 2 && t.n_outputs == 2 &&
              gm_graph_new(t.inputs, 2, t.outputs, 2, gm_import_is_shapeless(import), &graph) == GM_OK &&
              gm_graph_fuse(graph) == GM_OK && gm_graph_call(s, graph, in, 2, outs) == GM_OK;
    gm_graph_free(graph);
    gm_import_close(import);
    return ok;
}

static bool exported(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    *n = 2;
    return save(s, WITHOUT_RULES) && load_and_call(s, in, outs);
}

static bool exported_fused(gm_scope *s, gm_array *const *in, gm_array **outs, int *n) {
    *n = 2;
    return save(s, FUSED) && load_and_call(s, in, outs);
}

/* ---- faults ---- */
typedef struct {
    gm_status status;
    int n;
    float sums[MOST];
} result;

static result run(transform t, gm_array *const *in) {
    result r = {GM_ENOMEM, 0, {0}};
    gm_error e;
    gm_array *outs[MOST] = {NULL};
    gm_scope *s = gm_scope_open();
    bool ok = s && t(s, in, outs, &r.n);
    for (int k = 0; k < r.n && ok; k++)
        outs[k] = outs[k] ? gm_sum(s, gm_astype(s, outs[k], GM_FLOAT32), -1, NULL, false) : NULL;
    for (int k = 0; k < r.n; k++)
        ok = ok && outs[k];
    ok = ok && gm_eval(outs, (size_t)r.n) == GM_OK;
    for (int k = 0; k < r.n && ok; k++)
        r.sums[k] = *(const float *)gm_array_data(outs[k]);
    gm_status code = gm_take_error(&e);
    r.status = ok ? GM_OK : code;
    if (!ok && code != GM_ENOMEM)
        printf("not memory: %d %s\n", (int)code, e.text);
    gm_scope_close(s);
    return r;
}

static void fail_each(const char *name, transform t, gm_array *const *in) {
    result want = run(t, in);
    size_t before = gm_active_memory();
    long n = 1, wrong = 0;
    CHECK(want.status == GM_OK && want.n > 0);
    for (result r = {GM_ENOMEM, 0, {0}}; r.status != GM_OK && n < 20000 && wrong < 5; n++) {
        memory_fail_at(n);
        r = run(t, in);
        memory_fail_at(0);
        bool right = r.status == GM_OK ? memcmp(r.sums, want.sums, sizeof r.sums) == 0 : r.status == GM_ENOMEM;
        if (!right || gm_active_memory() != before) {
            printf("%s: allocation %ld: status %d, %zu bytes left\n", name, n, (int)r.status,
                   gm_active_memory() - before);
            wrong++;
        }
    }
    CHECK(wrong == 0 && n > 20);
    printf("%s: %ld allocations\n", name, n);
}

/* ---- damaged files ---- */
static char *read_file(size_t *size) {
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size);
    CHECK(fread(data, 1, *size, f) == *size);
    fclose(f);
    return data;
}

static void write_file(const char *data, size_t size) {
    FILE *f = fopen(path, "wb");
    CHECK(fwrite(data, 1, size, f) == size);
    fclose(f);
}

static gm_status load(void) {
    gm_error e;
    gm_import *import;
    gm_status status = gm_import_open(path, &import);
    gm_take_error(&e);
    if (status == GM_OK)
        gm_import_close(import);
    return status;
}

/* Any change is refused, by the checksum if by nothing else. */
static void refuse_damage(void) {
    size_t size;
    char *data = read_file(&size);
    long accepted = 0;
    for (size_t n = 0; n < size; n += 1 + n / 64) {
        write_file(data, n);
        accepted += load() == GM_OK;
    }
    for (size_t n = 0; n < size; n += 7) {
        data[n] = (char)(data[n] ^ 0x10);
        write_file(data, size);
        accepted += load() == GM_OK;
        data[n] = (char)(data[n] ^ 0x10);
    }
    CHECK(accepted == 0);
    write_file(data, size);
    CHECK(load() == GM_OK);
    free(data);
}

/* The checksum as csrc/transform/export.c has it. */
static uint64_t mixed(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static void seal(char *data, size_t size) {
    uint64_t h = 0, word;
    size_t at = 0;
    for (; at + 8 <= size - 8; at += 8) {
        memcpy(&word, data + at, 8);
        h = mixed(h, word);
    }
    word = 0;
    memcpy(&word, data + at, size - 8 - at);
    h = mixed(mixed(h, word), size - 8 - at);
    memcpy(data + size - 8, &h, 8);
}

/* Files that say something else, with a right checksum: programs, run as long as they stay small. */
static void survive_programs(gm_array *const *in, int rounds) {
    static const char odd[] = {0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 65, 127, -1, -2, -128};
    size_t size;
    char *data = read_file(&size), *changed = malloc(size);
    long ran = 0;
    gm_error e;
    for (int i = 0; i < rounds; i++) {
        memcpy(changed, data, size);
        for (uint32_t k = 1 + noise() % 3; k; k--)
            changed[24 + noise() % (size - 48)] = odd[noise() % sizeof odd];
        seal(changed, size);
        write_file(changed, size);
        gm_scope *s = gm_scope_open();
        gm_array *outs[MOST] = {NULL};
        if (load_and_call(s, in, outs))
            ran += gm_eval(outs, 2) == GM_OK;
        gm_take_error(&e);
        gm_scope_close(s);
    }
    CHECK(ran > rounds / 50);
    printf("%ld of %d changed programs ran\n", ran, rounds);
    write_file(data, size);
    free(data);
    free(changed);
}

int main(void) {
    static const struct {
        const char *name;
        transform t;
    } transforms[] = {{"vjp", reverse},      {"jvp", forward},         {"vmap", batched},
                      {"compile", compiled}, {"shapeless", shapeless}, {"fused export", exported_fused},
                      {"export", exported}};
    gm_set_cache_limit(0);
    CHECK(gm_init() == GM_OK && mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f", folder);
    gm_set_memory_limit((size_t)64 << 20);
    gm_scope *s = gm_scope_open();
    gm_array *in[3] = {values(s, 2, (int64_t[]){ROWS, COLUMNS}), values(s, 2, (int64_t[]){ROWS, COLUMNS}),
                       values(s, 3, (int64_t[]){3, ROWS, COLUMNS})};
    for (size_t i = 0; i < sizeof transforms / sizeof *transforms; i++)
        fail_each(transforms[i].name, transforms[i].t, in);
    refuse_damage();
    int rounds = getenv("GOMLX_FUZZ_ROUNDS") ? atoi(getenv("GOMLX_FUZZ_ROUNDS")) : 3000;
    survive_programs(in, rounds);
    CHECK(save(s, FUSED));
    survive_programs(in, rounds);
    gm_scope_close(s);
    unlink(path);
    CHECK(rmdir(folder) == 0); /* nothing else was left in it */
    return check_summary();
}
