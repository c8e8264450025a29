/* export.c - traced functions written to a file: the graph without fusing, its constants, the specs of its inputs.
 *  (1) The file has its name only when it is whole.
 *  (2) A constant is written once, however many traces use it; that is why the exporter retains constants. */
#include "transform/export.h"
#include <string.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/memory.h"
#include "core/graph.h"

/* ---- the format's numbers ---- */
static uint64_t mixed(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

/* Whole words at once; what is left over waits for the next call. */
void export_sum(export_checksum *c, const void *bytes, size_t n) {
    const uint8_t *at = bytes;
    uint64_t word;
    while (c->n_rest && c->n_rest < 8 && n) {
        c->rest[c->n_rest++] = *at++;
        n--;
    }
    if (c->n_rest == 8) {
        memcpy(&word, c->rest, 8);
        c->state = mixed(c->state, word);
        c->n_rest = 0;
    }
    for (; n >= 8; at += 8, n -= 8) {
        memcpy(&word, at, 8);
        c->state = mixed(c->state, word);
    }
    while (n--)
        c->rest[c->n_rest++] = *at++;
}

uint64_t export_sum_end(const export_checksum *c) {
    uint64_t word = 0;
    memcpy(&word, c->rest, c->n_rest);
    return mixed(mixed(c->state, word), c->n_rest);
}

static uint64_t mixed_text(uint64_t h, const char *text) {
    for (; *text; text++)
        h = mixed(h, (unsigned char)*text);
    return h;
}

uint32_t export_catalogue(void) {
    static const int counts[] = {GM_DTYPE_COUNT, GM_U_COUNT, GM_B_COUNT, GM_R_COUNT, GM_S_COUNT, GM_RANDOM_COUNT};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        h = mixed(h, (uint64_t)counts[i]);
    return (uint32_t)h;
}

uint64_t export_layout(const gm_op *op) {
    uint64_t h = mixed(0, op->param_size);
    for (const gm_field *f = op->fields; f && f->name; f++) {
        h = mixed(mixed(h, (uint64_t)f->kind), f->offset);
        h = mixed_text(mixed(h, (uint64_t)f->count), f->name);
    }
    return h;
}

/* ---- writing ---- */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
} bytes;

struct gm_exporter {
    gm_file_writer file;
    export_checksum sum;
    uint64_t written;
    bool shapeless;
    bool broken;       /* something could not be written: the file cannot become whole */
    const gm_op **ops; /* those that are in the file */
    int n_ops;
    gm_array **constants;
    int64_t n_constants;
    size_t ops_capacity, constants_capacity;
    bytes trace; /* the trace at hand */
};

/* A file that cannot be written or read is RuntimeError here, as in MLX. */
static gm_status as_state(gm_status status) {
    gm_error e;
    if (status == GM_EFILE && gm_take_error(&e) == GM_EFILE)
        return gm_fail(GM_ESTATE, "%s", e.text);
    return status;
}

static gm_status put(bytes *b, const void *data, size_t n) {
    GM_TRY(grow_array(&b->data, b->size, &b->capacity, n, 1));
    if (n)
        memcpy(b->data + b->size, data, n);
    b->size += n;
    return GM_OK;
}

static gm_status put_u32(bytes *b, uint32_t v) { return put(b, &v, sizeof v); }

static gm_status put_shape(bytes *b, const gm_array *a) {
    GM_TRY(put_u32(b, a->dtype));
    GM_TRY(put_u32(b, (uint32_t)a->ndim));
    return put(b, a->shape, (size_t)a->ndim * sizeof *a->shape);
}

static gm_status write_bytes(gm_exporter *e, const void *data, size_t n) {
    export_sum(&e->sum, data, n);
    e->written += n;
    gm_status status = as_state(file_write(&e->file, data, n));
    e->broken |= status != GM_OK;
    return status;
}

static gm_status write_head(gm_exporter *e, export_tag tag, uint64_t size) {
    uint32_t head[2] = {(uint32_t)tag, 0};
    GM_TRY(write_bytes(e, head, sizeof head));
    return write_bytes(e, &size, sizeof size);
}

gm_status gm_export_open(const char *path, bool shapeless, const char *metadata, gm_exporter **out) {
    *out = NULL;
    gm_exporter *e = memory_zeroed(sizeof *e);
    if (!e)
        return GM_ENOMEM;
    e->shapeless = shapeless;
    gm_status status = as_state(file_create(path, &e->file));
    uint32_t head[4] = {EXPORT_VERSION, export_catalogue(), shapeless, 0};
    if (status == GM_OK)
        status = write_bytes(e, EXPORT_MAGIC, 8);
    if (status == GM_OK)
        status = write_bytes(e, head, sizeof head);
    if (status == GM_OK && metadata) {
        status = write_head(e, EXPORT_METADATA, strlen(metadata));
        if (status == GM_OK)
            status = write_bytes(e, metadata, strlen(metadata));
    }
    if (status != GM_OK) {
        gm_export_close(e, false);
        return status;
    }
    *out = e;
    return GM_OK;
}

/* ---- operations and constants ---- */
static gm_status number_of_op(gm_exporter *e, const gm_op *op, uint32_t *out) {
    for (*out = 0; *out < (uint32_t)e->n_ops; ++*out)
        if (e->ops[*out] == op)
            return GM_OK;
    GM_TRY(grow_array(&e->ops, (size_t)e->n_ops, &e->ops_capacity, 1, sizeof *e->ops));
    uint64_t layout = export_layout(op);
    GM_TRY(write_head(e, EXPORT_OP, sizeof layout + strlen(op->name)));
    GM_TRY(write_bytes(e, &layout, sizeof layout));
    GM_TRY(write_bytes(e, op->name, strlen(op->name)));
    e->ops[e->n_ops++] = op;
    return GM_OK;
}

static gm_status write_constant(gm_exporter *e, const gm_array *a) {
    bytes b = {NULL, 0, 0};
    size_t size = (size_t)a->size * array_item(a);
    gm_status status = put_shape(&b, a);
    if (status == GM_OK)
        status = write_head(e, EXPORT_CONSTANT, b.size + size);
    if (status == GM_OK)
        status = write_bytes(e, b.data, b.size);
    if (status == GM_OK && size)
        status = write_bytes(e, array_ptr(a), size);
    memory_free(b.data);
    return status;
}

/* The elements of the constants as they are stored in the file: contiguous, evaluated, in memory of the host. */
static gm_status gather_constants(gm_scope *s, const gm_graph *g, gm_array **out) {
    for (int64_t i = 0; i < g->n_constants; i++) {
        gm_array *a = g->constants[i];
        if (a != GM_NONE && a->dtype >= GM_DTYPE_COUNT)
            return gm_fail(GM_EVALUE, "export_function: a packed matrix cannot be exported");
        out[i] = a == GM_NONE ? a : gm_contiguous(s, a);
        if (!out[i])
            return error_code();
    }
    GM_TRY(gm_eval(out, (size_t)g->n_constants));
    for (int64_t i = 0; i < g->n_constants; i++)
        if (out[i] != GM_NONE && !(out[i] = gm_array_host(s, out[i])))
            return error_code();
    return GM_OK;
}

/* numbers[i]: of constant i of the graph, in the file. */
static gm_status write_constants(gm_exporter *e, const gm_graph *g, gm_array *const *values, int32_t *numbers) {
    for (int64_t i = 0; i < g->n_constants; i++) {
        numbers[i] = -1;
        for (int64_t k = 0; k < e->n_constants && numbers[i] < 0; k++)
            if (e->constants[k] == g->constants[i])
                numbers[i] = (int32_t)k;
        if (numbers[i] >= 0 || g->constants[i] == GM_NONE)
            continue;
        GM_TRY(grow_array(&e->constants, (size_t)e->n_constants, &e->constants_capacity, 1, sizeof *e->constants));
        GM_TRY(write_constant(e, values[i]));
        numbers[i] = (int32_t)e->n_constants;
        e->constants[e->n_constants++] = gm_retain(g->constants[i]);
    }
    return GM_OK;
}

/* ---- traces ---- */
static gm_status put_operands(bytes *b, const gm_graph *g, const operand *list, int n, const int32_t *numbers) {
    for (int k = 0; k < n; k++) {
        int32_t o = list[k];
        if (o < 0)
            o = g->constants[-1 - o] == GM_NONE ? EXPORT_NONE : -1 - numbers[-1 - o];
        GM_TRY(put(b, &o, sizeof o));
    }
    return GM_OK;
}

static gm_status check_op(const gm_op *op) {
    if (op == &placeholder_op || op == &trace_op)
        return gm_fail(GM_EVALUE, "export_function: the function uses an array of another function that is being "
                                  "transformed; it must be among the inputs");
    if (!op->rebuild || op_record(op->name) != op)
        return gm_fail(GM_EVALUE, "export_function: %s cannot be exported", op->name);
    return GM_OK;
}

static gm_status put_instruction(gm_exporter *e, const gm_graph *g, const instruction *i, const int32_t *numbers) {
    bytes *b = &e->trace;
    uint32_t op;
    GM_TRY(number_of_op(e, i->node->op, &op));
    GM_TRY(put_u32(b, op));
    GM_TRY(put_u32(b, (uint32_t)i->n_in));
    GM_TRY(put_u32(b, (uint32_t)i->n_out));
    GM_TRY(put_u32(b, i->node->param_size));
    GM_TRY(put_operands(b, g, i->in, i->n_in, numbers));
    return put(b, i->node->param, i->node->param_size);
}

static gm_status put_trace(gm_exporter *e, const gm_graph *g, const char *const *names, const int32_t *numbers) {
    bytes *b = &e->trace;
    b->size = 0;
    GM_TRY(put_u32(b, (uint32_t)g->n_inputs));
    for (int k = 0; k < g->n_inputs; k++) {
        size_t length = names[k] ? strlen(names[k]) : 0;
        GM_TRY(put_shape(b, g->inputs[k]));
        GM_TRY(put_u32(b, (uint32_t)length));
        GM_TRY(put(b, names[k], length));
    }
    GM_TRY(put_u32(b, (uint32_t)g->n_code));
    for (int64_t i = 0; i < g->n_code; i++)
        GM_TRY(put_instruction(e, g, &g->code[i], numbers));
    GM_TRY(put_u32(b, (uint32_t)g->n_outputs));
    return put_operands(b, g, g->outputs, g->n_outputs, numbers);
}

static gm_status write_trace(gm_exporter *e, gm_scope *s, const gm_graph *g, const char *const *names) {
    for (int64_t i = 0; i < g->n_code; i++)
        GM_TRY(check_op(g->code[i].node->op));
    gm_array **values = memory_array((size_t)g->n_constants + 1, sizeof *values);
    int32_t *numbers = memory_array((size_t)g->n_constants + 1, sizeof *numbers);
    gm_status status = values && numbers ? gather_constants(s, g, values) : GM_ENOMEM;
    if (status == GM_OK)
        status = write_constants(e, g, values, numbers);
    if (status == GM_OK)
        status = put_trace(e, g, names, numbers);
    if (status == GM_OK)
        status = write_head(e, EXPORT_TRACE, e->trace.size);
    if (status == GM_OK)
        status = write_bytes(e, e->trace.data, e->trace.size);
    memory_free(values);
    memory_free(numbers);
    return status;
}

gm_status gm_graph_whole(gm_array *const *inputs, int n_inputs, gm_array *const *outputs, int n_outputs,
                         gm_graph **out) {
    GM_TRY(run_lock(-1));
    gm_status status = compile_graph(inputs, n_inputs, outputs, n_outputs, WALK_ALL, false, out);
    run_unlock();
    return status;
}

/* Arrays that would be read from a file later are read now, and so are constants; *any tells whether there were some.
 */
static gm_status read_sources(const gm_graph *g, bool *any) {
    *any = false;
    for (int64_t i = 0; i < g->n_code; i++) {
        gm_array *node = g->code[i].node;
        if (node->n_in || node->op == &placeholder_op || op_record(node->op->name) == node->op)
            continue;
        GM_TRY(gm_eval(&node, 1));
        *any = true;
    }
    return GM_OK;
}

gm_status gm_export_trace(gm_exporter *e, gm_array *const *inputs, const char *const *names, int n_inputs,
                          gm_array *const *outputs, int n_outputs) {
    gm_graph *g = NULL;
    if (e->broken)
        return gm_fail(GM_ESTATE, "export_function: the file could not be written");
    bool again;
    GM_TRY(gm_graph_whole(inputs, n_inputs, outputs, n_outputs, &g));
    gm_status status = read_sources(g, &again);
    if (status == GM_OK && again) {
        gm_graph_free(g);
        g = NULL;
        status = gm_graph_whole(inputs, n_inputs, outputs, n_outputs, &g);
    }
    gm_scope *s = gm_scope_open();
    if (status == GM_OK)
        status = s ? write_trace(e, s, g, names) : GM_ENOMEM;
    gm_scope_close(s);
    gm_graph_free(g);
    return status;
}

static gm_status finish(gm_exporter *e) {
    uint64_t tail[2] = {e->written + 24, 0};
    uint32_t head[2] = {EXPORT_END, 0};
    if (e->broken)
        return gm_fail(GM_ESTATE, "export_function: the file could not be written");
    GM_TRY(write_bytes(e, head, sizeof head));
    GM_TRY(write_bytes(e, tail, sizeof *tail));
    tail[1] = export_sum_end(&e->sum);
    GM_TRY(write_bytes(e, tail + 1, sizeof *tail));
    return as_state(file_commit(&e->file));
}

gm_status gm_export_close(gm_exporter *e, bool keep) {
    if (!e)
        return GM_OK;
    gm_status status = keep ? finish(e) : GM_OK;
    file_discard(&e->file);
    for (int64_t i = 0; i < e->n_constants; i++)
        gm_release(e->constants[i]);
    memory_free(e->constants);
    memory_free(e->ops);
    memory_free(e->trace.data);
    memory_free(e);
    return status;
}
