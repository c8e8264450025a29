/* test_index.c - reading and writing by index arrays against loops that say what is meant, with indices that are out of
 * range, sizes that straddle the kernels' strips, and every allocation made to fail. Under ASan nothing outside of an
 * array is touched. */
#include <stdlib.h>
#include "base/memory.h"
#include "check.h"
#include "kernels.h"

static uint64_t state = 88172645463325252u;
static int64_t below(int64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}

enum { MOST = 200000 };

static gm_array *numbers(gm_scope *s, int ndim, const int64_t *shape, int64_t low, int64_t high) {
    static int32_t values[MOST];
    int64_t size = 1;
    for (int i = 0; i < ndim; i++)
        size *= shape[i];
    for (int64_t i = 0; i < size; i++)
        values[i] = (int32_t)(low + below(high - low));
    return gm_array_from(s, GM_INT32, ndim, shape, values);
}

static int32_t at(const gm_array *a, const int64_t *index) {
    int64_t offset = 0;
    for (int i = 0; i < gm_array_ndim(a); i++)
        offset += index[i] * gm_array_strides(a)[i];
    return ((const int32_t *)gm_array_data(a))[offset];
}

/* The next index of a shape; false after the last. */
static bool step(int ndim, const int64_t *shape, int64_t *index) {
    for (int i = ndim - 1; i >= 0; i--) {
        if (++index[i] < shape[i])
            return true;
        index[i] = 0;
    }
    return false;
}

/* One choice of array, axes and index arrays; at most one index array is long. */
typedef struct {
    int ndim, n, place, n_index, axes[4];
    int64_t shape[4], index_shape[2], dense[8];
    gm_array *x, *index[4];
} choice;

/* astray: indices may be out of range. */
static void choose(gm_scope *s, choice *c, bool wide, bool astray) {
    c->ndim = 1 + (int)below(4);
    for (int i = 0; i < c->ndim; i++)
        c->shape[i] = 1 + below(wide && i == c->ndim - 1 ? 90 : 4);
    c->n = 1 + (int)below(c->ndim);
    uint32_t taken = 0;
    for (int k = 0; k < c->n; k++) {
        do
            c->axes[k] = (int)below(c->ndim);
        while (taken >> c->axes[k] & 1);
        taken |= 1u << c->axes[k];
    }
    c->place = (int)below(c->ndim - c->n + 1);
    c->n_index = (int)below(3);
    for (int i = 0; i < c->n_index; i++)
        c->index_shape[i] = below(wide && i == 0 ? 40 : 4);
    c->x = numbers(s, c->ndim, c->shape, -50, 50);
    for (int k = 0; k < c->n; k++) {
        int64_t size = c->shape[c->axes[k]];
        c->index[k] = numbers(s, c->n_index, c->index_shape, -size - astray, size + astray);
        if (c->n_index == 2 && below(2) && c->index_shape[0] && c->index_shape[1]) { /* broadcast, turned */
            int64_t column[2] = {c->index_shape[0], 1};
            gm_array *part = numbers(s, 2, column, -size, size);
            c->index[k] = gm_broadcast_to(s, part, 2, c->index_shape);
        }
    }
    int n = 0, kept = 0;
    for (int i = 0; i <= c->ndim; i++) {
        for (int j = 0; kept == c->place && j < c->n_index; j++)
            c->dense[n++] = c->index_shape[j];
        kept += kept == c->place ? 100 : 0;
        if (i < c->ndim && !(taken >> i & 1)) {
            c->dense[n++] = c->shape[i];
            kept++;
        }
    }
}

/* Where the dense index lies in x; false: nowhere. */
static bool place_of(const choice *c, const int64_t *dense, int64_t *out) {
    int n = 0;
    bool inside = true;
    for (int i = 0; i < c->ndim; i++) {
        bool addressed = false;
        for (int k = 0; k < c->n; k++) {
            if (c->axes[k] != i)
                continue;
            int64_t v = at(c->index[k], dense + c->place);
            addressed = true;
            v += v < 0 ? c->shape[i] : 0;
            inside = inside && v >= 0 && v < c->shape[i];
            out[i] = v;
        }
        if (!addressed) {
            out[i] = dense[n < c->place ? n : n + c->n_index];
            n++;
        }
    }
    return inside;
}

static int32_t combine(int mode, int32_t x, int32_t y) {
    switch (mode) {
    case GM_S_ADD: return (int32_t)((uint32_t)x + (uint32_t)y);
    case GM_S_MULTIPLY: return (int32_t)((uint32_t)x * (uint32_t)y);
    case GM_S_MAX: return x > y ? x : y;
    case GM_S_MIN: return x < y ? x : y;
    default: return y;
    }
}

static bool empty(int ndim, const int64_t *shape) {
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0)
            return true;
    return false;
}

static bool all_inside(const choice *c, int ndim) {
    int64_t dense[8] = {0}, sparse[4];
    bool inside = true;
    for (bool some = !empty(ndim, c->dense); some; some = step(ndim, c->dense, dense))
        inside = place_of(c, dense, sparse) && inside;
    return inside;
}

static void test_choices(bool wide) {
    static int32_t want[MOST];
    for (int round = 0; round < (wide ? 300 : 2000); round++) {
        gm_scope *s = gm_scope_open();
        choice c;
        choose(s, &c, wide, round % 4 == 0);
        int ndim = c.ndim - c.n + c.n_index, mode = (int)below(GM_S_COUNT);
        gm_array *updates = numbers(s, ndim, c.dense, -9, 9);
        gm_array *read = gm_gather(s, c.x, c.index, c.n, c.axes, c.place);
        gm_array *written = gm_scatter(s, c.x, (gm_indices){c.index, c.n, c.axes, c.place}, updates, mode, NULL);
        CHECK(gm_eval(c.index, (size_t)c.n) == GM_OK);
        int64_t dense[8] = {0}, sparse[4], size = gm_array_size(c.x);
        if (!all_inside(&c, ndim)) {
            CHECK(gm_eval(&read, 1) == GM_EINDEX && gm_eval(&written, 1) == GM_EINDEX);
            gm_take_error(&(gm_error){0});
            gm_scope_close(s);
            continue;
        }
        gm_array *all[] = {read, written, c.x, updates};
        CHECK(gm_eval(all, 4) == GM_OK);
        memcpy(want, gm_array_data(c.x), (size_t)size * sizeof *want);
        bool same = true, some = !empty(ndim, c.dense);
        while (some) {
            place_of(&c, dense, sparse);
            same = same && at(read, dense) == at(c.x, sparse);
            int64_t offset = 0;
            for (int i = 0; i < c.ndim; i++)
                offset = offset * c.shape[i] + sparse[i];
            want[offset] = combine(mode, want[offset], at(updates, dense));
            some = step(ndim, c.dense, dense);
        }
        CHECK(same);
        CHECK(memcmp(want, gm_array_data(written), (size_t)size * sizeof *want) == 0);
        gm_scope_close(s);
    }
}

static void test_along(void) {
    for (int round = 0; round < 500; round++) {
        gm_scope *s = gm_scope_open();
        int ndim = 1 + (int)below(3), axis = (int)below(ndim);
        int64_t shape[3], index_shape[3], index[3] = {0}, from[3];
        for (int i = 0; i < ndim; i++)
            shape[i] = index_shape[i] = 1 + below(round % 2 ? 5 : 40);
        index_shape[axis] = below(9);
        gm_array *x = numbers(s, ndim, shape, 1, 99);
        gm_array *indices = numbers(s, ndim, index_shape, -shape[axis], shape[axis]);
        gm_array *updates = numbers(s, ndim, index_shape, 1, 9);
        gm_array *all[] = {gm_take_along_axis(s, x, indices, axis),
                           gm_scatter_along(s, x, indices, updates, axis, GM_S_ADD), x, indices, updates};
        CHECK(gm_eval(all, 5) == GM_OK);
        int64_t left = 0;
        bool same = true, some = !empty(ndim, index_shape);
        for (int64_t i = 0; i < gm_array_size(x); i++)
            left += ((const int32_t *)gm_array_data(all[1]))[i] - ((const int32_t *)gm_array_data(x))[i];
        while (some) {
            memcpy(from, index, sizeof from);
            int64_t v = at(indices, index);
            v += v < 0 ? shape[axis] : 0;
            from[axis] = v;
            same = same && at(all[0], index) == at(x, from);
            left -= at(updates, index);
            some = step(ndim, index_shape, index);
        }
        CHECK(same && left == 0);
        gm_scope_close(s);
    }
}

/* A start outside of the array is moved inside. */
static void test_dynamic_slices(void) {
    for (int round = 0; round < 200; round++) {
        gm_scope *s = gm_scope_open();
        int64_t shape[2] = {1 + below(6), 1 + below(80)}, size[2] = {below(shape[0] + 1), below(shape[1] + 1)};
        int32_t start[2] = {(int32_t)below(20) - 10, (int32_t)below(200) - 100};
        gm_array *x = numbers(s, 2, shape, 0, 99), *update = numbers(s, 2, size, 100, 199);
        gm_array *from = gm_array_from(s, GM_INT32, 1, (int64_t[]){2}, start);
        gm_array *all[] = {gm_dynamic_slice(s, x, from, 2, (int[]){0, 1}, size),
                           gm_dynamic_slice_update(s, x, update, from, 2, (int[]){0, 1}), x, update};
        CHECK(gm_eval(all, 4) == GM_OK);
        int64_t index[2] = {0};
        for (bool some = !empty(2, size); some; some = step(2, size, index)) {
            int64_t there[2];
            for (int i = 0; i < 2; i++) {
                int64_t most = shape[i] - size[i];
                there[i] = index[i] + (start[i] < 0 ? 0 : start[i] > most ? most : start[i]);
            }
            CHECK(at(all[0], index) == at(x, there) && at(all[1], there) == at(update, index));
        }
        gm_scope_close(s);
    }
}

/* ---- allocations that fail ---- */
static gm_array *build(gm_array *x, gm_array *i, gm_array *j) {
    gm_scope *s = gm_scope_open();
    if (!s)
        return NULL;
    gm_array *both[2] = {i, gm_broadcast_to(s, j, 2, (int64_t[]){3, 4})};
    gm_array *half = gm_astype(s, x, GM_BFLOAT16);
    gm_array *read = gm_gather(s, half, both, 2, (int[]){1, 0}, 0);
    gm_array *turned = gm_transpose(s, read, 3, (int[]){1, 0, 2});
    gm_array *indices[2] = {gm_transpose(s, i, 2, (int[]){1, 0}), j};
    gm_array *added = gm_scatter(s, half, (gm_indices){&indices[0], 1, (int[]){0}, 0},
                                 gm_sum(s, turned, 2, (int[]){0, 1}, true), GM_S_ADD, NULL);
    gm_array *along = gm_take_along_axis(s, added, gm_astype(s, gm_abs(s, half), GM_INT32), 1);
    gm_array *root = gm_retain(gm_sum(s, gm_astype(s, along, GM_FLOAT32), 0, NULL, false));
    gm_scope_close(s);
    return root;
}

static void fail_each(void) {
    gm_scope *s = gm_scope_open();
    gm_error e;
    gm_array *x = gm_astype(s, numbers(s, 3, (int64_t[]){5, 6, 7}, -3, 3), GM_FLOAT32);
    gm_array *i = numbers(s, 2, (int64_t[]){3, 4}, -5, 5), *j = numbers(s, 1, (int64_t[]){4}, -5, 5);
    gm_array *inputs[] = {x, i, j};
    long failures = 0;
    CHECK(gm_eval(inputs, 3) == GM_OK);
    size_t before = gm_active_memory();
    for (long n = 1; n < 1000; n++) {
        memory_fail_at(n);
        gm_array *root = build(x, i, j);
        gm_status status = root ? gm_eval(&root, 1) : GM_ENOMEM;
        gm_take_error(&e);
        memory_fail_at(0);
        gm_release(root);
        CHECK(status == GM_OK || (status == GM_ENOMEM && e.code == GM_ENOMEM));
        CHECK(gm_active_memory() == before);
        failures += status != GM_OK;
        if (status == GM_OK)
            break;
    }
    CHECK(failures > 20 && failures < 900);
    gm_scope_close(s);
}

int main(void) {
    if (gm_init() != GM_OK)
        return 1;
    gm_set_cache_limit(0);
    gm_set_threads(3);
    test_choices(false);
    test_choices(true);
    test_along();
    test_dynamic_slices();
    fail_each();
    return check_summary();
}
