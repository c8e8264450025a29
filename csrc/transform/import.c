/* import.c - functions read back from the file of export.c. The file is from outside: every length is checked before it
 * is used, and each operation is made anew through its .rebuild, which checks what its parameters may be. What is read
 * is a program all the same: it may need any amount of memory and work. */
#include <string.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/memory.h"
#include "transform/export.h"

/* ---- bytes, with their end ---- */
typedef struct {
    const uint8_t *at;
    size_t left;
    const char *path;
} reader;

static gm_status damaged(const reader *r, const char *what) {
    return gm_fail(GM_ESTATE, "import_function: %s: %s", r->path, what);
}

static gm_status take(reader *r, void *out, size_t n) {
    if (n > r->left)
        return damaged(r, "a part of it ends too early");
    memcpy(out, r->at, n);
    r->at += n;
    r->left -= n;
    return GM_OK;
}

static gm_status take_u32(reader *r, uint32_t *out) { return take(r, out, sizeof *out); }

/* A count of items of at least item_bytes each. */
static gm_status take_count(reader *r, size_t item_bytes, uint32_t *out) {
    GM_TRY(take_u32(r, out));
    return *out > r->left / item_bytes ? damaged(r, "a count in it is more than it holds") : GM_OK;
}

static gm_status take_text(reader *r, size_t n, char **out) {
    *out = NULL;
    if (n > r->left)
        return damaged(r, "a text in it ends too early");
    if (memchr(r->at, 0, n))
        return damaged(r, "a text in it has a zero byte");
    if (!(*out = memory_copy_text((const char *)r->at, n)))
        return GM_ENOMEM;
    r->at += n;
    r->left -= n;
    return GM_OK;
}

static gm_status take_shape(reader *r, gm_spec *out) {
    uint32_t type = 0, ndim = 0;
    GM_TRY(take_u32(r, &type));
    GM_TRY(take_u32(r, &ndim));
    if (type >= GM_DTYPE_COUNT || ndim > GM_MAX_NDIM)
        return damaged(r, "an array in it has an unknown dtype or too many dimensions");
    *out = (gm_spec){.dtype = (gm_dtype)type, .ndim = (int)ndim};
    GM_TRY(take(r, out->shape, ndim * sizeof *out->shape));
    for (uint32_t i = 0; i < ndim; i++)
        if (out->shape[i] < 0)
            return damaged(r, "an array in it has a negative size");
    return GM_OK;
}

/* ---- what was read ---- */
typedef struct {
    gm_array **inputs, **outputs;
    char **names; /* NULL: positional */
    int n_inputs, n_outputs;
} trace;

struct gm_import {
    gm_scope *scope; /* of all arrays */
    char *metadata;
    bool shapeless;
    const gm_op **ops;
    int n_ops;
    gm_array **constants;
    int64_t n_constants;
    trace *traces;
    int n_traces;
    size_t ops_capacity, constants_capacity, traces_capacity;
};

static gm_status read_op(gm_import *m, reader *r) {
    uint64_t layout = 0;
    char *name;
    GM_TRY(grow_array(&m->ops, (size_t)m->n_ops, &m->ops_capacity, 1, sizeof *m->ops));
    GM_TRY(take(r, &layout, sizeof layout));
    GM_TRY(take_text(r, r->left, &name));
    const gm_op *op = op_record(name);
    gm_status status = GM_OK;
    if (!op || !op->rebuild || export_layout(op) != layout)
        status = gm_fail(GM_ESTATE, "import_function: %s: this version of gomlx does not have its operation %.60s",
                         r->path, name);
    memory_free(name);
    if (status == GM_OK)
        m->ops[m->n_ops++] = op;
    return status;
}

static gm_status read_constant(gm_import *m, reader *r) {
    gm_spec spec;
    int64_t bytes;
    GM_TRY(grow_array(&m->constants, (size_t)m->n_constants, &m->constants_capacity, 1, sizeof *m->constants));
    GM_TRY(take_shape(r, &spec));
    bytes = (int64_t)gm_dtype_size(spec.dtype);
    for (int i = 0; i < spec.ndim; i++)
        if (__builtin_mul_overflow(bytes, spec.shape[i], &bytes))
            return damaged(r, "a constant in it is larger than it");
    if ((uint64_t)bytes != r->left)
        return damaged(r, "a constant in it does not have the size of its shape");
    gm_array *a = gm_array_from(m->scope, spec.dtype, spec.ndim, spec.shape, r->at);
    if (!a)
        return error_code();
    m->constants[m->n_constants++] = a;
    return GM_OK;
}

/* ---- traces ---- */
typedef struct {
    gm_array **values;
    int64_t count;
    size_t capacity;
} slots;

static gm_status add_value(slots *s, gm_array *a) {
    GM_TRY(grow_array(&s->values, (size_t)s->count, &s->capacity, 1, sizeof *s->values));
    s->values[s->count++] = a;
    return GM_OK;
}

static gm_status take_operand(const gm_import *m, reader *r, const slots *s, gm_array **out) {
    int32_t o = 0;
    GM_TRY(take(r, &o, sizeof o));
    if (o == EXPORT_NONE)
        *out = GM_NONE;
    else if (o >= 0 && o < s->count)
        *out = s->values[o];
    else if (o < 0 && -1 - (int64_t)o < m->n_constants)
        *out = m->constants[-1 - (int64_t)o];
    else
        return damaged(r, "an operand in it does not exist");
    return GM_OK;
}

/* The counts that an instruction begins with. */
typedef struct { uint32_t op, n_in, n_out, param_size; } counts;

/* arrays: of n_in + n_out. */
static gm_status make_node(gm_import *m, reader *r, slots *s, const gm_op *op, counts c, gm_array **arrays) {
    const uint32_t n_in = c.n_in, n_out = c.n_out;
    gm_array **in = arrays, **outs = arrays + n_in;
    for (uint32_t k = 0; k < n_in; k++) {
        GM_TRY(take_operand(m, r, s, &in[k]));
        if (in[k] == GM_NONE && !(k < 32 && op->optional >> k & 1))
            return damaged(r, "an operation in it lacks an input");
    }
    void *param = memory_zeroed(op->param_size + 1);
    gm_status status = param ? take(r, param, c.param_size) : GM_ENOMEM;
    if (status == GM_OK)
        status = op->rebuild(m->scope, in, (int)n_in, param, (int)n_out, outs);
    memory_free(param);
    for (uint32_t k = 0; k < n_out && status == GM_OK; k++)
        status = !outs[k] ? damaged(r, "an operation in it gives nothing") : add_value(s, outs[k]);
    return status;
}

static gm_status read_instruction(gm_import *m, reader *r, slots *s) {
    counts c = {0};
    GM_TRY(take(r, &c, sizeof c));
    if (c.op >= (uint32_t)m->n_ops)
        return damaged(r, "an operation in it is not declared");
    const gm_op *op = m->ops[c.op];
    if ((op->n_in >= 0 && c.n_in != (uint32_t)op->n_in) || (op->n_out >= 0 && c.n_out != (uint32_t)op->n_out) ||
        c.n_out == 0 || c.n_out > UINT16_MAX || c.n_in > r->left / sizeof(int32_t) || c.param_size > op->param_size)
        return damaged(r, "an operation in it has the wrong number of operands or parameters");
    gm_array **arrays = memory_zeroed(((size_t)c.n_in + c.n_out) * sizeof *arrays);
    if (!arrays)
        return GM_ENOMEM;
    gm_status status = make_node(m, r, s, op, c, arrays);
    memory_free(arrays);
    return status;
}

static gm_status read_inputs(gm_import *m, reader *r, slots *s, trace *t) {
    uint32_t n = 0, length = 0;
    gm_spec spec;
    GM_TRY(take_count(r, 12, &n));
    t->inputs = memory_zeroed(((size_t)n + 1) * sizeof *t->inputs);
    t->names = memory_zeroed(((size_t)n + 1) * sizeof *t->names);
    if (!t->inputs || !t->names)
        return GM_ENOMEM;
    for (uint32_t k = 0; k < n; k++) {
        t->n_inputs++; /* first: from here on gm_import_close frees the name */
        GM_TRY(take_shape(r, &spec));
        GM_TRY(take_u32(r, &length));
        if (length)
            GM_TRY(take_text(r, length, &t->names[k]));
        if (!(t->inputs[k] = gm_placeholder(m->scope, spec.dtype, spec.ndim, spec.shape)))
            return error_code();
        GM_TRY(add_value(s, t->inputs[k]));
    }
    return GM_OK;
}

static gm_status read_body(gm_import *m, reader *r, slots *s, trace *t) {
    uint32_t n = 0;
    GM_TRY(read_inputs(m, r, s, t));
    GM_TRY(take_count(r, 16, &n));
    for (uint32_t k = 0; k < n; k++)
        GM_TRY(read_instruction(m, r, s));
    GM_TRY(take_count(r, sizeof(int32_t), &n));
    t->outputs = memory_zeroed(((size_t)n + 1) * sizeof *t->outputs);
    if (!t->outputs)
        return GM_ENOMEM;
    for (uint32_t k = 0; k < n; k++) {
        GM_TRY(take_operand(m, r, s, &t->outputs[k]));
        if (t->outputs[k] == GM_NONE)
            return damaged(r, "an output in it is absent");
        t->n_outputs++;
    }
    return r->left ? damaged(r, "a trace in it is longer than its parts") : GM_OK;
}

static gm_status read_trace(gm_import *m, reader *r) {
    slots s = {NULL, 0, 0};
    GM_TRY(grow_array(&m->traces, (size_t)m->n_traces, &m->traces_capacity, 1, sizeof *m->traces));
    m->traces[m->n_traces] = (trace){.n_outputs = 0};
    gm_trace_enter();
    gm_status status = read_body(m, r, &s, &m->traces[m->n_traces++]);
    gm_trace_leave();
    memory_free(s.values);
    return status;
}

/* ---- the file ---- */
static gm_status read_section(gm_import *m, uint32_t tag, reader *r) {
    switch (tag) {
    case EXPORT_METADATA: memory_free(m->metadata); return take_text(r, r->left, &m->metadata);
    case EXPORT_OP: return read_op(m, r);
    case EXPORT_CONSTANT: return read_constant(m, r);
    case EXPORT_TRACE: return read_trace(m, r);
    default: return damaged(r, "it has a section of an unknown kind");
    }
}

/* Head and tail: that this is such a file, of this version, whole and as it was written. */
static gm_status check_file(const reader *r) {
    uint32_t head[4], end[2];
    uint64_t tail[2];
    if (r->left < 48 || memcmp(r->at, EXPORT_MAGIC, 8) != 0)
        return damaged(r, "it is not the file of an exported function");
    memcpy(head, r->at + 8, sizeof head);
    if (head[0] != EXPORT_VERSION || head[1] != export_catalogue())
        return damaged(r, "it was written by another version of gomlx");
    memcpy(end, r->at + r->left - 24, sizeof end);
    memcpy(tail, r->at + r->left - 16, sizeof tail);
    if (end[0] != EXPORT_END || tail[0] != r->left)
        return damaged(r, "it is cut short or has something after its end");
    export_checksum sum = {0};
    export_sum(&sum, r->at, r->left - 8);
    return export_sum_end(&sum) == tail[1] ? GM_OK : damaged(r, "it is damaged: its checksum is wrong");
}

static gm_status read_file(gm_import *m, reader r) {
    GM_TRY(check_file(&r));
    m->shapeless = r.at[16] != 0;
    r.at += 24;
    r.left -= 48;
    while (r.left) {
        uint32_t head[2] = {0};
        uint64_t size = 0;
        GM_TRY(take(&r, head, sizeof head));
        GM_TRY(take(&r, &size, sizeof size));
        if (size > r.left)
            return damaged(&r, "a section in it ends too early");
        reader section = {r.at, (size_t)size, r.path};
        GM_TRY(read_section(m, head[0], &section));
        r.at += size;
        r.left -= (size_t)size;
    }
    return GM_OK;
}

gm_status gm_import_open(const char *path, gm_import **out) {
    gm_file file;
    gm_error e;
    *out = NULL;
    gm_take_error(&e); /* what is in the slot from before: .rebuild may look at it */
    gm_status status = file_map(path, &file);
    if (status == GM_EFILE && gm_take_error(&e) == GM_EFILE)
        return gm_fail(GM_ESTATE, "import_function: %s", e.text);
    if (status != GM_OK)
        return status;
    gm_import *m = memory_zeroed(sizeof *m);
    status = m && (m->scope = gm_scope_open()) ? read_file(m, (reader){file.data, file.size, path}) : GM_ENOMEM;
    file_unmap(&file);
    if (status != GM_OK) {
        gm_import_close(m);
        return status;
    }
    *out = m;
    return GM_OK;
}

const char *gm_import_metadata(const gm_import *m) { return m->metadata; }
bool gm_import_is_shapeless(const gm_import *m) { return m->shapeless; }
int gm_import_traces(const gm_import *m) { return m->n_traces; }

gm_traced gm_import_trace(const gm_import *m, int k) {
    const trace *t = &m->traces[k];
    return (gm_traced){t->inputs, (const char *const *)t->names, t->n_inputs, t->outputs, t->n_outputs};
}

void gm_import_close(gm_import *m) {
    if (!m)
        return;
    for (int i = 0; i < m->n_traces; i++) {
        trace *t = &m->traces[i];
        for (int k = 0; t->names && k < t->n_inputs; k++)
            memory_free(t->names[k]);
        memory_free(t->inputs);
        memory_free(t->names);
        memory_free(t->outputs);
    }
    gm_scope_close(m->scope);
    memory_free(m->metadata);
    memory_free(m->ops);
    memory_free(m->constants);
    memory_free(m->traces);
    memory_free(m);
}
