/* source.c - arrays whose values are in a file and are read when they are evaluated.
 *  (1) The file stays open, by its own descriptor, until every array has been read from it. Its name does not matter:
 *      a file that is deleted or replaced under its name still gives its values. An array whose evaluation fails or is
 *      interrupted can be read again.
 *  (2) The file is read, not mapped: a file that was cut short is an error of the evaluation, not a signal. Bytes that
 *      another program changes in place are read as they are then.
 *  (3) Reading is a launch like any other: in pieces, on all threads, outside all locks, and it can be cancelled. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"
#include "core/queue.h"

#define PIECE_BYTES (1 << 20)

struct gm_source {
    int fd;
    char *name;        /* for messages */
    gm_buffer *shared; /* counts the references of arrays and launches */
};

static void close_source(void *payload) {
    gm_source *source = payload;
    close(source->fd);
    memory_free(source->name);
    memory_free(source);
}

gm_status gm_source_open(int fd, const char *name, gm_source **out) {
    gm_source *s = memory_zeroed(sizeof *s);
    *out = NULL;
    if (!s)
        return GM_ENOMEM;
    s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (s->fd < 0) {
        memory_free(s);
        return gm_fail_errno("load: cannot keep %s open", name);
    }
    s->name = memory_copy_text(name, strlen(name));
    s->shared = s->name ? buffer_foreign(NULL, 0, close_source, s) : NULL;
    if (!s->shared) {
        close_source(s);
        return GM_ENOMEM;
    }
    *out = s;
    return GM_OK;
}

void gm_source_close(gm_source *s) {
    if (s)
        buffer_release(s->shared);
}

/* ---- the op ---- */
typedef struct {
    _Atomic(gm_source *) source; /* NULL once the array was read */
    int64_t offset;
    int32_t swapped, unused;
    gm_spec spec; /* as many dimensions as there are */
} load_param;

typedef struct {
    char *out;
    int fd;
    int64_t offset, item;
    int unit; /* bytes of a number to swap; 1: none */
    bool is_bool;
    int32_t *failed;
} read_args;

static bool read_whole(int fd, char *out, size_t bytes, int64_t offset) {
    while (bytes) {
        ssize_t n = pread(fd, out, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        out += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return true;
}

static void swap_units(char *data, int64_t bytes, int unit) {
    for (char *p = data; p < data + bytes; p += unit)
        for (int i = 0; i < unit / 2; i++) {
            char c = p[i];
            p[i] = p[unit - 1 - i];
            p[unit - 1 - i] = c;
        }
}

static void read_part(const void *args, int64_t begin, int64_t end) {
    const read_args *a = args;
    char *out = a->out + begin * a->item;
    int64_t bytes = (end - begin) * a->item;
    if (!read_whole(a->fd, out, (size_t)bytes, a->offset + begin * a->item)) {
        __atomic_store_n(a->failed, 1, __ATOMIC_RELAXED);
        memset(out, 0, (size_t)bytes);
    }
    if (a->unit > 1)
        swap_units(out, bytes, a->unit);
    for (int64_t i = 0; a->is_bool && i < bytes; i++) /* any other byte of the file is true */
        out[i] = out[i] != 0;
}

static gm_status load_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_spec *spec = &((const load_param *)param)->spec;
    (void)in;
    (void)n_in;
    memcpy(out, spec, offsetof(gm_spec, shape) + (size_t)spec->ndim * sizeof *spec->shape);
    return GM_OK;
}

static gm_status load_eval(gm_array *out, gm_queue *q) {
    const load_param *p = out->param;
    gm_source *source = atomic_load(&((load_param *)out->param)->source);
    const int64_t item = (int64_t)array_item(out), end = p->offset + out->size * item;
    struct stat st;
    if (fstat(source->fd, &st) != 0)
        return gm_fail(GM_ESTATE, "load: %s cannot be read: its size is not known", source->name);
    if (st.st_size < end)
        return gm_fail(GM_ESTATE,
                       "load: %s was cut short after it was opened: it has %lld bytes, but an array ends "
                       "at %lld",
                       source->name, (long long)st.st_size, (long long)end);
    const size_t message_bytes = strlen(source->name) + 64;
    char *message = queue_arena(q, message_bytes);
    int32_t *failed = message ? queue_flag(q, message) : NULL;
    if (!failed)
        return error_code();
    snprintf(message, message_bytes, "load: %s could not be read to the end of an array", source->name);
    GM_TRY(queue_reserve(q, 4));
    queue_hold(q, source->shared);
    GM_TRY(array_alloc(out, q));
    if (!out->size)
        return GM_OK;
    const int unit = !p->swapped ? 1 : out->dtype == GM_COMPLEX64 ? 4 : (int)item;
    const read_args args = {.out = array_ptr(out),
                            .fd = source->fd,
                            .offset = p->offset,
                            .item = item,
                            .unit = unit,
                            .is_bool = out->dtype == GM_BOOL,
                            .failed = failed};
    return queue_launch(q, read_part, &args, sizeof args, out->size, PIECE_BYTES / item, 0);
}

static void load_hold(void *param) { buffer_retain(atomic_load(&((load_param *)param)->source)->shared); }

static void load_drop(void *param) { gm_source_close(atomic_exchange(&((load_param *)param)->source, NULL)); }

static const gm_op load_op = {.name = "load",
                              .n_in = 0,
                              .n_out = 1,
                              .place = PLACE_HOST,
                              .param_size = sizeof(load_param),
                              .infer = load_infer,
                              .eval = load_eval,
                              .hold = load_hold,
                              .drop = load_drop};

gm_array *gm_source_array(gm_scope *s, gm_source *source, gm_dtype type, int ndim, const int64_t *shape, int64_t offset,
                          bool swapped) {
    load_param p;
    if (ndim > GM_MAX_NDIM || type >= GM_DTYPE_COUNT || offset < 0)
        return gm_fail(GM_EVALUE, "load: %s: an array of %d dimensions at byte %lld is not supported", source->name,
                       ndim, (long long)offset),
               NULL;
    memset(&p, 0, sizeof p);
    atomic_init(&p.source, source);
    p.offset = offset;
    p.swapped = swapped;
    p.spec.dtype = type;
    p.spec.ndim = ndim;
    memcpy(p.spec.shape, shape, (size_t)ndim * sizeof *shape);
    const size_t param_bytes = offsetof(load_param, spec.shape) + (size_t)ndim * sizeof *shape;
    return array_node_sized(s, &load_op, NULL, 0, &p, param_bytes);
}
